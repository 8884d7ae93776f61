"""output: every token's output from its chunk's starting state and the tokens before it in the chunk.

C B^T is computed once for the heads of a group that share it; it decides no plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmgen.stages import base
from ssmgen.stages.base import Array, Cost, Parameter, Problem


@dataclass(frozen=True)
class Schedule:
    """A block works a chunk in blocks of `rows` tokens for `heads_per_block` heads, `head_dim_tile` at a time."""

    rows: int
    heads_per_block: int
    head_dim_tile: int
    occupancy: int
    latency: int


@dataclass(frozen=True)
class Context:
    """Free names of output.py.jinja."""

    title: str
    skip_formula: str
    skip: bool
    segmented: bool
    segments: int
    heads: int
    heads_per_group: int
    heads_per_block: int
    chunk: int
    rows: int
    halves: bool
    keep_loop: bool
    state_tile: int
    head_dim_tile: int
    head_dim_tiles: int
    occupancy: int
    latency: int
    x_dtype: str
    scaled_dtype: str
    to_cb: str
    before_to_kept: str
    c_to_h: str
    h_to_operand: str
    x_to_scaled: str
    gate: bool
    skip_by_channel: bool
    inputs: str
    paired: str


class Output(base.Stage):
    name = "output"
    template = "mamba2/output.py.jinja"
    schedule = Schedule

    def derive(self, problem: Problem) -> Schedule:
        # where the sequence is split there are few heads, so fewer of them go to a block
        heads = 4 if problem.segmented else 8
        dim = base.dim_tile(problem.shape.head_dim, 128)
        first = Schedule(
            rows=min(64, problem.chunk),
            heads_per_block=_divisor(problem.heads_per_group, heads),
            head_dim_tile=dim,
            occupancy=2,
            # a higher latency buffers more tiles; a second block of rows leaves no shared memory for it
            latency=4 if dim > 64 else 3 if problem.chunk <= 64 else 1,
        )
        wishes = (replace(first, rows=rows, head_dim_tile=dim) for rows, dim in _smaller(first, problem.chunk))
        served: Schedule = base.first_served(self, problem, wishes)
        return served

    def why_not(self, schedule: Schedule, problem: Problem) -> str | None:
        refusal = (
            base.not_positive(schedule)
            or base.hint_refusal(schedule)
            or base.not_power_of_two(schedule, ("rows",))
            or base.tile_refusal(schedule, {"head_dim_tile": problem.shape.head_dim})
        )
        if refusal:
            return refusal
        if problem.chunk not in (schedule.rows, 2 * schedule.rows):
            return f"rows = {schedule.rows} must be the chunk, {problem.chunk}, or half of it, {problem.chunk // 2}"
        if problem.heads_per_group % schedule.heads_per_block:
            return (
                f"heads_per_block = {schedule.heads_per_block} must divide the {problem.heads_per_group} heads of a "
                f"group, which share C B^T; nearest: {_divisor(problem.heads_per_group, schedule.heads_per_block)}"
            )
        need = self._shared_bytes(schedule, problem)
        if need > problem.target.smem_bytes:
            return (
                f"one work item's tiles of B, C, x and the state need {need} bytes of shared memory, "
                f"{problem.target.name} has {problem.target.smem_bytes} a block; take smaller rows or head_dim_tile"
            )
        return None

    @staticmethod
    def _shared_bytes(schedule: Schedule, problem: Problem) -> int:
        """B and C of the rows, the state, and x of every block of the chunk: what must be there at once."""
        width = base.ITEM_BYTES[problem.dtypes.x]
        state_tile = base.power_of_two(problem.shape.state)
        shared = 2 * schedule.rows * state_tile * width
        shared += state_tile * schedule.head_dim_tile * base.ITEM_BYTES[problem.dtypes.chunk_state]
        return shared + problem.chunk * (schedule.head_dim_tile * width + 8)

    def context(self, schedule: Schedule, problem: Problem) -> Context:
        s, x = problem.shape, problem.dtypes.x
        scaled = base.scaled_dtype(x)
        return Context(
            title=problem.title,
            skip_formula=" + D * x_i" if problem.options.D != "none" else "",
            skip=problem.options.D != "none",
            segmented=problem.segmented,
            segments=problem.segments,
            heads=s.heads,
            heads_per_group=problem.heads_per_group,
            heads_per_block=schedule.heads_per_block,
            chunk=problem.chunk,
            rows=schedule.rows,
            halves=problem.chunk == 2 * schedule.rows,
            # without bulk copies every load is spelt out, in each of the loop's copies
            keep_loop=not problem.target.tma,
            state_tile=base.power_of_two(s.state),
            head_dim_tile=schedule.head_dim_tile,
            head_dim_tiles=-(-s.head_dim // schedule.head_dim_tile),
            occupancy=schedule.occupancy,
            latency=schedule.latency,
            x_dtype=base.tile_dtype(x),
            scaled_dtype=scaled,
            # fp32 operands would run on CUDA cores
            to_cb=".astype(ct.tfloat32)" if x == "float32" else "",
            # half the registers while the heads take their turns; elsewhere the digits matter more
            before_to_kept=".astype(ct.bfloat16)" if x == "bfloat16" else "",
            c_to_h="" if x == "bfloat16" else f".astype({scaled})",
            h_to_operand=f".astype({scaled})" if f"ct.{problem.dtypes.chunk_state}" != scaled else "",
            x_to_scaled="" if x == "bfloat16" else f".astype({scaled})",
            gate=problem.options.z != "none",
            skip_by_channel=problem.options.D == "per_channel",
            inputs="segment_inputs",
            paired="i_before < i_rows",
        )

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        d = problem.dtypes
        d_axes = {"none": None, "per_head": ("H",), "per_channel": ("H", "P")}[problem.options.D]
        skip = (Array("d", "float32", d_axes, "caller"),) if d_axes else ()
        gate = (Array("z", d.x, ("B", "T", "H", "P"), "caller"),) if problem.options.z != "none" else ()
        segments: tuple[Parameter, ...] = ()
        if problem.segmented:
            segments = (
                Array("chunk_decay", "float32", ("B", "H", "chunks"), "workspace"),
                Array("segment_inputs", d.chunk_state, ("B", "H", "segments", "P", "S8"), "workspace"),
            )
        return (
            Array("x", d.x, ("B", "T", "H", "P"), "caller"),
            Array("b", d.x, ("B", "T", "G", "S"), "caller"),
            Array("c", d.x, ("B", "T", "G", "S"), "caller"),
            *skip,
            *gate,
            Array("delta", "float32", ("B", "H", "padded"), "workspace"),
            Array("log_decay", "float32", ("B", "H", "padded"), "workspace"),
            base.chunk_states(problem),
            *segments,
            Array("out", d.x, ("B", "T", "H", "P"), "result"),
        )

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        per_chunk = problem.shape.heads // schedule.heads_per_block * (problem.chunk // schedule.rows)
        return (f"min(batch * n_chunks * {per_chunk}, n_sms * {schedule.occupancy})",)

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        s, d, r = problem.shape, problem.dtypes, schedule.rows
        n, n_chunks, blocks = sympy.ceiling(t / r), sympy.ceiling(t / problem.chunk), problem.chunk // r
        # a short sequence leaves its last segments without a chunk, and what enters them unread
        states = n_chunks + (base.entered(problem) if problem.segmented else 0)
        gate = problem.options.z != "none"
        moved = b * t * base.ITEM_BYTES[d.x] * ((2 + gate) * s.heads * s.head_dim + 2 * s.groups * s.state)
        moved += 8 * b * s.heads * n_chunks * problem.chunk
        moved += b * s.heads * states * s.state * s.head_dim * base.ITEM_BYTES[d.chunk_state]
        state, dim = base.power_of_two(s.state), schedule.head_dim_tile
        steps = s.heads * -(-s.head_dim // dim)
        shared = s.heads // schedule.heads_per_block * blocks * 2 * r * r * state
        per_step = (2 if problem.segmented else 1) * 2 * r * state * dim + blocks * 2 * r * r * dim
        # decays between the rows, of the rows, of the chunk's first half, and since the segment's start; of the gate
        exponentials = r * r + r + (r + 1 if blocks > 1 else 0) + problem.segmented + gate * r * dim
        return Cost(bytes=moved, flops=b * n * (shared + steps * per_step), exponentials=b * n * steps * exponentials)


def _smaller(first: Schedule, chunk: int) -> Iterator[tuple[int, int]]:
    """(rows, head_dim_tile) from the first wish down to what every target serves."""
    for rows in (first.rows, chunk // 2):
        dim = first.head_dim_tile
        while dim >= min(16, first.head_dim_tile):
            yield rows, dim
            dim //= 2


def _divisor(n: int, at_most: int) -> int:
    """The largest divisor of n that is at most `at_most`."""
    return max(k for k in range(1, min(n, at_most) + 1) if n % k == 0)


STAGE = Output()
