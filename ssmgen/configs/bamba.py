"""model_type bamba (Bamba-9B): every layer is a Mamba-2 mixer but those in attn_layer_indices.

Its class demands mamba_n_heads * mamba_d_head = mamba_expand * hidden_size.
"""

from __future__ import annotations

from ssmgen.configs import hybrid_fields, inner, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.mixers import Reading

MODEL_TYPES = ("bamba",)


def read(config: Fields) -> Reading:
    """The shared mamba_* fields, with the inner size from mamba_expand."""
    mixer = hybrid_fields.read_mixer(config, inner.expanded(config, "mamba_expand", hybrid_fields.HIDDEN))
    return Reading(mixer, layers.all_but(config, "attn_layer_indices"))
