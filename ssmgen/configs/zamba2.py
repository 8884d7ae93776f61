"""model_type zamba2, in transformers' field names, in Zyphra's older ones, or in a mixture of both.

"mamba" and "hybrid" layers ("m" and "g" in old files) both hold one Mamba-2 mixer. Where old names are given, the
class default of n_mamba_heads, 8, is not trusted: transformers applies it in silence to such files.
"""

from __future__ import annotations

from ssmgen.configs import dt, inner, layers
from ssmgen.configs.fields import Fields, Number, derived
from ssmgen.configs.mixers import Mamba2Mixer, Reading

MODEL_TYPES = ("zamba2",)
_OLD = ("mamba_headdim", "state_size", "expansion_factor", "conv_dimension")
_KINDS = frozenset({"mamba", "linear_attention", "hybrid", "m", "g"})


def read(config: Fields) -> Reading:
    """The inner size is expand * hidden_size; H, P or both are given, and must fit it."""
    old = any(name in config.data for name in _OLD)
    inner_size = _inner(config, old)
    heads, head_dim = _heads(config, old, inner_size)
    mixer = Mamba2Mixer(
        heads=heads,
        groups=config.integer("mamba_ngroups", 1),
        head_dim=head_dim,
        state=config.either(("state_size", "mamba_d_state") if old else ("mamba_d_state",), None if old else 64),
        remarks=dt.minimum_remarks(config),
    )
    names = [name for name in ("layers_block_type", "layer_types") if config.given(name)]
    where = layers.listed(config, names[0], _KINDS, frozenset()) if names else layers.every(config)
    return Reading(mixer, where)


def _inner(config: Fields, old: bool) -> Number:
    if not old:
        return inner.expanded(config, "mamba_expand", 2560)
    factor = config.either(("expansion_factor", "mamba_expand"))
    width = config.integer("hidden_size")
    return derived(factor.value * width.value, f"{factor.origin} * {width.origin}", factor, width)


def _heads(config: Fields, old: bool, inner_size: Number) -> tuple[Number, Number]:
    """H and P."""
    if "n_mamba_heads" in config.data or not old:
        heads = config.integer("n_mamba_heads", 8)
        if "mamba_headdim" in config.data:
            return heads, inner.head_dim(config, "mamba_headdim", heads, inner_size)
        return heads, inner.quotient(config, "n_mamba_heads", inner_size, heads)
    size = config.integer("mamba_headdim", 64)
    return inner.quotient(config, "mamba_headdim", inner_size, size), size
