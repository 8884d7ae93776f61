"""The dtype of activations and of the Gated DeltaNet state, from the fields that name them.

A dtype the operators do not list is refused; nothing is guessed from the weights.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from ssmgen.configs.fields import Fields
from ssmgen.ops.base import Dtype

StateDtype = Literal["float32", "bfloat16"]
_NAMES = ("dtype", "torch_dtype")


def activations(chain: list[Fields]) -> tuple[Dtype, str]:
    """The activations' dtype and its origin; the innermost object of `chain` that names one decides."""
    for config in reversed(chain):
        given = [name for name in _NAMES if config.given(name)]
        if not given:
            continue
        if len(given) == 2 and config.data[given[0]] != config.data[given[1]]:
            raise config.conflict(*given, expected="one of the two")
        name = given[0]
        if config.text(name) not in get_args(Dtype):
            raise config.error(name, "not a dtype of these kernels", expected=", ".join(get_args(Dtype)))
        return cast(Dtype, config.data[name]), config.label(name)
    return "bfloat16", "no dtype in the config"


def state(config: Fields, name: str = "mamba_ssm_dtype") -> StateDtype:
    """The state cache's dtype; float32 where the field is absent."""
    value = config.text(name) or "float32"
    if value not in get_args(StateDtype):
        raise config.error(name, "not a dtype of the state", expected=", ".join(get_args(StateDtype)))
    return cast(StateDtype, value)
