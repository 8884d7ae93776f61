"""cumsum: dt' = clamp(softplus(dt + dt_bias)) and the in-chunk cumulative log2 decay L, per head.

It decides no plan; the maths are OPS's chunked form (Dao and Gu 2024, section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from ssmgen.stages import base
from ssmgen.stages.base import Array, Cost, Parameter, Problem, Scalar

MIN_LOG2_DECAY = -126.0


@dataclass(frozen=True)
class Schedule:
    """`head_tile` heads a block."""

    head_tile: int
    occupancy: int


@dataclass(frozen=True)
class Context:
    """Free names of cumsum.py.jinja."""

    title: str
    dt_formula: str
    min_log2_decay: float
    chunk: int
    head_tile: int
    occupancy: int
    dt_bias: bool
    dt_softplus: bool
    dt_limit: bool
    at_least_zero: bool
    packed: bool
    of_sequence: str


class Cumsum(base.Stage):
    name = "cumsum"
    template = "mamba2/cumsum.py.jinja"
    schedule = Schedule

    def derive(self, problem: Problem) -> Schedule:
        return Schedule(head_tile=min(8, base.power_of_two(problem.shape.heads)), occupancy=4)

    def why_not(self, schedule: Schedule, problem: Problem) -> str | None:
        return (
            base.not_positive(schedule)
            or base.hint_refusal(schedule)
            or base.tile_refusal(schedule, {"head_tile": problem.shape.heads})
        )

    def context(self, schedule: Schedule, problem: Problem) -> Context:
        o = problem.options
        return Context(
            title=problem.title,
            dt_formula=base.step_formula(o, "dt_min, dt_max"),
            min_log2_decay=MIN_LOG2_DECAY,
            chunk=problem.chunk,
            head_tile=schedule.head_tile,
            occupancy=schedule.occupancy,
            dt_bias=o.dt_bias,
            dt_softplus=o.dt_softplus,
            dt_limit=o.dt_limit != "none",
            at_least_zero=base.at_least_zero(o),
            packed=problem.packed,
            of_sequence=" of the same sequence" if problem.packed else "",
        )

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        o = problem.options
        bias = (Array("dt_bias", "float32", ("H",), "caller"),) if o.dt_bias else ()
        limit = (Scalar("dt_min", "float32"), Scalar("dt_max", "float32")) if o.dt_limit != "none" else ()
        sequences: tuple[Parameter, ...] = ()
        if problem.packed:
            sequences = (
                Array("seq_idx", "int32", ("B", "T"), "caller"),
                Scalar("has_seq_idx", "int32"),
                *base.OFFSETS,
                Scalar("has_initial_states", "int32"),
            )
        return (
            Array("dt", problem.dtypes.dt, ("B", "T", "H"), "caller"),
            Array("a", "float32", ("H",), "caller"),
            *bias,
            *limit,
            *sequences,
            Array("delta", "float32", ("B", "H", "padded"), "workspace"),
            Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
            *((base.BEGIN, base.ENTRY) if problem.packed else ()),
        )

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        return ("n_chunks", str(-(-problem.shape.heads // schedule.head_tile)), "batch")

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        padded = problem.chunk * sympy.ceiling(t / problem.chunk)
        heads = problem.shape.heads
        tiled = base.round_up(heads, schedule.head_tile)
        width = base.ITEM_BYTES[problem.dtypes.dt]
        # seq_idx is read, begin and entry are written
        sequences = b * (4 * t + 8 * padded) if problem.packed else 0
        return Cost(
            bytes=b * heads * (t * width + 2 * padded * 4) + sequences,
            flops=sympy.Integer(0),
            exponentials=b * tiled * padded if problem.options.dt_softplus else sympy.Integer(0),
        )


STAGE = Cumsum()
