"""(spec, lock, templates) -> generated files: a pure function into memory; every command is a view of what it returns.

It writes nothing (`fileset` does), and asks no GPU, clock or environment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmgen import host, plans, render, signatures
from ssmgen.errors import ScheduleError, SpecError
from ssmgen.fileset import MARK, FileSet, is_ours
from ssmgen.lock import Lock, derive
from ssmgen.naming import KernelId
from ssmgen.ops import gated_delta_rule_packed_decode as gdn
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.paths import REPORT
from ssmgen.runtime.seal import UNSEALED, seal
from ssmgen.spec import Spec
from ssmgen.stages.base import Parameter
from ssmgen.targets import target


@dataclass(frozen=True)
class Kernel:
    """One generated kernel file: `text` with its header; `symbol` is the kernel's name in it."""

    id: KernelId
    text: str
    symbol: str
    parameters: tuple[Parameter, ...]


def kernels(spec: Spec, lock: Lock, targets: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels of `spec` on `targets`, in memory.

    For a target that the lock does not hold, schedules are derived: to be compiled, never to be committed. Raises
    ScheduleError where a target cannot serve one.
    """
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        return ()
    lock = {**derive(spec, list(targets)), **lock}
    return tuple(
        kernel
        for name in targets
        for route in operator.routes
        for kernel in _route(spec, operator, lock, (name, mamba2.NAME, route))
    )


def _route(spec: Spec, operator: mamba2.Operator, lock: Lock, key: tuple[str, str, str]) -> Iterator[Kernel]:
    target_name, operator_name, route = key
    schedule = lock[key].schedule
    plan, problem = plans.of_route(spec.model.name, operator, target(target_name), route, schedule)
    if reason := plans.why_not(schedule, plan, problem):
        raise ScheduleError(f"{spec.model.name}, {operator_name}, route {route}, {target_name}: {reason}")
    for stage in plan.stages:
        own = schedule.stage(stage.name)
        made_from = {
            "model": spec.model.name,
            "operator": operator.model_dump(mode="json", exclude={"routes"}),
            "target": target_name,
            "plan": [plan.name, asdict(schedule.plan)],
            "stage": [stage.name, asdict(own)],
        }
        body = render.render(stage.template, stage.context(own, problem))
        yield Kernel(
            KernelId(spec.model.name, target_name, operator_name, route, stage.name),
            seal(_header(spec.model.name, stage.template, made_from) + body),
            stage.name,
            stage.parameters(problem),
        )


def _header(model: str, template: str, made_from: Mapping[str, Any]) -> str:
    """What every generated file begins with; the last two lines keep other people's formatters and linters off it."""
    return f"""\
# {MARK} from {model}.yaml, its lock and {template}. Do not edit.
# Remake: ssmgen generate {model}    Verify: ssmgen generate --check {model}
# inputs sha256:{_digest(made_from, template)}    {UNSEALED}
# ruff: noqa
# fmt: off
"""


def _digest(made_from: Mapping[str, Any], template: str) -> str:
    text = json.dumps([made_from, render.closure_digest(template)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fileset(spec: Spec, lock: Lock) -> dict[str, str]:
    """Every file of generated/<model>/, path relative to generated/ -> text; empty if no operator has kernels yet."""
    return around(spec, lock, kernels(spec, lock, spec.targets))


def around(spec: Spec, lock: Lock, made: Sequence[Kernel]) -> dict[str, str]:
    """The same of kernels that are made already: those of `spec` on its targets."""
    if not made:
        return {}
    model = spec.model.name
    made_from = {
        "spec": spec.model_dump(mode="json", by_alias=True, include={"operators", "targets"}),
        "lock": [[*key, asdict(entry.schedule)] for key, entry in sorted(lock.items()) if key[0] in spec.targets],
    }
    files = {f"{kernel.id.format()}.py": kernel.text for kernel in made}
    for name, template, context in host.files(spec, lock):
        files[f"{model}/{name}"] = seal(_header(model, template, made_from) + render.render(template, context))
    files[f"{model}/MANIFEST.json"] = _manifest(spec, made, files)
    return dict(sorted(files.items()))


def _manifest(spec: Spec, made: Sequence[Kernel], files: Mapping[str, str]) -> str:
    """The model's files with their sha256, and which kernel serves which plan and run-time condition."""
    model = spec.model.name
    operator = spec.operators.mamba_chunk_scan_combined
    routes = operator.routes if operator else {}
    table = [
        {
            "id": k.id.format(),
            "plan": routes[k.id.route].plan,
            "when": routes[k.id.route].when,
            # what it takes to compile the file as it lies there
            "parameters": [signatures.as_text(parameter) for parameter in k.parameters],
        }
        for k in sorted(made, key=lambda k: k.id.format())
    ]
    content = {
        "about": f"{MARK} from {model}.yaml and its lock. Do not edit. Remake: ssmgen generate {model}",
        "files": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(files.items())},
        "kernels": table,
        "model": model,
        "schema": 1,
        "seal": UNSEALED,
        "shapes": {mamba2.NAME: operator.shape.model_dump()} if operator else {},
    }
    return seal(json.dumps(content, indent=2) + "\n")


def unserved(spec: Spec) -> str | None:
    """The operator that `spec` asks for and that has no kernels yet; None if all of them have."""
    return gdn.NAME if spec.operators.gated_delta_rule_packed_decode else None


def collect(specs: Sequence[tuple[Spec, Lock]], root: Path | None = None) -> FileSet:
    """The files of several specs as one set; with `root`, every folder of another model in it is an orphan."""
    files: dict[str, str] = {}
    sources: dict[str, Spec] = {}
    for spec, lock in specs:
        if spec.model.name in sources:
            raise SpecError(
                f"two specs of the name {spec.model.name}",
                found=f"sources {sources[spec.model.name].model.source} and {spec.model.source}",
                expected="each name once",
                next="rename one of them: its file and model.name",
            )
        sources[spec.model.name] = spec
        files |= fileset(spec, lock)
    others = model_folders(root) if root else []
    return FileSet(files, tuple(sorted({*sources, *others})))


def model_folders(root: Path) -> list[str]:
    """The folders in `root` that the generator made: one of their files carries its mark."""
    if not root.is_dir():
        return []
    return [f.name for f in sorted(root.iterdir()) if f.is_dir() and f.name != REPORT and _is_model_folder(f)]


def _is_model_folder(folder: Path) -> bool:
    candidates = [folder / "MANIFEST.json", folder / "__init__.py", *folder.glob("sm_*/*/*/*.py")]
    return any(path.is_file() and is_ours(path.read_text(encoding="utf-8", errors="replace")) for path in candidates)
