"""The host side of a generated package: which checks, routes, workspaces and launches host.py.jinja prints.

Stages say what their kernels take, plans in what order they run; this puts the two into Python text. It writes nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from ssmgen import conditions, host_checks, plans, render
from ssmgen.breaking import Item, call, tuple_of
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import PLANS, Plan, RouteSchedule
from ssmgen.spec import Spec
from ssmgen.stages.base import Array, Problem, Stage, round_up, step_formula, title
from ssmgen.targets import target

# kernel parameter -> host expression, where they differ
_ARGUMENTS = {"a": "A", "b": "B", "c": "C", "d": "D"}
# the optional tensors of the function, in its order
_OPTIONAL = ("D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens")


@dataclass(frozen=True)
class RouteText:
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
    workspaces: tuple[tuple[str, str, str], ...]
    launches: tuple[str, ...]


@dataclass(frozen=True)
class Context:
    """Free names of host.py.jinja: the public function and its torch.library operator."""

    title: str
    heads: int
    groups: int
    head_dim: int
    state: int
    x_dtype: str
    dt_dtype: str
    packed: bool
    dt_softplus: bool
    dt_limit: bool
    out_formula: str
    dt_formula: str
    vectors: str
    converted: str
    checked: str
    left_out: str
    call: str
    fake: str
    entries: str
    optional_schema: str


@dataclass(frozen=True)
class ForwardContext:
    """Free names of forward.py.jinja: checks, routes and launches."""

    heads: int
    groups: int
    head_dim: int
    state: int
    x_dtype: str
    dt_dtype: str
    packed: bool
    gate: bool
    each_entry: str
    imports: str
    value_imports: str
    definition: str
    call: str
    vector_rows: tuple[tuple[str, str], ...]
    pass_packed: str
    take_packed: str
    shapes: str
    routes: tuple[RouteText, ...]


def files(spec: Spec, lock: Lock) -> tuple[tuple[str, str, Any], ...]:
    """The package's files beside the kernels: (path in generated/<model>/, template, context).

    The spec must have mamba_chunk_scan_combined.
    """
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        raise ValueError(f"{spec.model.name} has no {mamba2.NAME}")
    name = spec.model.name
    return (
        ("__init__.py", "host.py.jinja", _context(name, operator)),
        ("_forward.py", "forward.py.jinja", _forward(spec, operator, lock)),
        *host_checks.files(spec, operator),
    )


def dispatcher(spec: Spec, lock: Lock) -> str:
    """The generated function that chooses a call's route, on the targets that `lock` holds; "" for none."""
    operator = spec.operators.mamba_chunk_scan_combined
    locked = [name for name in spec.targets if any(key[0] == name for key in lock)]
    if operator is None or not locked:
        return ""
    text = render.render("forward.py.jinja", _forward(spec.model_copy(update={"targets": locked}), operator, lock))
    (function,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "_route")
    return ast.get_source_segment(text, function) or ""


def _context(name: str, operator: mamba2.Operator) -> Context:
    shape, options, packed = operator.shape, operator.options, operator.options.packed
    own, given = _optional(operator), _given(operator)
    left_out = [n for n in _OPTIONAL if n not in own] + ([] if packed else ["state_dtype"])
    y = f"h_t C_t{' + D x_t' if options.D != 'none' else ''}"
    return Context(
        title=title(name, shape, operator.dtypes),
        heads=shape.heads,
        groups=shape.groups,
        head_dim=shape.head_dim,
        state=shape.state,
        x_dtype=operator.dtypes.x,
        dt_dtype=operator.dtypes.dt,
        packed=packed,
        dt_softplus=options.dt_softplus,
        dt_limit=options.dt_limit != "none",
        out_formula=f"y_t = ({y}) silu(z_t)" if options.z != "none" else f"y_t = {y}",
        dt_formula=step_formula(options, "*dt_limit"),
        vectors="".join(
            f"; {vector} {tuple_of(str(getattr(shape, axis)) for axis in axes)}"
            for vector, axes in _vectors(operator).items()
        )
        + ("; z like x" if options.z != "none" else ""),
        converted="".join(f", {vector}" for vector in _vectors(operator)),
        checked="A, seq_idx and cu_seqlens" if packed else "A",
        left_out=", ".join(f"{n}={n}" for n in left_out),
        call=call("out, states = (_operator if is_traced(x) else forward)(", [*given, "validate"], indent=4),
        fake=call("def _fake(", [*given, "validate"], "):"),
        entries="x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1" if packed else "x.shape[0]",
        optional_schema="".join(f"Tensor? {n}, " for n in own),
    )


