"""combine: the state entering every segment and the final state, from what each segment makes of a zero state.

Part of the segmented plans only; of packed sequences it combines each one's own segments.
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
    packed: bool
    i_entry: str
    tokens: str
    slots: str
    cleared: str
    segmented: bool
    of_sequence: str


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
            packed=problem.packed,
            i_entry="i_entry" if problem.packed else "i_batch",
            tokens="tokens",
            slots=base.slots(problem),
            cleared=base.CLEARED,
            segmented=problem.segmented,
            of_sequence=" of the sequence" if problem.packed else "",
        )

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        if problem.packed:
            return (
                Scalar("tokens", "int32"),
                Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
                base.BEGIN,
                *base.OFFSETS,
                base.segment_states(problem),
                Array("chunk_decay", "float32", ("B", "H", "chunks"), "workspace"),
                base.chunk_states(problem),
                Array("final_states", "float32", ("N", "H", "P", "S"), "result"),
            )
        return (
            Array("initial_states", "float32", ("B", "H", "P", "S"), "caller"),
            Scalar("has_initial_states", "int32"),
            Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
            base.segment_states(problem),
            Array("chunk_decay", "float32", ("B", "H", "chunks"), "workspace"),
            Array("segment_inputs", problem.dtypes.chunk_state, ("B", "H", "segments", "P", "S8"), "workspace"),
            Array("final_states", "float32", ("B", "H", "P", "S"), "result"),
        )

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        context = self.context(schedule, problem)
        each = "entries" if problem.packed else "batch"
        return (f"{each} * {problem.shape.heads * context.state_tiles * context.head_dim_tiles}",)

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b = sympy.symbols("B", positive=True, integer=True)
        s, n = problem.shape, base.entered(problem) if problem.packed else problem.segments
        # a packed sequence starts from its initial state in its first segment, which nothing enters
        inputs = n - 1 if problem.packed else n
        head_state = s.heads * s.state * s.head_dim
        # the final state is written, and without packed sequences the initial one read here
        last = 4 if problem.packed else 4 + 4
        context = self.context(schedule, problem)
        per_head = inputs * context.state_tiles * context.head_dim_tiles
        return Cost(
            bytes=b * head_state * (4 * n + base.ITEM_BYTES[problem.dtypes.chunk_state] * inputs + last),
            flops=sympy.Integer(0),
            exponentials=b * s.heads * per_head,
        )


STAGE = Combine()
