"""specs/M.lock.yaml: the chosen schedules with their evidence, target -> operator -> route -> stage.

It reads and writes; it derives and tunes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ssmgen import located_yaml, paths, plans
from ssmgen.errors import LockError, then_run
from ssmgen.located_yaml import Document
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Closed
from ssmgen.plans import PLANS, PlanSchedule, RouteSchedule
from ssmgen.spec import Spec, validate
from ssmgen.targets import TARGETS, target

_DROP = "correct it, or let it be derived anew"


class Measured(Closed):
    """A timing that chose a schedule, with the conditions it was taken under."""

    us: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    margin_us: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    samples: Annotated[int, Field(gt=0)]
    conditions: str


class _Route(Closed):
    plan: dict[str, int]
    stages: dict[str, dict[str, int]]
    evidence: Literal["derived"] | Measured


class _File(Closed):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    model: str
    targets: dict[str, dict[str, dict[str, _Route]]]


@dataclass(frozen=True)
class Entry:
    """One route's schedule on one target, and why it was chosen."""

    schedule: RouteSchedule
    evidence: Literal["derived"] | Measured


Lock = dict[tuple[str, str, str], Entry]
"""(target, operator, route) -> Entry."""


def derive(spec: Spec, targets: list[str]) -> Lock:
    """The derived schedules of every route of `spec` on `targets`."""
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        return {}
    return {
        (name, mamba2.NAME, route): Entry(plans.derive(spec.model.name, operator, route, target(name)), "derived")
        for name in targets
        for route in operator.routes
    }


def dumps(model: str, lock: Lock) -> str:
    """The lock as YAML, one line a stage."""
    lines = ["# written by ssmgen: schedules by target, operator, route and stage", "schema: 1", f"model: {model}"]
    if not lock:
        return "\n".join([*lines, "targets: {}", ""])
    lines.append("targets:")
    seen: set[tuple[str, ...]] = set()
    for (target_name, operator, route), entry in lock.items():
        for depth, key in enumerate(((target_name,), (target_name, operator), (target_name, operator, route)), 1):
            if key not in seen:
                seen.add(key)
                lines.append(f"{'  ' * depth}{key[-1]}:")
        lines.append(f"        plan: {_flow(entry.schedule.plan)}")
        lines.append("        stages:")
        lines += [f"          {stage}: {_flow(schedule)}" for stage, schedule in entry.schedule.stages]
        lines.append(f"        evidence: {_evidence(entry.evidence)}")
    return "\n".join([*lines, ""])


def _flow(schedule: Any) -> str:
    return "{" + ", ".join(f"{f.name}: {getattr(schedule, f.name)}" for f in fields(schedule)) + "}"


def _evidence(evidence: Literal["derived"] | Measured) -> str:
    if evidence == "derived":
        return "derived"
    e = evidence
    # YAML's quoted strings are JSON's, but for JSON's pairs of escapes above U+FFFF
    conditions = json.dumps(e.conditions, ensure_ascii=False)
    return f"{{us: {e.us}, margin_us: {e.margin_us}, samples: {e.samples}, conditions: {conditions}}}"


def load(path: Path, spec: Spec) -> Lock:
    """The lock in `path`, checked against `spec`; LockError with file, line, reason and the command that mends it."""
    document, file = _read(path, spec)
    # what does not fit is left out when a lock is completed
    with then_run(f"ssmgen lock {spec.model.name}"):
        lock = {key: Entry(_schedule(key, e, spec, document), e.evidence) for key, e in _entries(file)}
        _complete(lock, spec, document)
    return lock


def refit(path: Path, spec: Spec, rederive: bool = False) -> tuple[Lock, list[str]]:
    """A complete lock for `spec`: what `path` holds and still fits, derived schedules for the rest; what was dropped.

    With `rederive`, schedules that were derived are derived anew, measured ones are kept.
    """
    kept: Lock = {}
    dropped: list[str] = []
    if path.exists():
        document, file = _read(path, spec)
        for key, entry in _entries(file):
            try:
                kept[key] = Entry(_schedule(key, entry, spec, document), entry.evidence)
            except LockError as e:
                dropped.append(f"{' '.join(key)} ({_name(entry.evidence)}): {e.what}")
    if rederive:
        kept = {key: entry for key, entry in kept.items() if entry.evidence != "derived"}
    whole = {**derive(spec, spec.targets), **kept}
    return dict(sorted(whole.items(), key=lambda item: _order(item[0], spec))), dropped


def _order(key: tuple[str, str, str], spec: Spec) -> tuple[int, str, int]:
    operator = spec.operators.mamba_chunk_scan_combined
    return list(TARGETS).index(key[0]), key[1], list(operator.routes).index(key[2]) if operator else 0


