"""model_type falcon_h1: every layer holds a Mamba-2 mixer beside its attention.

mamba_d_ssm is the inner size where it is not null, whatever mamba_expand says.
"""

from __future__ import annotations

from dataclasses import replace

from ssmgen.configs import hybrid_fields, inner, layers
from ssmgen.configs.fields import Fields, Number
from ssmgen.configs.mixers import Reading

MODEL_TYPES = ("falcon_h1",)


def read(config: Fields) -> Reading:
    """The shared mamba_* fields, with the inner size from mamba_d_ssm."""
    mixer = hybrid_fields.read_mixer(config, _inner(config))
    head_dim = inner.remark_ignored(config, "mamba_expand", mixer.heads, mixer.head_dim)
    return Reading(replace(mixer, head_dim=head_dim), layers.every(config))


def _inner(config: Fields) -> Number:
    # null means expand * hidden_size; absent means the class default, 1024
    if "mamba_d_ssm" in config.data and config.data["mamba_d_ssm"] is None:
        return inner.expanded(config, "mamba_expand", hybrid_fields.HIDDEN)
    return config.integer("mamba_d_ssm", 1024)
