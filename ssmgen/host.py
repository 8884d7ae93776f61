"""The host side of a generated package: which checks, routes, workspaces and launches host.py.jinja prints.

Stages say what their kernels take, plans in what order they run; this puts the two into Python text. It writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssmgen import conditions, plans
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import PLANS, RouteSchedule
from ssmgen.spec import Spec
from ssmgen.stages.base import Array, Problem, Stage, round_up, step_formula
from ssmgen.targets import target

LINE = 120
# kernel parameter -> host expression, where they differ
_ARGUMENTS = {"a": "A", "b": "B", "c": "C", "d": "D"}


@dataclass(frozen=True)
class RouteText:
    """One route of one target, as text."""

    name: str
    target: str
    when: str
    condition: str
    function: str
    stages: str
    chunk: int
    imports: tuple[tuple[str, str], ...]
    workspaces: tuple[tuple[str, str, str], ...]
    launches: tuple[str, ...]


@dataclass(frozen=True)
class Context:
    """Free names of host.py.jinja."""

    title: str
    heads: int
    groups: int
    head_dim: int
    state: int
    x_dtype: str
    dt_dtype: str
    skip: bool
    dt_bias: bool
    dt_softplus: bool
    dt_limit: bool
    skip_formula: str
    dt_formula: str
    vectors: str
    optional_tensors: str
    routes: tuple[RouteText, ...]


@dataclass(frozen=True)
class ArgumentsContext:
    """Free names of arguments.py.jinja."""

    title: str
    targets: str


def files(spec: Spec, lock: Lock) -> tuple[tuple[str, str, Any], ...]:
    """The package's files beside the kernels: (path in generated/<model>/, template, context)."""
    return (
        ("__init__.py", "host.py.jinja", context(spec, lock)),
        ("_arguments.py", "arguments.py.jinja", arguments_context(spec)),
    )


def context(spec: Spec, lock: Lock) -> Context:
    """What host.py.jinja needs for `spec` under `lock`; the spec must have mamba_chunk_scan_combined."""
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        raise ValueError(f"{spec.model.name} has no {mamba2.NAME}")
    shape, options = operator.shape, operator.options
    routes = tuple(
        _route(spec, name, route, lock[name, mamba2.NAME, route].schedule)
        for name in spec.targets
        for route in operator.routes
    )
    skip, bias = options.D == "per_head", options.dt_bias
    named = [name for name, used in (("D", skip), ("dt_bias", bias)) if used]
    first = next(iter(operator.routes))
    problem = plans.problem(
        spec.model.name, operator, target(spec.targets[0]), lock[spec.targets[0], mamba2.NAME, first].schedule.plan
    )
    return Context(
        title=problem.title,
        heads=shape.heads,
        groups=shape.groups,
        head_dim=shape.head_dim,
        state=shape.state,
        x_dtype=operator.dtypes.x,
        dt_dtype=operator.dtypes.dt,
        skip=skip,
        dt_bias=bias,
        dt_softplus=options.dt_softplus,
        dt_limit=options.dt_limit != "none",
        skip_formula=" + D x_t" if skip else "",
        dt_formula=step_formula(options, "*dt_limit"),
        vectors="".join(f"; {name} ({shape.heads},)" for name in named),
        optional_tensors="".join(f"{name}, " for name in named),
        routes=routes,
    )


def arguments_context(spec: Spec) -> ArgumentsContext:
    """What arguments.py.jinja needs: `<model>/_arguments.py`, beside the operators."""
    names = ", ".join(f'"{name}"' for name in spec.targets)
    return ArgumentsContext(spec.model.name, f"({names})" if len(spec.targets) > 1 else f"({names},)")


def _route(spec: Spec, target_name: str, route: str, schedule: RouteSchedule) -> RouteText:
    operator = spec.operators.mamba_chunk_scan_combined
    assert operator is not None
    entry = operator.routes[route]
    plan = PLANS[entry.plan]
    problem = plans.problem(spec.model.name, operator, target(target_name), schedule.plan)
    prefix = f"{route}_" if len(spec.targets) == 1 else f"{target_name}_{route}_"
    names = {
        "B": "batch",
        "T": "tokens",
        "heads": "HEADS",
        "groups": "GROUPS",
        "head_dim": "HEAD_DIM",
        "state": "STATE",
    }
    return RouteText(
        name=route,
        target=target_name,
        when=entry.when,
        condition=conditions.python(entry.when, names),
        function=f"_{prefix}route",
        stages=" -> ".join(stage.name for stage in plan.stages),
        chunk=problem.chunk,
        imports=tuple((stage.name, f"{prefix}{stage.name}") for stage in plan.stages),
        workspaces=_workspaces(plan.stages, problem),
        launches=tuple(_launch(stage, schedule, problem, prefix) for stage in plan.stages),
    )


def _workspaces(stages: tuple[Stage, ...], problem: Problem) -> tuple[tuple[str, str, str], ...]:
    sizes = {
        "B": "batch",
        "H": "HEADS",
        "P": "HEAD_DIM",
        # rows of whole 16 bytes, as a bulk copy wants them
        "S8": "STATE" if problem.shape.state % 8 == 0 else str(round_up(problem.shape.state, 8)),
        "chunks": "n_chunks",
        "padded": f"n_chunks * {problem.chunk}",
        "segments": str(problem.segments),
    }
    found: dict[str, tuple[str, str, str]] = {}
    for stage in stages:
        for parameter in stage.parameters(problem):
            if isinstance(parameter, Array) and parameter.owner == "workspace":
                shape = "(" + ", ".join(sizes[axis] for axis in parameter.axes) + ")"
                found.setdefault(parameter.name, (parameter.name, shape, parameter.dtype))
    return tuple(found.values())


def _launch(stage: Stage, schedule: RouteSchedule, problem: Problem, prefix: str) -> str:
    grid = ", ".join(stage.grid(schedule.stage(stage.name), problem))
    grid = f"({grid},)" if "," not in grid or grid.startswith("min") else f"({grid})"
    arguments = ", ".join(_ARGUMENTS.get(p.name, p.name) for p in stage.parameters(problem))
    kernel = f"{prefix}{stage.name}.{stage.name}"
    line = f"ct.launch(stream, {grid}, {kernel}, ({arguments}))"
    if len(line) + 4 <= LINE:
        return line
    # as ruff format breaks it
    one = f"stream, {grid}, {kernel}, ({arguments})"
    if len(one) + 8 <= LINE:
        return f"ct.launch(\n        {one}\n    )"
    parts = ["stream", grid, kernel, f"({arguments})"]
    return "ct.launch(\n" + "".join(f"        {part},\n" for part in parts) + "    )"
