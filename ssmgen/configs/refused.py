"""Architectures that are refused by name, each with its reason and the field that decided; so is any unknown one.

No shape is read here.
"""

from __future__ import annotations

from ssmgen.configs.fields import ANOTHER_MODEL, Fields
from ssmgen.errors import ConfigError

MAMBA1 = "Mamba-1 (selective scan: one A per channel and state, no heads)"
KDA = "Kimi Delta Attention (KDA): per-channel decay, one for each key channel"
LIGHTNING = "lightning attention: a fixed decay per head and no learned gate, neither Mamba-2 nor Gated DeltaNet"
ATTENTION = "every layer is attention"

REASONS = {
    "mamba": MAMBA1,
    "falcon_mamba": MAMBA1,
    "jamba": MAMBA1,
    "zamba": MAMBA1,
    "kimi_linear": KDA,
    "kimi_k3": KDA,
    "bailing_hybrid": KDA,
    "glm5_next": KDA,
    "glm5_next_text": KDA,
    "minimax": LIGHTNING,
    "minimax_text_01": LIGHTNING,
    "MiniMaxText01": LIGHTNING,
    "minimax_m2": ATTENTION,
}
_KDA_FIELDS = ("linear_attn_config", "kda_safe_gate", "kda_lower_bound")


def refuse(config: Fields, model_type: str, known: list[str], named_in: Fields) -> ConfigError:
    """The refusal of `model_type`, which the object `named_in` gives and `config` describes."""
    reason = REASONS.get(model_type)
    expected = "a Mamba-2 or Gated DeltaNet model: " + ", ".join(known)
    name = _kda_field(config, reason)
    if name is not None:
        return ConfigError(
            f"{config.label(name)}: {KDA}; Gated DeltaNet has one decay per head",
            where=config.where(name),
            found=f'{named_in.label("model_type")} = "{model_type}"',
            expected=expected,
            next=ANOTHER_MODEL,
        )
    if reason is None:
        return named_in.error(
            "model_type",
            "unknown architecture",
            expected=expected,
            mend="if its layers are Mamba-2 or Gated DeltaNet, write specs/NAME.yaml by hand, with `source: table`, "
            "then run: ssmgen lock NAME",
        )
    return named_in.error("model_type", reason, expected=expected, mend=ANOTHER_MODEL)


def _kda_field(config: Fields, reason: str | None) -> str | None:
    """The field that tells KDA, in a model known for it or in an unknown one that lists kda_layers."""
    if reason == KDA:
        return next((name for name in _KDA_FIELDS if config.given(name)), None)
    linear = config.data.get(_KDA_FIELDS[0])
    return _KDA_FIELDS[0] if reason is None and isinstance(linear, dict) and "kda_layers" in linear else None
