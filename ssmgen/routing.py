"""One route of a generated package, as Python text: its condition, workspaces and launches.

Stages say what their kernels take, plans in what order they run; this puts the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssmgen import conditions, plans
from ssmgen.breaking import Item, call
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import Plan, RouteSchedule
from ssmgen.spec import Spec
from ssmgen.stages.base import Array, Problem, Stage, round_up
from ssmgen.targets import target

# kernel parameter -> host expression, where they differ
_ARGUMENTS = {"a": "A", "b": "B", "c": "C", "d": "D"}


@dataclass(frozen=True)
class Text:
    """One route of one target, as text."""

    name: str
    target: str
    when: str
    condition: str
    function: str
    definition: str
    stages: str
    chunk: int
    packed: bool
    imports: tuple[tuple[str, str], ...]
    workspaces: tuple[str, ...]
    launches: tuple[str, ...]


def text(spec: Spec, target_name: str, route: str, schedule: RouteSchedule, given: Sequence[str]) -> Text:
    """The route of a target; `given` is what `forward` is given of a call. The spec must have the operator."""
    operator = spec.operators.mamba_chunk_scan_combined
    assert operator is not None
    when = operator.routes[route].when
    plan, problem = plans.of_route(spec.model.name, operator, target(target_name), route, schedule)
    prefix = f"{route}_" if len(spec.targets) == 1 else f"{target_name}_{route}_"
    names = {
        "B": "batch",
        "T": "tokens",
        "N": "entries",
        "heads": "HEADS",
        "groups": "GROUPS",
        "head_dim": "HEAD_DIM",
        "state": "STATE",
    }
    return Text(
        name=route,
        target=target_name,
        when=("seq_idx or cu_seqlens given and " if plan.packed else "") + when,
        condition=_condition(conditions.python(when, names), operator, plan),
        function=f"_{prefix}route",
        definition=call(f"def _{prefix}route(", ["n_sms", *given, "out", "final_states"], "):"),
        stages=" -> ".join(stage.name for stage in plan.stages),
        chunk=problem.chunk,
        packed=plan.packed,
        imports=tuple((stage.name, f"{prefix}{stage.name}") for stage in plan.stages),
        workspaces=_workspaces(plan.stages, problem),
        launches=tuple(_launch(stage, schedule, problem, prefix) for stage in plan.stages),
    )


def _condition(when: str, operator: mamba2.Operator, plan: Plan) -> str:
    """The route's own condition, after whether sequences are packed where a model knows both."""
    if not operator.options.packed:
        return when
    return f"{'packed' if plan.packed else 'not packed'} and {f'({when})' if ' or ' in when else when}"


def _workspaces(stages: tuple[Stage, ...], problem: Problem) -> tuple[str, ...]:
    sizes = {
        "B": "batch",
        "H": "HEADS",
        "P": "HEAD_DIM",
        # rows of whole 16 bytes, as a bulk copy wants them
        "S8": "STATE" if problem.shape.state % 8 == 0 else str(round_up(problem.shape.state, 8)),
        "chunks": "n_chunks",
        # behind its chunks a row's sequences have a slot each, and its segments
        "slots": "n_chunks + entries // batch" + (f" + {problem.segments}" if problem.segmented else ""),
        "met": f"{problem.segments - 1} + entries // batch",
        "padded": f"n_chunks * {problem.chunk}",
        "segments": str(problem.segments),
    }
    found: dict[str, str] = {}
    for stage in stages:
        for parameter in stage.parameters(problem):
            if isinstance(parameter, Array) and parameter.owner == "workspace":
                items: list[Item] = [tuple(sizes[a] for a in parameter.axes), f"torch.{parameter.dtype}", "x.device"]
                found[parameter.name] = call(f"{parameter.name} = allocate(", items, indent=4)
    return tuple(found.values())


def _launch(stage: Stage, schedule: RouteSchedule, problem: Problem, prefix: str) -> str:
    grid = stage.grid(schedule.stage(stage.name), problem)
    arguments = tuple(_ARGUMENTS.get(p.name, p.name) for p in stage.parameters(problem))
    kernel = f"{prefix}{stage.name}.{stage.name}"
    items: list[Item] = ["stream", grid if len(grid) > 1 else f"({grid[0]},)", kernel, arguments]
    return call("ct.launch(", items, indent=4)
