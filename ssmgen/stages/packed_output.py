"""packed_output: every token's output where several sequences may lie in a row, from the states of `state`.

It takes a chunk as `output` does, and the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ssmgen.stages import base, output
from ssmgen.stages.base import Cost, Parameter, Problem


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
    rows: int
    halves: bool
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
    segmented: bool
    segments: int
    in_segments: str
    slots: str
    cleared: str
    inputs: str
    entered: str
    in_rows: str
    since_m: str
    one_loop: bool
    paired: str


class PackedOutput(base.Stage):
    name = "packed_output"
    template = "mamba2/packed_output.py.jinja"
    schedule = output.Schedule

    def derive(self, problem: Problem) -> output.Schedule:
        schedule: output.Schedule = output.STAGE.derive(problem)
        if _is_wide(problem):
            # room for copies ahead: 160 instead of 189 us on an H200 with P = 128, S = 256
            schedule = replace(schedule, head_dim_tile=min(schedule.head_dim_tile, 64), occupancy=1, latency=1)
        return schedule

    def why_not(self, schedule: output.Schedule, problem: Problem) -> str | None:
        return output.STAGE.why_not(schedule, problem)

    def context(self, schedule: output.Schedule, problem: Problem) -> Context:
        whole = output.STAGE.context(schedule, problem)
        own: dict[str, Any] = {
            "in_segments": " h includes what entered its segment." if problem.segmented else "",
            "slots": base.slots(problem),
            "cleared": base.CLEARED,
            "inputs": "chunk_states",
            "entered": "y" if problem.segmented else "none",
            # `begin` counts from the first token of the chunk
            "in_rows": " - (i_rows - i_before) * ROWS" if whole.halves else "",
            "since_m": " - l_m" if whole.halves else "",
            "one_loop": _is_wide(problem),
            "paired": "row >= start_m",
        }
        names = Context.__dataclass_fields__.keys() - own
        return Context(**own, **{name: getattr(whole, name) for name in names})

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        *inputs, out = output.STAGE.parameters(problem)
        states = base.chunk_states(problem)
        # what enters a segment stands among the chunks' states
        inputs = [p for p in inputs if p.name not in (states.name, "segment_inputs")]
        return (*inputs, base.BEGIN, base.ENTRY, states, out)

    def grid(self, schedule: output.Schedule, problem: Problem) -> tuple[str, ...]:
        return output.STAGE.grid(schedule, problem)

    def cost(self, schedule: output.Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        cost = output.STAGE.cost(schedule, problem)
        # begin and entry; no sequence that starts inside a chunk brings a state, and none enters the first segment
        moved = cost.bytes + 8 * b * problem.chunk * sympy.ceiling(t / problem.chunk)
        if problem.segmented:
            s, width = problem.shape, base.ITEM_BYTES[problem.dtypes.chunk_state]
            moved -= b * s.heads * s.state * s.head_dim * width
        return replace(cost, bytes=moved)


def _is_wide(problem: Problem) -> bool:
    """Whether a tile of states is so wide that two loops over the heads would each keep room for it."""
    return base.power_of_two(problem.shape.state) > 128


STAGE = PackedOutput()
