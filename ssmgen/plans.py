"""How stages chain for an operator: plans, the routes that choose them, and schedules derived from the shape.

No GPU is asked: what is derived here starts a lock, and only a lock decides what is generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssmgen.ops.base import Route
from ssmgen.ops.mamba_chunk_scan_combined import Dtypes, Operator, Options, Shape
from ssmgen.stages import STAGES, base
from ssmgen.stages.base import Problem, Stage
from ssmgen.targets import Target

CHUNKS = (16, 32, 64, 128, 256)
# two blocks on each of an H100's 132 multiprocessors: below it a sequential state pass leaves the GPU idle
FULL_GPU = 264
MAX_SEGMENTS = 16
# beyond it the combine's chain of segments costs more than the parallelism gains
DERIVED_SEGMENTS = 8


@dataclass(frozen=True)
class Plan:
    """Stages in launch order; `segmented` where the sequence is split."""

    name: str
    stages: tuple[Stage, ...]
    segmented: bool


PLANS = {
    plan.name: plan
    for plan in (
        Plan("three_stage", (STAGES["cumsum"], STAGES["state"], STAGES["output"]), False),
        Plan("segmented", (STAGES["cumsum"], STAGES["state"], STAGES["combine"], STAGES["output"]), True),
    )
}


@dataclass(frozen=True)
class PlanSchedule:
    """What a route's stages share: tokens a chunk, and how many segments the sequence is split into."""

    chunk: int
    segments: int = 1


@dataclass(frozen=True)
class RouteSchedule:
    """The schedules of one route on one target: the plan's, and (stage name, schedule) in launch order."""

    plan: PlanSchedule
    stages: tuple[tuple[str, Any], ...]

    def stage(self, name: str) -> Any:
        """The schedule of the stage called `name`."""
        return dict(self.stages)[name]


def problem(model: str, operator: Operator, target: Target, schedule: PlanSchedule) -> Problem:
    """The generation-time problem of one route."""
    return Problem(model, operator.shape, operator.dtypes, operator.options, target, schedule.chunk, schedule.segments)


def derive_routes(shape: Shape) -> dict[str, Route]:
    """First routes for a shape: where B*H alone cannot fill the GPU the sequence is split."""
    routes = {"short": Route(when="B*T <= 4096", plan="segmented")}
    if shape.heads < 128:
        routes["few_heads"] = Route(when="B*heads < 128", plan="segmented")
    routes["long"] = Route(when="B*T > 4096", plan="three_stage")
    return routes


def derive(model: str, operator: Operator, route: str, target: Target) -> RouteSchedule:
    """A first schedule for `route` on `target`, from the shape alone."""
    plan = PLANS[operator.routes[route].plan]
    shared = _derive_plan(operator.shape, operator.dtypes, plan, route)
    this = problem(model, operator, target, shared)
    return RouteSchedule(shared, tuple((stage.name, stage.derive(this)) for stage in plan.stages))


def _derive_plan(shape: Shape, dtypes: Dtypes, plan: Plan, route: str) -> PlanSchedule:
    # a longer chunk means fewer states to write and read, which is most of the traffic; short prompts are bound by
    # latency instead, and fp32 tiles are twice as large
    chunk = 64 if route == "short" or dtypes.x != "bfloat16" else 128
    if not plan.segmented:
        return PlanSchedule(chunk)
    blocks = shape.heads * -(-shape.state // 64) * -(-shape.head_dim // 64)
    segments = base.power_of_two(-(-FULL_GPU // blocks))
    return PlanSchedule(chunk, max(2, min(segments, 4 if route == "short" else DERIVED_SEGMENTS)))


def why_not(schedule: RouteSchedule, plan: Plan, this: Problem) -> str | None:
    """Why `this.target` cannot serve the route's schedule, naming the stage; None if it can."""
    chunk, segments = schedule.plan.chunk, schedule.plan.segments
    if chunk not in CHUNKS:
        nearest = min(CHUNKS, key=lambda c: abs(c - chunk)) if isinstance(chunk, int) else CHUNKS[2]
        return f"plan: chunk = {chunk!r} must be one of {', '.join(map(str, CHUNKS))}; nearest: {nearest}"
    if type(segments) is not int or not 1 <= segments <= MAX_SEGMENTS:
        return f"plan: segments = {segments!r} must be a whole number from 1 to {MAX_SEGMENTS}"
    if plan.segmented != (segments > 1):
        return f"plan: segments = {segments} does not fit the plan {plan.name}, which takes {'at least 2' if plan.segmented else '1'}"
    for stage in plan.stages:
        reason = stage.why_not(schedule.stage(stage.name), this)
        if reason:
            return f"{stage.name}: {reason}"
    return None


__all__ = [
    "PLANS",
    "Dtypes",
    "Options",
    "Plan",
    "PlanSchedule",
    "RouteSchedule",
    "derive",
    "derive_routes",
    "problem",
    "why_not",
]
