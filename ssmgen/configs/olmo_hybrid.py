"""model_type olmo_hybrid (OLMo-Hybrid): Gated DeltaNet whose sizes may be null and then follow from attention's.

linear_allow_neg_eigval doubles beta; the separate projections of its layers do not matter to the operator.
"""

from __future__ import annotations

from typing import Literal

from ssmgen.configs import dtypes, layers
from ssmgen.configs.fields import ANOTHER_MODEL, Fields, Number, derived
from ssmgen.configs.gated_delta import LINEAR
from ssmgen.configs.layers import Layers
from ssmgen.configs.mixers import GatedDeltaMixer, Reading

MODEL_TYPES = ("olmo_hybrid",)
_SCALE = "linear_allow_neg_eigval"


def read(config: Fields) -> Reading:
    """Hk and Hv default to num_attention_heads, K to 3/4 of hidden_size / Hk, V to 2 K."""
    key_heads, value_heads = _heads(config, "linear_num_key_heads"), _heads(config, "linear_num_value_heads")
    key_dim = _key_dim(config, key_heads)
    if config.given("linear_value_head_dim"):
        value_dim = config.integer("linear_value_head_dim")
    else:
        value_dim = derived(2 * key_dim.value, "2 * key_dim (class default)", key_dim)
    scale: Literal[1, 2] = 2 if config.boolean(_SCALE, True) else 1
    origin = _SCALE if _SCALE in config.data else f"{_SCALE} (class default)"
    mixer = GatedDeltaMixer(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        state_dtype=dtypes.state(config),
        beta_scale=scale,
        remarks=(f"beta = {scale} * sigmoid(b): {origin}",),
    )
    return Reading(mixer, _layers(config))


def _heads(config: Fields, name: str) -> Number:
    return config.integer(name) if config.given(name) else config.integer("num_attention_heads", 30)


def _key_dim(config: Fields, key_heads: Number) -> Number:
    if config.given("linear_key_head_dim"):
        return config.integer("linear_key_head_dim")
    width = config.integer("hidden_size", 3840)
    # rounded down, as the class does
    return derived(3 * width.value // (4 * key_heads.value), f"3/4 * {width.origin} / key_heads", width, key_heads)


def _layers(config: Fields) -> Layers:
    if config.given("layer_types"):
        return layers.listed(config, "layer_types", LINEAR, layers.ATTENTION)
    total = layers.total(config)
    if total is None:
        return Layers(None, None, "all layers but every 4th, by class default")
    # the class makes the last of fewer than four layers attention
    attention = total // 4 or 1
    if attention == total:
        problem = "no layer of this model holds a Gated DeltaNet mixer"
        raise config.error(layers.TOTAL, problem, expected="at least 2", mend=ANOTHER_MODEL)
    return Layers(total - attention, total, "class default")
