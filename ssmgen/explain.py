"""What a spec and its lock amount to: routes, grids, costs in closed form, and what each target refuses.

It chooses nothing and times nothing: its figures are counts, and a count is no speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ssmgen import conditions, host, plans
from ssmgen import lock as locks
from ssmgen.errors import ScheduleError
from ssmgen.lock import Entry, Lock
from ssmgen.ops import gated_delta_rule_packed_decode as gdn
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import PLANS, Plan, RouteSchedule
from ssmgen.spec import Spec
from ssmgen.stages import base
from ssmgen.stages.base import Array, Problem, Stage
from ssmgen.targets import TARGETS, target

if TYPE_CHECKING:
    from sympy import Expr

SHAPES = ((1, 512), (1, 2048), (1, 8192), (8, 2048))
MAP_BATCHES = (1, 4, 16, 64)
MAP_TOKENS = (1, 128, 512, 2048, 8192, 32768, 131072)
# sequences that cu_seqlens tells of in a single row
MAP_SEQUENCES = (2, 4, 8, 16, 64)
# nothing a schedule holds is sensible beyond this many doublings from where it stands
DOUBLINGS = 6
COUNTED = "N sequences in all; stages, and every count at a shape, are of one sequence a row: N = B"
STATES = ("initial_states", "final_states")


@dataclass(frozen=True)
class Count:
    """A closed form in B and T, with N packed sequences, and its value at each shape the route serves, where N = B."""

    formula: str
    at: dict[str, int]


@dataclass(frozen=True)
class Refusal:
    """The nearest schedule in one direction that a target cannot serve."""

    change: str
    reason: str


@dataclass(frozen=True)
class StageReport:
    """One kernel: its grid, schedule and cost, and the neighbours of its schedule that are refused."""

    name: str
    grid: tuple[str, ...]
    schedule: dict[str, int]
    bytes: Count
    flops: Count
    exponentials: Count
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class RouteReport:
    """One route on one target; `refused` says why the target cannot serve it, and then there are no stages.

    `floor` counts every input but the states read once and out written once; `states` the initial and final states,
    where a call has both; `workspace` what one call allocates between the stages. `counted` says for which packed rows.
    """

    name: str
    when: str
    plan: str
    chunk: int
    segments: int
    evidence: str
    refused: str | None
    floor: Count
    states: Count
    workspace: Count
    stages: tuple[StageReport, ...]
    refusals: tuple[Refusal, ...]
    counted: str = ""


@dataclass(frozen=True)
class TargetReport:
    """One target: `locked` if the lock holds its schedules, else they are derived and nothing is committed."""

    name: str
    gpu: str
    locked: bool
    routes: tuple[RouteReport, ...]


@dataclass(frozen=True)
class Report:
    """A whole spec; `served` maps `B=1, T=8192` to the route that a call takes, or to None; `packed` a packed call's.

    Where the number of sequences decides, `packed` also holds such as `B=1, N=8, T=8192`; without N there is one a row.
    `dispatcher` is the generated function that decides so, of the targets that the spec names.
    """

    model: str
    source: str
    operator: str
    shape: dict[str, int]
    served: dict[str, str | None]
    packed: dict[str, str | None]
    dispatcher: str
    targets: tuple[TargetReport, ...]
    note: str | None


def explain(spec: Spec, lock: Lock, shapes: Sequence[tuple[int, int]] = SHAPES) -> Report:
    """The report of `spec` under `lock`, with counts at each (B, T) of `shapes`."""
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        decode = spec.operators.gated_delta_rule_packed_decode
        shape = decode.shape.model_dump() if decode else {}
        note = "the spec is valid and kept; kernels for this operator are not generated yet"
        return Report(spec.model.name, spec.model.source, gdn.NAME, shape, {}, {}, "", (), note)
    asked = sorted({(b, t) for b in MAP_BATCHES for t in MAP_TOKENS} | set(shapes))
    served = {at: _routes(operator, *at) for at in asked}
    return Report(
        model=spec.model.name,
        source=spec.model.source,
        operator=mamba2.NAME,
        shape=operator.shape.model_dump(),
        served={_point(shape): route for shape, (route, _) in served.items()},
        packed=_packed(operator, served),
        dispatcher=host.dispatcher(spec, lock),
        targets=tuple(_target(spec, operator, lock, name, {s: served[s] for s in shapes}) for name in TARGETS),
        note=None,
    )


def data(report: Report) -> dict[str, Any]:
    """The report as plain data for JSON."""
    return asdict(report)


def _point(shape: tuple[int, int]) -> str:
    return f"B={shape[0]}, T={shape[1]}"


def _packed(
    operator: mamba2.Operator, served: dict[tuple[int, int], tuple[str | None, str | None]]
) -> dict[str, str | None]:
    """The routes of packed calls: of a sequence a row, and where their number decides, of several in a single one."""
    if not operator.options.packed:
        return {}
    found = {_point(shape): route for shape, (_, route) in served.items()}
    if any("N" in conditions.names(route.when) for route in operator.routes.values()):
        tokens = sorted({t for _, t in served})
        found |= {f"B=1, N={n}, T={t}": _routes(operator, 1, t, n)[1] for n in MAP_SEQUENCES for t in tokens}
    return found


def _routes(operator: mamba2.Operator, b: int, t: int, n: int | None = None) -> tuple[str | None, str | None]:
    """The route of a call without packed sequences, and of one with: `n` of them, by default one a row."""
    values = {"B": b, "T": t, "N": b if n is None else n, **operator.shape.model_dump()}
    taken: dict[bool, str] = {}
    for name, route in operator.routes.items():
        if conditions.evaluate(route.when, values):
            taken.setdefault(PLANS[route.plan].packed, name)
    return taken.get(False), taken.get(True)


def _target(
    spec: Spec, operator: mamba2.Operator, lock: Lock, name: str, served: dict[tuple[int, int], tuple[str | None, ...]]
) -> TargetReport:
    locked = any(key[0] == name for key in lock)
    entries, refused = lock, None
    if not locked:
        try:
            entries = locks.derive(spec, [name])
        except ScheduleError as e:
            entries, refused = {}, str(e)
    routes = []
    for route in operator.routes:
        shapes = [shape for shape, chosen in served.items() if route in chosen]
        entry = entries.get((name, mamba2.NAME, route))
        if entry is None:
            schedule = plans.derive(spec.model.name, operator, route, target(name))
            routes.append(_unserved(operator, route, schedule, refused or "the lock holds no schedule for it"))
        else:
            routes.append(_served(spec.model.name, operator, route, (name, entry), shapes))
    return TargetReport(name, TARGETS[name].gpu, locked, tuple(routes))


def _unserved(operator: mamba2.Operator, name: str, schedule: RouteSchedule, reason: str) -> RouteReport:
    route, none = operator.routes[name], Count("", {})
    plan = schedule.plan
    return RouteReport(
        name, route.when, route.plan, plan.chunk, plan.segments, "none", reason, none, none, none, (), ()
    )


def _served(
    model: str, operator: mamba2.Operator, name: str, entry_of: tuple[str, Entry], shapes: list[tuple[int, int]]
) -> RouteReport:
    target_name, entry = entry_of
    route, schedule = operator.routes[name], entry.schedule
    plan, this = plans.of_route(model, operator, target(target_name), name, schedule)
    reason = plans.why_not(schedule, plan, this)
    if reason:
        return _unserved(operator, name, schedule, reason)
    arrays = {p.name: p for stage in plan.stages for p in stage.parameters(this) if isinstance(p, Array)}
    outside = [a for a in arrays.values() if a.owner != "workspace" and a.name not in STATES]
    evidence = entry.evidence
    return RouteReport(
        name=name,
        when=route.when,
        plan=route.plan,
        chunk=schedule.plan.chunk,
        segments=schedule.plan.segments,
        evidence=evidence if isinstance(evidence, str) else f"measured, {evidence.us:g} us ({evidence.conditions})",
        refused=None,
        floor=_count(_sizes(outside, this), shapes),
        states=_count(_sizes([arrays[n] for n in STATES], this), shapes),
        workspace=_count(_sizes([a for a in arrays.values() if a.owner == "workspace"], this), shapes),
        stages=tuple(_stage(stage, schedule.stage(stage.name), this, shapes) for stage in plan.stages),
        refusals=tuple(_plan_refusals(schedule, plan, this)),
        counted=COUNTED if plan.packed else "",
    )


def _stage(stage: Stage, schedule: Any, this: Problem, shapes: list[tuple[int, int]]) -> StageReport:
    cost = stage.cost(schedule, this)
    return StageReport(
        name=stage.name,
        grid=stage.grid(schedule, this),
        schedule=asdict(schedule),
        bytes=_count(cost.bytes, shapes),
        flops=_count(cost.flops, shapes),
        exponentials=_count(cost.exponentials, shapes),
        refusals=tuple(_nearest(schedule, lambda neighbour: stage.why_not(neighbour, this))),
    )


def _plan_refusals(schedule: RouteSchedule, plan: Plan, this: Problem) -> Iterator[Refusal]:
    def why_not(neighbour: Any) -> str | None:
        moved = replace(this, chunk=neighbour.chunk, segments=neighbour.segments)
        reason = plans.why_not(replace(schedule, plan=neighbour), plan, moved)
        return reason and reason.removeprefix("plan: ")

    yield from _nearest(schedule.plan, why_not)


def _nearest(schedule: Any, why_not: Any) -> Iterator[Refusal]:
    """For each field the first refused value above and below, by doubling and halving."""
    for field in fields(schedule):
        value: int = getattr(schedule, field.name)
        up = [value << n for n in range(1, DOUBLINGS + 1)]
        down = [value >> n for n in range(1, value.bit_length())]
        for values in (up, down):
            reasons = ((v, why_not(replace(schedule, **{field.name: v}))) for v in values)
            refused = next(((v, reason) for v, reason in reasons if reason), None)
            if refused:
                yield Refusal(f"{field.name} {value} -> {refused[0]}", refused[1])


def _sizes(arrays: Sequence[Array], this: Problem) -> Expr:
    """Bytes of all `arrays` together."""
    import sympy

    b, t = sympy.symbols("B T", positive=True, integer=True)
    s, chunks = this.shape, sympy.ceiling(t / this.chunk)
    sizes = {"H": s.heads, "G": s.groups, "P": s.head_dim, "S": s.state}
    axes = {"B": b, "T": t, "segments": this.segments, "chunks": chunks, "padded": this.chunk * chunks} | sizes
    # rows of a workspace are whole 16 bytes
    axes |= {f"{name}8": base.round_up(size, 8) for name, size in sizes.items()}
    n = sympy.Symbol("N", positive=True, integer=True)
    inputs = this.segments if this.segmented else 0
    axes |= {"N": n, "N1": n + 1, "slots": chunks + n / b + inputs, "met": n / b + this.segments - 1}
    return sympy.Add(*(base.ITEM_BYTES[a.dtype] * sympy.prod([axes[axis] for axis in a.axes]) for a in arrays))


def _count(expression: Expr, shapes: Sequence[tuple[int, int]]) -> Count:
    import sympy

    b, t, n = sympy.symbols("B T N", positive=True, integer=True)
    expanded = sympy.expand(expression)
    formula = str(sympy.collect(expanded, b)).replace("ceiling", "ceil")
    return Count(formula, {_point(s): int(expanded.subs({b: s[0], t: s[1], n: s[0]})) for s in shapes})
