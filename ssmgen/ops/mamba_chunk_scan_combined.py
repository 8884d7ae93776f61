"""Contract of mamba_chunk_scan_combined: axes, dtypes, options; the names are those of mamba_ssm 2.3.2's function.

h_t = exp(A dt'_t) h_{t-1} + dt'_t x_t B_t^T,  y_t = h_t C_t + D x_t  (Dao and Gu 2024, arXiv:2405.21060).
It holds no kernel and no reference.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ssmgen.ops.base import Closed, Dim, Dtype, Route, RouteName, Size

NAME = "mamba_chunk_scan_combined"
PLANS = ("three_stage", "segmented")


class Shape(Closed):
    """H `heads`, G `groups` of B and C, P `head_dim`, S `state` size; per GPU."""

    heads: Size
    groups: Size
    head_dim: Dim
    state: Dim

    @model_validator(mode="after")
    def _whole_groups(self) -> Shape:
        if self.heads % self.groups:
            raise ValueError(f"groups = {self.groups} must divide heads = {self.heads}")
        return self


class Dtypes(Closed):
    """`x` also of B, C, z and out; `dt`; `chunk_state` between the stages; `state` initial and final."""

    x: Dtype
    dt: Dtype
    chunk_state: Literal["bfloat16", "float32"]
    state: Literal["float32"]

    @model_validator(mode="after")
    def _listed_mix(self) -> Dtypes:
        if self.dt not in ("float32", self.x):
            raise ValueError(f"dt = {self.dt} must be float32 or the dtype of x ({self.x})")
        return self


class Options(Closed):
    """What the kernels are rendered with; an option that is off costs nothing and is refused when passed."""

    D: Literal["none", "per_head"]
    z: Literal["none"] = "none"
    dt_bias: bool
    dt_softplus: bool
    dt_limit: Literal["none", "runtime"]
    initial_states: Literal[True] = True
    packed: Literal[False] = False


class Operator(Closed):
    """One model's mamba_chunk_scan_combined."""

    shape: Shape
    dtypes: Dtypes
    options: Options
    routes: dict[RouteName, Route] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_plans(self) -> Operator:
        for name, route in self.routes.items():
            if route.plan not in PLANS:
                raise ValueError(f"routes.{name}.plan = {route.plan!r} must be one of {', '.join(PLANS)}")
        return self
