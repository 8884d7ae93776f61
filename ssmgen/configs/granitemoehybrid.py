"""model_type granitemoehybrid (Granite 4.0 hybrid): layer_types names each layer; without it all are Mamba-2.

The dense Granite 4.0 models carry left-over mamba_* fields and no such layer: they are refused.
"""

from __future__ import annotations

from dataclasses import replace

from ssmgen.configs import hybrid_fields, inner, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.mixers import Reading

MODEL_TYPES = ("granitemoehybrid",)
_MIXERS = frozenset({"mamba", "linear_attention"})
_OTHERS = frozenset({"attention", "full_attention"})


def read(config: Fields) -> Reading:
    """The shared mamba_* fields, with the inner size from mamba_expand; layers first, so that none means refused."""
    names = [name for name in ("layer_types", "layers_block_type") if config.given(name)]
    if names:
        where = layers.listed(config, names[0], _MIXERS, _OTHERS)
    else:
        where = replace(layers.every(config), rule="layer_types (class default)")
    inner_size = inner.expanded(config, "mamba_expand", hybrid_fields.HIDDEN)
    return Reading(hybrid_fields.read_mixer(config, inner_size), where)
