"""packed_output: every token's output where several sequences may lie in a row, from the states of `state`.

It takes a chunk as `output` does, and the same schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    cleared: float
    inputs: str
    entered: str
    in_rows: str
    since_m: str


class PackedOutput(base.Stage):
    name = "packed_output"
    template = "mamba2/packed_output.py.jinja"
    schedule = output.Schedule

    def derive(self, problem: Problem) -> output.Schedule:
        return output.STAGE.derive(problem)

    def why_not(self, schedule: output.Schedule, problem: Problem) -> str | None:
        return output.STAGE.why_not(schedule, problem)

    def context(self, schedule: output.Schedule, problem: Problem) -> Context:
        whole = output.STAGE.context(schedule, problem)
        own = {
            "in_segments": " h includes what entered its segment." if problem.segmented else "",
            "slots": base.slots(problem),
            "cleared": base.CLEARED,
            "inputs": "chunk_states",
            "entered": "y" if problem.segmented else "none",
            # `begin` counts from the first token of the chunk
            "in_rows": " - (i_rows - i_before) * ROWS" if whole.halves else "",
            "since_m": " - l_m" if whole.halves else "",
        }
        names = Context.__dataclass_fields__.keys() - own
        return Context(**own, **{name: getattr(whole, name) for name in names})

    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        *inputs, out = output.STAGE.parameters(problem)
        states = base.chunk_states(problem)
        before, after = inputs[: inputs.index(states)], inputs[inputs.index(states) + 1 :]
        # what enters a segment stands among the chunks' states
        decay = [array for array in after if array.name != "segment_inputs"]
        return (*before, base.BEGIN, base.ENTRY, *decay, states, out)

    def grid(self, schedule: output.Schedule, problem: Problem) -> tuple[str, ...]:
        return output.STAGE.grid(schedule, problem)

    def cost(self, schedule: output.Schedule, problem: Problem) -> Cost:
        import sympy

        b, t = sympy.symbols("B T", positive=True, integer=True)
        cost = output.STAGE.cost(schedule, problem)
        # begin and entry; no sequence that starts inside a chunk brings a state
        padded = problem.chunk * sympy.ceiling(t / problem.chunk)
        return replace(cost, bytes=cost.bytes + 8 * b * padded)


STAGE = PackedOutput()