def _name(evidence: Literal["derived"] | Measured) -> str:
    return "derived" if evidence == "derived" else "measured"


def _read(path: Path, spec: Spec) -> tuple[Document, _File]:
    make_it = f"ssmgen lock {spec.model.name}"
    if not path.exists():
        expected = "a schedule for every target and route of the spec"
        raise LockError("no such file", where=path, found=paths.beside(path), expected=expected, next=make_it)
    try:
        document = located_yaml.read(path, LockError)
        file = validate(_File, document, LockError)
        if file.model != spec.model.name:
            where = document.where(("model",))
            raise LockError("model is not the spec's", where=where, found=file.model, expected=spec.model.name)
    except LockError as e:
        e.next = f"{e.next or f'correct {e.where}'}, or delete the file, then run: {make_it}"
        raise
    return document, file


def _entries(file: _File) -> list[tuple[tuple[str, str, str], _Route]]:
    return [
        ((target_name, operator, route), entry)
        for target_name, operators in file.targets.items()
        for operator, routes in operators.items()
        for route, entry in routes.items()
    ]


def _complete(lock: Lock, spec: Spec, document: Document) -> None:
    for target_name, operator, route in derive(spec, spec.targets):
        if (target_name, operator, route) not in lock:
            raise LockError(
                f"no schedule for {target_name}, {operator}, route {route}",
                where=document.where(("targets", target_name, operator)),
                found=", ".join(" ".join(key) for key in lock) or "no schedule at all",
                expected="an entry for every target and route of the spec",
                next=f"have what is missing derived: ssmgen lock {spec.model.name}",
            )


def _schedule(key: tuple[str, str, str], entry: _Route, spec: Spec, document: Document) -> RouteSchedule:
    target_name, operator_name, route = key
    at = ("targets", *key)
    if target_name not in TARGETS:
        where = document.where(at[:2])
        expected = f"one of {', '.join(TARGETS)}"
        raise LockError(
            f"unknown target {target_name!r}", where=where, found=target_name, expected=expected, next=_DROP
        )
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None or operator_name != mamba2.NAME:
        raise LockError(
            f"the spec has no operator {operator_name!r}",
            where=document.where(at[:3]),
            found=operator_name,
            expected=mamba2.NAME if operator else "no schedule: the spec's operators have no kernels yet",
            next=_DROP,
        )
    if route not in operator.routes:
        raise LockError(
            f"the spec has no route {route!r}",
            where=document.where(at),
            found=route,
            expected=f"one of {', '.join(operator.routes)}",
            next=_DROP,
        )
    plan = PLANS[operator.routes[route].plan]
    names = [stage.name for stage in plan.stages]
    if list(entry.stages) != names:
        raise LockError(
            f"stages of plan {plan.name}",
            where=document.where((*at, "stages")),
            found=", ".join(entry.stages),
            expected=", ".join(names),
            next=_DROP,
        )
    shared = _fields(PlanSchedule, entry.plan, document, (*at, "plan"))
    stages = tuple(
        (stage.name, _fields(stage.schedule, entry.stages[stage.name], document, (*at, "stages", stage.name)))
        for stage in plan.stages
    )
    schedule = RouteSchedule(shared, stages)
    reason = plans.why_not(schedule, plan, plans.problem(spec.model.name, operator, target(target_name), plan, shared))
    if reason:
        stage = reason.split(":", 1)[0]
        where = document.where((*at, "plan") if stage == "plan" else (*at, "stages", stage))
        # what is derived can always be served
        right = plans.derive(spec.model.name, operator, route, target(target_name))
        found, fitting = ((s.plan if stage == "plan" else s.stage(stage)) for s in (schedule, right))
        raise LockError(
            f"{operator_name}, route {route}, {target_name}: {reason}",
            where=where,
            found=_flow(found),
            expected=f"such as {_flow(fitting)}, which is derived",
            next=f"change {stage}, or let it be derived",
        )
    return schedule


def _fields(kind: type, values: dict[str, int], document: Document, at: tuple[str, ...]) -> Any:
    names = {f.name for f in fields(kind)}
    if set(values) != names:
        # a misspelt key is also a missing one: the former says what to do
        odd = [*sorted(set(values) - names), *sorted(names - set(values))][0]
        raise LockError(
            f"{'unknown' if odd in values else 'missing'} key {odd!r}",
            where=document.where((*at, odd)),
            found=", ".join(values) or "no key",
            expected=", ".join(f.name for f in fields(kind)),
            next=f"correct {at[-1]}, or let it be derived",
        )
    return kind(**values)
