"""state: the recurrent state at the start of every chunk, carried sequentially through the sequence or a segment.

It leaves the sum over segments to `combine` and the output to `output`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ssmgen.stages import base
from ssmgen.stages.base import Array, Cost, Parameter, Problem, Scalar


@dataclass(frozen=True)
class Schedule:
    """A block carries `state_tile` x `head_dim_tile` of one head's state; latencies are cuTile's load hints."""

    state_tile: int
    head_dim_tile: int
    occupancy: int
    x_latency: int
    b_latency: int


@dataclass(frozen=True)
class Context:
    """Free names of state.py.jinja."""

    title: str
    segmented: bool
    segments: int
    heads: int
    heads_per_group: int
    chunk: int
    state_tile: int
    state_tiles: int
    head_dim_tile: int
    head_dim_tiles: int
    occupancy: int
    x_latency: int
    b_latency: int
    chunk_state_dtype: str
    scaled_dtype: str
    x_to_scaled: str
    packed: bool
    i_entry: str
    kept: str
    tokens: str
    slots: str
    starts: str
    stored: str


def tiles(schedule: Schedule, problem: Problem) -> tuple[int, int]:
    """How many tiles cover the state axis and the head-dim axis."""
    s = problem.shape
    return -(-s.state // schedule.state_tile), -(-s.head_dim // schedule.head_dim_tile)


class State(base.Stage):
    name = "state"
    template = "mamba2/state.py.jinja"
    schedule = Schedule

    def derive(self, problem: Problem) -> Schedule:
        s = problem.shape
        # short loops want more loads in flight, long ones more blocks on a multiprocessor
        occupancy, latency = (2, 4) if problem.segmented else (3, 3)
        first = Schedule(
            state_tile=min(64, base.power_of_two(s.state)),
            head_dim_tile=base.dim_tile(s.head_dim, 64),
            occupancy=occupancy,
            x_latency=latency,
            b_latency=latency,
        )
        wishes = (replace(first, head_dim_tile=max(1, first.head_dim_tile >> n)) for n in range(4))
        served: Schedule = base.first_served(self, problem, wishes)
        return served

    def why_not(self, schedule: Schedule, problem: Problem) -> str | None:
        lengths = {"state_tile": problem.shape.state, "head_dim_tile": problem.shape.head_dim}
        refusal = (
            base.not_positive(schedule)
            or base.hint_refusal(schedule)
            or base.tile_refusal(schedule, lengths)
            or base.row_refusal(schedule.state_tile, problem.shape.state)
        )
        if refusal:
            return refusal
        width = base.ITEM_BYTES[problem.dtypes.x]
        need = problem.chunk * ((schedule.head_dim_tile + schedule.state_tile) * width + 8)
        if need > problem.target.smem_bytes:
            return (
                f"one chunk's tiles of x, B, dt and L need {need} bytes of shared memory, {problem.target.name} has "
                f"{problem.target.smem_bytes} a block; take a smaller chunk, state_tile or head_dim_tile"
            )
        return None

    def context(self, schedule: Schedule, problem: Problem) -> Context:
        state_tiles, head_dim_tiles = tiles(schedule, problem)
        scaled = base.scaled_dtype(problem.dtypes.x)
        return Context(
            title=problem.title,
            segmented=problem.segmented,
            segments=problem.segments,
            heads=problem.shape.heads,
            heads_per_group=problem.heads_per_group,
            chunk=problem.chunk,
            state_tile=schedule.state_tile,
            state_tiles=state_tiles,
            head_dim_tile=schedule.head_dim_tile,
            head_dim_tiles=head_dim_tiles,
            occupancy=schedule.occupancy,
            x_latency=schedule.x_latency,
            b_latency=schedule.b_latency,
            chunk_state_dtype=base.tile_dtype(problem.dtypes.chunk_state),
            scaled_dtype=scaled,
            x_to_scaled="" if problem.dtypes.x == "bfloat16" else f".astype({scaled})",
            packed=problem.packed,
            i_entry="i_entry" if problem.packed else "i_batch",
            kept="kept" if problem.packed else "ct.exp2(l_last)",
            tokens="x.shape[1]",
            slots=base.slots(problem),
            starts="starts & (has_initial_states != 0)" if problem.segmented else "has_initial_states != 0",
            stored="starts & stored" if problem.segmented else "stored",
        )

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        d = problem.dtypes
        inputs: tuple[Parameter, ...] = (
            Array("x", d.x, ("B", "T", "H", "P"), "caller"),
            Array("b", d.x, ("B", "T", "G", "S"), "caller"),
            Array("delta", "float32", ("B", "H", "padded"), "workspace"),
            Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
        )
        chunk_states = base.chunk_states(problem)
        if problem.segmented and not problem.packed:
            return (*inputs, chunk_states, base.segment_states(problem))
        # a state a row, or of packed sequences a state a sequence
        each = "N" if problem.packed else "B"
        last = Array("final_states", "float32", (each, "H", "P", "S"), "result")
        return (
            *inputs,
            *((base.BEGIN, *base.OFFSETS) if problem.packed else ()),
            Array("initial_states", "float32", (each, "H", "P", "S"), "caller"),
            Scalar("has_initial_states", "int32"),
            chunk_states,
            base.segment_states(problem) if problem.segmented else last,
        )

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        state_tiles, head_dim_tiles = tiles(schedule, problem)
        each = "entries" if problem.packed else "batch"
        rows = f"{each} * {problem.shape.heads * state_tiles * head_dim_tiles}"
        return (rows, str(problem.segments)) if problem.segmented else (rows,)

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        s, d, q = problem.shape, problem.dtypes, problem.chunk
        n = sympy.ceiling(t / q)
        head_state = s.state * s.head_dim
        state_tiles, head_dim_tiles = tiles(schedule, problem)
        read = b * t * base.ITEM_BYTES[d.x] * (s.heads * s.head_dim + s.groups * s.state) + 8 * b * s.heads * n * q
        # of packed sequences also the initial state of each: one a row
        states = n + int(problem.packed)
        written = b * s.heads * states * head_state * base.ITEM_BYTES[d.chunk_state]
        # a packed sequence stores only what it makes of the segments that it meets
        ends = b * s.heads * head_state * 4 * (base.entered(problem) if problem.packed else problem.segments)
        tile_area = state_tiles * schedule.state_tile * head_dim_tiles * schedule.head_dim_tile
        return Cost(
            bytes=read + written + ends,
            flops=2 * b * s.heads * n * q * tile_area,
            exponentials=b * s.heads * n * (q + 1) * state_tiles * head_dim_tiles,
        )


STAGE = State()
