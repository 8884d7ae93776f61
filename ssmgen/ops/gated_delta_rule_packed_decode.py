"""Contract of gated_delta_rule_packed_decode: axes, dtypes, options; the names are those of vLLM's packed decode.

h <- exp(g) h; u = beta (v - h k); h <- h + u k^T; o = h q  (Yang et al. 2024, arXiv:2412.06464).
It holds no kernel and no reference.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ssmgen.ops.base import Closed, Dim, Dtype, Route, RouteName, Size, whole_groups

NAME = "gated_delta_rule_packed_decode"


class Shape(Closed):
    """Hk `key_heads`, Hv `value_heads`, K `key_dim`, V `value_dim`; per GPU."""

    key_heads: Size
    value_heads: Size
    key_dim: Dim
    value_dim: Dim

    @model_validator(mode="after")
    def _whole_groups(self) -> Shape:
        whole_groups("key_heads", self.key_heads, "value_heads", self.value_heads)
        return self


class Dtypes(Closed):
    """`x` of mixed_qkv, a, b and out; `state` of the state pool."""

    x: Dtype
    state: Literal["float32", "bfloat16"]


class Options(Closed):
    """`qk_l2norm` normalises q and k in the kernel; `beta_scale` is s in beta = s * sigmoid(b)."""

    qk_l2norm: bool
    beta_scale: Literal[1, 2] = 1


class Operator(Closed):
    """One model's gated_delta_rule_packed_decode."""

    shape: Shape
    dtypes: Dtypes
    options: Options
    routes: dict[RouteName, Route] = Field(default_factory=dict)
