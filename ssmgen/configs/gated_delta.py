"""Gated DeltaNet in Qwen's field names: qwen3_next, qwen3_5 (also Qwen3.6), qwen3_5_moe, qwen4_exp.

Read inside text_config where the model has one. Kimi Delta Attention has other fields, and is refused elsewhere.
"""

from __future__ import annotations

from ssmgen.configs import dtypes, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.mixers import GatedDeltaMixer, Reading

MODEL_TYPES = (
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen4_exp",
    "qwen4_exp_text",
)
LINEAR = frozenset({"linear_attention"})


def read(config: Fields) -> Reading:
    """Hk, Hv, K and V are given as such; every full_attention_interval-th layer is attention unless layer_types."""
    if config.given("layer_types"):
        where = layers.listed(config, "layer_types", LINEAR, layers.ATTENTION)
    else:
        where = layers.periodic(config, "full_attention_interval", 4)
    return Reading(read_mixer(config, key_heads=16, value_heads=32), where)


def read_mixer(config: Fields, key_heads: int, value_heads: int) -> GatedDeltaMixer:
    """The linear_* fields, with the class defaults of the head counts."""
    return GatedDeltaMixer(
        key_heads=config.integer("linear_num_key_heads", key_heads),
        value_heads=config.integer("linear_num_value_heads", value_heads),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        state_dtype=dtypes.state(config),
    )
