"""The mamba_* fields that Bamba, Granite 4.0 hybrid and Falcon-H1 share, with their common class defaults.

How the inner size and the layers are found differs, and is each architecture's own module's.
"""

from __future__ import annotations

from ssmgen.configs import dt, inner
from ssmgen.configs.fields import Fields, Number
from ssmgen.configs.mixers import Mamba2Mixer

HIDDEN = 4096


def read_mixer(config: Fields, inner_size: Number) -> Mamba2Mixer:
    """H, S and G are given; P is given or "auto", and heads * P must equal `inner_size`."""
    heads = config.integer("mamba_n_heads", 128)
    return Mamba2Mixer(
        heads=heads,
        groups=config.integer("mamba_n_groups", 1),
        head_dim=inner.head_dim(config, "mamba_d_head", heads, inner_size),
        state=config.integer("mamba_d_state", 256),
        remarks=dt.limit_remarks(config),
    )
