"""model_type mamba2 (Codestral-Mamba, converted state-spaces models): every layer is a Mamba-2 mixer.

Its class demands expand * hidden_size = num_heads * head_dim; here head_dim is the mixer's, not attention's.
"""

from __future__ import annotations

from ssmgen.configs import dt, inner, layers
from ssmgen.configs.fields import Fields
from ssmgen.configs.mixers import Mamba2Mixer, Reading

MODEL_TYPES = ("mamba2",)


def read(config: Fields) -> Reading:
    """H, P, S and G are given as such."""
    if not config.given("hidden_size") and (config.given("d_model") or config.given("ssm_cfg")):
        raise config.error(
            "model_type",
            "the fields are those of mamba_ssm's own format",
            expected="hidden_size, num_heads and so on, or no model_type",
            mend="remove model_type",
        )
    heads, head_dim = config.integer("num_heads", 128), config.integer("head_dim", 64)
    inner.check(config, "expand", heads, head_dim, inner.expanded(config, "expand", 4096))
    mixer = Mamba2Mixer(
        heads=heads,
        groups=config.integer("n_groups", 8),
        head_dim=head_dim,
        state=config.integer("state_size", 128),
        remarks=dt.limit_remarks(config),
    )
    return Reading(mixer, layers.every(config))
