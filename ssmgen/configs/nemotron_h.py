"""model_type nemotron_h (Nemotron-H, Nemotron Nano and 3): Mamba-2, attention, MLP and MoE layers by a pattern.

H * P is the inner size; `expand` is ignored, as by its class, and contradicts it in several releases. n_group counts
MoE router groups and head_dim is attention's: neither is read.
"""

from __future__ import annotations

from ssmgen.configs import dt, inner, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.layers import Layers
from ssmgen.configs.mixers import Mamba2Mixer, Reading

MODEL_TYPES = ("nemotron_h", "nemotron_h_omni")
_PATTERNS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
_MIXERS = frozenset({"M", "mamba", "linear_attention"})
_OTHERS = frozenset({"*", "-", "E", "attention", "full_attention", "mlp", "moe"})


def read(config: Fields) -> Reading:
    """H, P, S and G are given as such."""
    heads, head_dim = config.integer("mamba_num_heads", 128), config.integer("mamba_head_dim", 64)
    mixer = Mamba2Mixer(
        heads=heads,
        groups=config.either(("n_groups", "mamba_n_groups"), 8),
        head_dim=inner.remark_ignored(config, "expand", heads, head_dim),
        state=config.integer("ssm_state_size", 128),
        remarks=dt.limit_remarks(config)
        + dt.minimum_remarks(config, "transformers before 5.25")
        + _cache_remarks(config),
    )
    return Reading(mixer, _layers(config))


def _layers(config: Fields) -> Layers:
    given = [name for name in _PATTERNS if config.given(name)]
    if not given:
        either = f"{_PATTERNS[-1]} or {_PATTERNS[0]}"
        raise config.error(_PATTERNS[-1], "missing", expected=either, mend=f"add {either}")
    first, *rest = (layers.named(config, name, _MIXERS, _OTHERS) for name in given)
    for other in rest:
        if (other.mixers, other.total) != (first.mixers, first.total):
            raise config.conflict(given[0], other.rule, expected="one of the two, or both the same")
    return first


def _cache_remarks(config: Fields) -> tuple[str, ...]:
    name = "mamba_ssm_cache_dtype"
    value = config.text(name)
    if value in (None, "float32", "auto"):
        return ()
    return (f"{name} = {value!r} is the decode cache's: final states of this operator are float32",)
