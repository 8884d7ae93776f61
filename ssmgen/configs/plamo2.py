"""model_type plamo2 (PLaMo-2; outside transformers): Mamba-2 with one group, except one layer in every mamba_step.

hidden_size_per_head is the head dim of attention and mixer alike; full_attention_idx only says which attention layers
have no window.
"""

from __future__ import annotations

from ssmgen.configs import layers
from ssmgen.configs.fields import ANOTHER_MODEL, Fields, Number
from ssmgen.configs.layers import Layers
from ssmgen.configs.mixers import Mamba2Mixer, Reading

MODEL_TYPES = ("plamo2",)
_NONE = "no layer of this model holds a Mamba-2 mixer"


def read(config: Fields) -> Reading:
    """H, P and S are given; the group is fixed."""
    mixer = Mamba2Mixer(
        heads=config.integer("mamba_num_heads", 64),
        groups=Number(1, "fixed", config.where(), given=False),
        head_dim=config.integer("hidden_size_per_head", 128),
        state=config.integer("mamba_d_state", 64),
    )
    return Reading(mixer, _layers(config))


def _layers(config: Fields) -> Layers:
    if not config.boolean("mamba_enabled", True):
        raise config.error("mamba_enabled", _NONE, expected="true", mend=ANOTHER_MODEL)
    step = config.integer("mamba_step", 2)
    if step.value == 1:
        raise config.error("mamba_step", _NONE, expected="at least 2", mend=ANOTHER_MODEL)
    total = layers.total(config)
    if total is None:
        return Layers(None, None, f"all layers but one in every {step.value}, by {step.origin}")
    half = step.value // 2
    # a model too short for the period has attention in its last layer only
    attention = 1 if total <= half else (total - half - 1) // step.value + 1
    if attention == total:
        raise config.error(layers.TOTAL, _NONE, expected="at least 2", mend=ANOTHER_MODEL)
    return Layers(total - attention, total, step.origin)
