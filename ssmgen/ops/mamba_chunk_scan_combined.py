"""Contract of mamba_chunk_scan_combined: axes, dtypes, options; the names are those of mamba_ssm 2.3.2's function.

h_t = exp(A dt'_t) h_{t-1} + dt'_t x_t B_t^T,  y_t = (h_t C_t + D x_t) silu(z_t)  (Dao and Gu 2024, arXiv:2405.21060).
It holds no kernel and no reference.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ssmgen import conditions
from ssmgen.errors import ViolationError
from ssmgen.ops.base import Closed, Dim, Dtype, Route, RouteName, Size, whole_groups

NAME = "mamba_chunk_scan_combined"
PLANS = ("three_stage", "segmented", "packed", "packed_segmented")
PACKED_PLANS = ("packed", "packed_segmented")
"""The plans that serve calls with seq_idx or cu_seqlens; the others serve calls without."""


class Shape(Closed):
    """H `heads`, G `groups` of B and C, P `head_dim`, S `state` size; per GPU."""

    heads: Size
    groups: Size
    head_dim: Dim
    state: Dim

    @model_validator(mode="after")
    def _whole_groups(self) -> Shape:
        whole_groups("groups", self.groups, "heads", self.heads)
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
            raise ViolationError(
                f"dt = {self.dt} beside x = {self.x}",
                found=self.dt,
                expected=" or ".join(dict.fromkeys(("float32", self.x))),
                next="change dt, or x to the same dtype",
                key=("dt",),
            )
        return self


class Options(Closed):
    """What the kernels are rendered with; an option that is off costs nothing and is refused when passed.

    `D` is (H,) or, per_channel, (H, P); `z` multiplies the output by silu(z); `packed` admits seq_idx and cu_seqlens.
    """

    D: Literal["none", "per_head", "per_channel"]
    z: Literal["none", "silu"] = "none"
    dt_bias: bool
    dt_softplus: bool
    dt_limit: Literal["none", "runtime"]
    initial_states: Annotated[
        Literal[True], Field(description="every kernel takes initial states, and a call without them passes None")
    ] = True
    packed: bool = False


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
                raise ViolationError(
                    f"routes.{name}.plan: no such plan",
                    found=repr(route.plan),
                    expected=f"one of {', '.join(PLANS)}",
                    next=f"change routes.{name}.plan",
                    key=("routes", name, "plan"),
                )
        return self

    @model_validator(mode="after")
    def _sequences_of_packed_calls(self) -> Operator:
        """Only packed calls have a number of sequences of their own: of others it is B, which then should be named."""
        for name, route in self.routes.items():
            if route.plan not in PACKED_PLANS and "N" in conditions.names(route.when):
                raise ViolationError(
                    f"routes.{name}.when: N, the number of packed sequences, beside a plan for calls without",
                    found=f"{route.when!r}, plan {route.plan}",
                    expected=f"B in place of N, or the plan {' or '.join(PACKED_PLANS)}",
                    next=f"change routes.{name}",
                    key=("routes", name, "when"),
                )
        return self

    @model_validator(mode="after")
    def _some_call_is_served(self) -> Operator:
        """The routes of a kind serve some call of it; cu_seqlens stands beside a batch of 1."""
        for kind, batch in (("unpacked", None), ("packed", 1)):
            routes = {n: r for n, r in self.routes.items() if (r.plan in PACKED_PLANS) == (kind == "packed")}
            if routes and not conditions.ever_hold(
                [route.when for route in routes.values()], self.shape.model_dump(), batch
            ):
                first = next(iter(routes))
                raise ViolationError(
                    f"routes: none serves {kind} calls{' with cu_seqlens, whose batch is 1' if batch else ''}",
                    found=", ".join(f"{name}: {route.when}" for name, route in routes.items()),
                    expected=f"a condition that holds for {'B = 1' if batch else 'some B'} and some T",
                    next=f"change routes.{first}.when, such as to: B >= 1",
                    key=("routes", first, "when"),
                )
        return self

    @model_validator(mode="after")
    def _packed_or_not(self) -> Operator:
        """Every kind of call that the options allow has a route, and no route is without its calls."""
        for kind, taken in (("packed", self.options.packed), ("unpacked", True)):
            wanted = [plan for plan in PLANS if (plan in PACKED_PLANS) == (kind == "packed")]
            routes = {name: route.plan for name, route in self.routes.items() if route.plan in wanted}
            if bool(routes) == taken:
                continue
            found = ", ".join(f"{name}: {route.plan}" for name, route in self.routes.items())
            if taken:
                raise ViolationError(
                    f"routes: none serves {kind} calls",
                    found=found,
                    expected=f"one with the plan {' or '.join(wanted)}",
                    next=f"add such as {kind}: {{when: B >= 1, plan: {wanted[0]}}}",
                    key=("routes",),
                )
            raise ViolationError(
                "a route for packed calls beside options.packed: false",
                found=found,
                expected="no route with the plan " + " or ".join(wanted),
                next=f"set options.packed to true, or remove routes.{next(iter(routes))}",
                key=("routes", next(iter(routes))),
            )
        return self
