"""How stages chain for an operator: plans, the routes that choose them, and schedules derived from the shape.

No GPU is asked: what is derived here starts a lock, and only a lock decides what is generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssmgen.ops.base import Route
from ssmgen.ops.mamba_chunk_scan_combined import PACKED_PLANS, Dtypes, Operator, Shape
from ssmgen.stages import STAGES, base
from ssmgen.stages.base import Problem, Stage
from ssmgen.targets import Target

CHUNKS = (16, 32, 64, 128, 256)
# two blocks on each of an H100's 132 multiprocessors: what a split sequence aims at
FULL_GPU = 264
# with fewer blocks than this a sequential state pass leaves so much of the GPU idle that splitting pays
FEW_BLOCKS = 96
MAX_SEGMENTS = 16
# beyond it the combine's chain of segments costs more than the parallelism gains
DERIVED_SEGMENTS = 8


@dataclass(frozen=True)
class Plan:
    """Stages in launch order; `segmented` where the sequence is split."""

    name: str
    stages: tuple[Stage, ...]
    segmented: bool

    @property
    def packed(self) -> bool:
        """Whether it serves calls with seq_idx or cu_seqlens."""
        return self.name in PACKED_PLANS


PLANS = {
    plan.name: plan
    for plan in (
        Plan("three_stage", (STAGES["cumsum"], STAGES["state"], STAGES["output"]), False),
        Plan("segmented", (STAGES["cumsum"], STAGES["state"], STAGES["combine"], STAGES["output"]), True),
        Plan("packed", (STAGES["cumsum"], STAGES["state"], STAGES["packed_output"]), False),
        Plan("packed_segmented", (STAGES["cumsum"], STAGES["state"], STAGES["combine"], STAGES["packed_output"]), True),
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


def problem(model: str, operator: Operator, target: Target, plan: Plan, schedule: PlanSchedule) -> Problem:
    """The generation-time problem of one route."""
    return Problem(
        model,
        operator.shape,
        operator.dtypes,
        operator.options,
        target,
        schedule.chunk,
        schedule.segments,
        plan.packed,
    )


def of_route(
    model: str, operator: Operator, target: Target, route: str, schedule: RouteSchedule
) -> tuple[Plan, Problem]:
    """A route's plan, and what its stages see under `schedule`."""
    plan = PLANS[operator.routes[route].plan]
    return plan, problem(model, operator, target, plan, schedule.plan)


def derive_routes(shape: Shape) -> dict[str, Route]:
    """First routes for a shape: where the state's tiles of all heads cannot fill the GPU, the sequence is split.

    Packed sequences have routes of their own: they are walked side by side, and where they are many that fills the GPU.
    """
    few = -(-FEW_BLOCKS // _state_tiles(shape))
    if shape.heads >= few:
        return {"all": Route(when="B >= 1", plan="three_stage"), "packed": Route(when="B >= 1", plan="packed")}
    return {
        "few_heads": Route(when=f"B*heads < {few}", plan="segmented"),
        "many_heads": Route(when=f"B*heads >= {few}", plan="three_stage"),
        "packed_few_heads": Route(when=f"N*heads < {few}", plan="packed_segmented"),
        "packed": Route(when=f"N*heads >= {few}", plan="packed"),
    }


def _state_tiles(shape: Shape) -> int:
    """Blocks a head's state takes in tiles of 64 x 64."""
    return -(-shape.state // 64) * -(-shape.head_dim // 64)


def derive(model: str, operator: Operator, route: str, target: Target) -> RouteSchedule:
    """A first schedule for `route` on `target`, from the shape alone."""
    plan = PLANS[operator.routes[route].plan]
    shared = _derive_plan(operator.shape, operator.dtypes, plan, target)
    this = problem(model, operator, target, plan, shared)
    return RouteSchedule(shared, tuple((stage.name, stage.derive(this)) for stage in plan.stages))


def _derive_plan(shape: Shape, dtypes: Dtypes, plan: Plan, target: Target) -> PlanSchedule:
    if plan.segmented:
        segments = base.power_of_two(-(-FULL_GPU // (shape.heads * _state_tiles(shape))))
        return PlanSchedule(64, max(2, min(segments, DERIVED_SEGMENTS)))
    # a longer chunk means fewer states to write and read, which is most of the traffic: measured on an H200, and so far
    # only there. Its tiles must fit, and a head dim that is no power of two already wastes part of every product
    wide = dtypes.x != "bfloat16" or shape.head_dim & (shape.head_dim - 1)
    return PlanSchedule(128 if target.name == "sm_90" and not wide else 64)


def why_not(schedule: RouteSchedule, plan: Plan, this: Problem) -> str | None:
    """Why `this.target` cannot serve the route's schedule, naming the stage; None if it can."""
    chunk, segments = schedule.plan.chunk, schedule.plan.segments
    if chunk not in CHUNKS:
        nearest = min(CHUNKS, key=lambda c: abs(c - chunk)) if isinstance(chunk, int) else CHUNKS[2]
        return f"plan: chunk = {chunk!r} must be one of {', '.join(map(str, CHUNKS))}; nearest: {nearest}"
    if type(segments) is not int or not 1 <= segments <= MAX_SEGMENTS:
        return f"plan: segments = {segments!r} must be a whole number from 1 to {MAX_SEGMENTS}"
    if plan.segmented != (segments > 1):
        takes = "at least 2" if plan.segmented else "1"
        return f"plan: segments = {segments} does not fit the plan {plan.name}, which takes {takes}"
    if segments & (segments - 1):
        lower = base.power_of_two(segments) // 2
        return f"plan: segments = {segments} must be a power of two; nearest: {lower} or {2 * lower}"
    for stage in plan.stages:
        reason = stage.why_not(schedule.stage(stage.name), this)
        if reason:
            return f"{stage.name}: {reason}"
    return None
