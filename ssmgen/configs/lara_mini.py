"""model_type lara_mini (Lara-4-Mini): Qwen's Gated DeltaNet fields, another default count and layer pattern.

The pattern, of period 5, is linear, sliding, linear, full, sliding; it holds no attention field.
"""

from __future__ import annotations

from ssmgen.configs import gated_delta, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.layers import Layers
from ssmgen.configs.mixers import Reading

MODEL_TYPES = ("lara_mini",)
_PERIOD = 5
_LINEAR = (0, 2)


def read(config: Fields) -> Reading:
    """Hk, Hv, K and V are given as such."""
    return Reading(gated_delta.read_mixer(config, key_heads=8, value_heads=16), _layers(config))


def _layers(config: Fields) -> Layers:
    if config.given("layer_types"):
        return layers.listed(config, "layer_types", gated_delta.LINEAR, layers.ATTENTION)
    total = layers.total(config)
    if total is None:
        return Layers(None, None, "two layers of every five, by class default")
    periods, rest = divmod(total, _PERIOD)
    return Layers(periods * len(_LINEAR) + sum(i < rest for i in _LINEAR), total, "class default")
