"""combine: the state entering every segment and the final state, from what each segment makes of a zero state.

Part of the segmented plan only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ssmgen.stages import base
from ssmgen.stages.base import Array, Cost, Parameter, Problem, Scalar


@dataclass(frozen=True)
class Schedule:
    """A block combines `state_tile` x `head_dim_tile` of one head's state over all segments."""

    state_tile: int
    head_dim_tile: int
    occupancy: int


@dataclass(frozen=True)
class Context:
    """Free names of combine.py.jinja."""

    title: str
    segments: int
    chunk: int
    heads: int
    state_tile: int
    state_tiles: int
    head_dim_tile: int
    head_dim_tiles: int
    occupancy: int
    chunk_state_dtype: str


class Combine(base.Stage):
    name = "combine"
    template = "mamba2/combine.py.jinja"
    schedule = Schedule

    def derive(self, problem: Problem) -> Schedule:
        s = problem.shape
        return Schedule(
            state_tile=min(128, base.power_of_two(s.state)),
            head_dim_tile=min(8, base.power_of_two(s.head_dim)),
            occupancy=4,
        )

    def why_not(self, schedule: Schedule, problem: Problem) -> str | None:
        return (
            base.not_positive(schedule)
            or base.hint_refusal(schedule)
            or base.tile_refusal(schedule, {"state_tile": problem.shape.state, "head_dim_tile": problem.shape.head_dim})
            or base.row_refusal(schedule.state_tile, problem.shape.state)
        )

    def context(self, schedule: Schedule, problem: Problem) -> Context:
        return Context(
            title=problem.title,
            segments=problem.segments,
            chunk=problem.chunk,
            heads=problem.shape.heads,
            state_tile=schedule.state_tile,
            state_tiles=-(-problem.shape.state // schedule.state_tile),
            head_dim_tile=schedule.head_dim_tile,
            head_dim_tiles=-(-problem.shape.head_dim // schedule.head_dim_tile),
            occupancy=schedule.occupancy,
            chunk_state_dtype=base.tile_dtype(problem.dtypes.chunk_state),
        )

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        return (
            Array("initial_states", "float32", ("B", "H", "P", "S"), "caller"),
            Scalar("has_initial_states", "int32"),
            Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
            Array("segment_states", "float32", ("B", "H", "segments", "P", "S8"), "workspace"),
            Array("chunk_decay", "float32", ("B", "H", "chunks"), "workspace"),
            Array("segment_inputs", problem.dtypes.chunk_state, ("B", "H", "segments", "P", "S8"), "workspace"),
            Array("final_states", "float32", ("B", "H", "P", "S"), "result"),
        )

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        context = self.context(schedule, problem)
        return (f"batch * {problem.shape.heads * context.state_tiles * context.head_dim_tiles}",)

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b = sympy.symbols("B", positive=True, integer=True)
        s, n = problem.shape, problem.segments
        head_state = s.heads * s.state * s.head_dim
        context = self.context(schedule, problem)
        per_head = n * context.state_tiles * context.head_dim_tiles
        return Cost(
            bytes=b * head_state * (4 * n + base.ITEM_BYTES[problem.dtypes.chunk_state] * n + 4 + 4),
            flops=sympy.Integer(0),
            exponentials=b * s.heads * per_head,
        )


STAGE = Combine()