def _forward(spec: Spec, operator: mamba2.Operator, lock: Lock) -> ForwardContext:
    shape, options, packed = operator.shape, operator.options, operator.options.packed
    given = _given(operator)
    used = ["current_stream", "device", "floats", "rows", "workspace"]
    return ForwardContext(
        heads=shape.heads,
        groups=shape.groups,
        head_dim=shape.head_dim,
        state=shape.state,
        x_dtype=operator.dtypes.x,
        dt_dtype=operator.dtypes.dt,
        packed=packed,
        gate=options.z != "none",
        each_entry="row, or with cu_seqlens of every sequence" if packed else "row",
        imports=", ".join(sorted([*used, *(("integers",) if packed else ())])),
        value_imports="check_decay, check_sequences" if packed else "check_decay",
        definition=call("def forward(", [*given, "validate"], "):"),
        call=call("route(", ["n_sms", *given, "out", "final_states"], indent=4),
        vector_rows=tuple((n, tuple_of(axis.upper() for axis in axes)) for n, axes in _vectors(operator).items()),
        pass_packed=", seq_idx is not None or cu_seqlens is not None" if packed else "",
        take_packed=", packed" if packed else "",
        shapes="batch = {batch}, tokens = {tokens}" + (", packed = {packed}" if packed else ""),
        routes=tuple(
            _route(spec, name, route, lock[name, mamba2.NAME, route].schedule)
            for name in spec.targets
            for route in operator.routes
        ),
    )


def _optional(operator: mamba2.Operator) -> list[str]:
    """The optional tensors that the model's kernels take, in the function's order."""
    o = operator.options
    taken = {"D": o.D != "none", "z": o.z != "none", "dt_bias": o.dt_bias, "initial_states": o.initial_states}
    return [name for name in _OPTIONAL if taken.get(name, o.packed)]


def _vectors(operator: mamba2.Operator) -> dict[str, tuple[str, ...]]:
    """D and dt_bias, where the kernels take them, with the names of their axes."""
    axes = {"D": ("heads", "head_dim") if operator.options.D == "per_channel" else ("heads",), "dt_bias": ("heads",)}
    return {name: axes[name] for name in _optional(operator) if name in axes}


def _given(operator: mamba2.Operator) -> list[str]:
    """What `forward` is given of a call, but for `validate`."""
    return ["x", "dt", "A", "B", "C", *_optional(operator), "dt_min", "dt_max"]


def _route(spec: Spec, target_name: str, route: str, schedule: RouteSchedule) -> RouteText:
    operator = spec.operators.mamba_chunk_scan_combined
    assert operator is not None
    entry = operator.routes[route]
    plan = PLANS[entry.plan]
    problem = plans.problem(spec.model.name, operator, target(target_name), plan, schedule.plan)
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
        when=("seq_idx or cu_seqlens given and " if plan.packed else "") + entry.when,
        condition=_condition(conditions.python(entry.when, names), operator, plan),
        function=f"_{prefix}route",
        definition=call(f"def _{prefix}route(", ["n_sms", *_given(operator), "out", "final_states"], "):"),
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


def _workspaces(stages: tuple[Stage, ...], problem: Problem) -> tuple[tuple[str, str, str], ...]:
    sizes = {
        "B": "batch",
        "H": "HEADS",
        "P": "HEAD_DIM",
        # rows of whole 16 bytes, as a bulk copy wants them
        "S8": "STATE" if problem.shape.state % 8 == 0 else str(round_up(problem.shape.state, 8)),
        "chunks": "n_chunks",
        # a row's sequences have a slot each, behind its chunks
        "slots": "n_chunks + entries // batch",
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
    grid = stage.grid(schedule.stage(stage.name), problem)
    arguments = tuple(_ARGUMENTS.get(p.name, p.name) for p in stage.parameters(problem))
    kernel = f"{prefix}{stage.name}.{stage.name}"
    items: list[Item] = ["stream", grid if len(grid) > 1 else f"({grid[0]},)", kernel, arguments]
    return call("ct.launch(", items, indent=4)
