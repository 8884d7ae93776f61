"""Native configs of the mamba_ssm package: no model_type, but d_model, n_layer and ssm_cfg.

ssm_cfg.layer decides: Mamba-1 where it is absent, and only Mamba2 is read.
"""

from __future__ import annotations

from ssmgen.configs import dt, inner, layers
from ssmgen.configs.fields import ANOTHER_MODEL, Fields, derived
from ssmgen.configs.mixers import Mamba2Mixer, Reading
from ssmgen.errors import ConfigError

NAME = "mamba_ssm"
_MAMBA1 = "Mamba-1 (selective scan: one A per channel and state, no heads)"


def recognises(config: Fields) -> bool:
    """Whether this is a native config: they have no model_type."""
    return not config.given("model_type") and ("ssm_cfg" in config.data or "d_model" in config.data)


def read(config: Fields) -> Reading:
    """H = expand*d_model / headdim, or d_ssm / headdim where only a part of the inner size goes through the scan."""
    ssm = config.object("ssm_cfg")
    layer = None if ssm is None else ssm.text("layer")
    if ssm is None or layer != "Mamba2":
        raise _refusal(config, ssm, layer)
    factor, width = ssm.integer("expand", 2), config.integer("d_model")
    whole = derived(factor.value * width.value, f"{factor.origin} * d_model", width, factor)
    size = ssm.integer("d_ssm") if ssm.given("d_ssm") else whole
    head_dim = ssm.integer("headdim", 64)
    if size.value > whole.value:
        raise ssm.error("d_ssm", f"more than {whole.origin} = {whole.value}", expected=f"at most {whole.value}")
    mixer = Mamba2Mixer(
        heads=inner.quotient(ssm, "headdim", size, head_dim),
        groups=ssm.integer("ngroups", 1),
        head_dim=head_dim,
        state=ssm.integer("d_state", 128),
        remarks=dt.limit_remarks(ssm, "dt_limit"),
        skip="per_channel" if ssm.boolean("D_has_hdim", False) else "per_head",
        # without its norm the layer leaves the gate to the scan
        gate="none" if ssm.boolean("rmsnorm", True) else "silu",
    )
    return Reading(mixer, layers.all_but(config, "attn_layer_idx", "n_layer"))


def _refusal(config: Fields, ssm: Fields | None, layer: str | None) -> ConfigError:
    expected = 'ssm_cfg.layer = "Mamba2"'
    if ssm is None:
        problem = f"without ssm_cfg.layer the layers are {_MAMBA1}"
        return config.error("ssm_cfg", problem, expected=expected, mend=ANOTHER_MODEL)
    if layer is None:
        problem = f"without its layer field the layers are {_MAMBA1}"
        return config.error("ssm_cfg", problem, expected=expected, mend=ANOTHER_MODEL)
    reason = _MAMBA1 if layer == "Mamba1" else "not a Mamba-2 layer"
    return ssm.error("layer", reason, expected=expected, mend=ANOTHER_MODEL)
