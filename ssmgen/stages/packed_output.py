"""packed_output: every token's output where several sequences may lie in a row, from the states of `state`.

One block of rows a chunk: the masks take the registers that a second one would need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ssmgen.stages import base, output
from ssmgen.stages.base import Cost, Parameter, Problem


@dataclass(frozen=True)
class Schedule:
    """A work item is a chunk of `heads_per_block` heads; `latency` is cuTile's load hint."""

    heads_per_block: int
    head_dim_tile: int
    occupancy: int
    latency: int


@dataclass(frozen=True)
class Context:
    """Free names of packed_output.py.jinja."""

    title: str
    skip_formula: str
    skip: bool
    skip_by_channel: bool
    gate: bool
    heads: int
    heads_per_group: int
    heads_per_block: int
    chunk: int
    state_tile: int
    head_dim_tile: int
    head_dim_tiles: int
    occupancy: int
    latency: int
    x_dtype: str
    scaled_dtype: str
    to_cb: str
    c_to_h: str
    h_to_operand: str
    x_to_scaled: str
    segmented: bool
    segments: int
    in_segments: str
    slots: str
    cleared: str
    inputs: str
    entered: str


class PackedOutput(base.Stage):
    name = "packed_output"
    template = "mamba2/packed_output.py.jinja"
    schedule = Schedule

    def derive(self, problem: Problem) -> Schedule:
        whole: output.Schedule = output.STAGE.derive(problem)
        first = Schedule(whole.heads_per_block, whole.head_dim_tile, whole.occupancy, whole.latency)
        served: Schedule = base.first_served(self, problem, _smaller(first))
        return served

    def why_not(self, schedule: Schedule, problem: Problem) -> str | None:
        return output.STAGE.why_not(_whole(schedule, problem), problem)

    def context(self, schedule: Schedule, problem: Problem) -> Context:
        whole = output.STAGE.context(_whole(schedule, problem), problem)
        own: dict[str, Any] = {
            "in_segments": " h includes what entered its segment." if problem.segmented else "",
            "slots": base.slots(problem),
            "cleared": base.CLEARED,
            "inputs": "chunk_states",
            "entered": "y" if problem.segmented else "none",
        }
        names = Context.__dataclass_fields__.keys() - own
        return Context(**own, **{name: getattr(whole, name) for name in names})

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        *inputs, out = output.STAGE.parameters(problem)
        states = base.chunk_states(problem)
        # what enters a segment stands among the chunks' states
        inputs = [p for p in inputs if p.name not in (states.name, "segment_inputs")]
        return (*inputs, base.BEGIN, base.ENTRY, states, out)

    def grid(self, schedule: Schedule, problem: Problem) -> tuple[str, ...]:
        return output.STAGE.grid(_whole(schedule, problem), problem)

    def cost(self, schedule: Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        cost = output.STAGE.cost(_whole(schedule, problem), problem)
        # begin and entry; no sequence that starts inside a chunk brings a state, and none enters the first segment
        moved = cost.bytes + 8 * b * problem.chunk * sympy.ceiling(t / problem.chunk)
        if problem.segmented:
            s, width = problem.shape, base.ITEM_BYTES[problem.dtypes.chunk_state]
            moved -= b * s.heads * s.state * s.head_dim * width
        return replace(cost, bytes=moved)


def _whole(schedule: Schedule, problem: Problem) -> output.Schedule:
    """The schedule of `output` with a chunk's rows in one block, which asks as much of the target."""
    return output.Schedule(
        rows=problem.chunk,
        heads_per_block=schedule.heads_per_block,
        head_dim_tile=schedule.head_dim_tile,
        occupancy=schedule.occupancy,
        latency=schedule.latency,
    )


def _smaller(first: Schedule) -> Iterator[Schedule]:
    """From the first wish down to what every target serves."""
    dim = first.head_dim_tile
    while dim >= min(16, first.head_dim_tile):
        yield replace(first, head_dim_tile=dim)
        dim //= 2


STAGE = PackedOutput()
