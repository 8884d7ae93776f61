"""What `ssmgen compile` and `build` do and print: kernels compiled and verified, one line a model and target."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from ssmgen import build, table
from ssmgen.build import Row
from ssmgen.repository import Work


@dataclass(frozen=True)
class Request:
    """The options of a command line; with `verify`, a call of each model is run and compared too."""

    targets: tuple[str, ...]
    archive: Path | None
    jobs: int | None
    as_json: bool
    verify: bool = False


@dataclass(frozen=True)
class Verified:
    """Of one model: what the table says, and the message where its kernels are wrong."""

    shown: str
    failure: str | None = None


def run(work: Work, request: Request) -> bool:
    """Compile, verify where asked, and print; False where a schedule was refused or a kernel is wrong."""
    start = time.perf_counter()
    pairs = [(each.spec, each.lock) for each in work.loaded]
    settings = build.Settings(jobs=request.jobs, progress=table.progress)
    rows = build.run(pairs, list(request.targets), request.archive, settings)
    taken = time.perf_counter() - start
    verified = _verified(work) if request.verify else {}
    refused = [row for row in rows if row.how == "refused"]
    wrong = [each.failure for each in verified.values() if each.failure]
    if request.as_json:
        shown = {model: each.shown for model, each in verified.items()}
        print(json.dumps([asdict(row) | {"verified": shown.get(row.model)} for row in rows], indent=2))
    else:
        show(rows, verified)
        print(f"{len(rows) - len(refused)} kernels in {taken:.1f} s")
    for row in refused:
        print(f"refused: {row.reason}", file=sys.stderr)
    for failure in wrong:
        print(f"wrong: {failure}", file=sys.stderr)
    if request.archive and not request.as_json:
        print(f"written to {request.archive}")
    return not refused and not wrong


def _verified(work: Work) -> dict[str, Verified]:
    """One call of every model, longer than its chunk, through the interpreter."""
    if find_spec("torch") is None:
        return {each.spec.model.name: Verified("no: torch is not installed") for each in work.loaded}
    from ssmgen.verify import run as running

    result = {}
    with table.progress("verifying", len(work.loaded)) as step:
        for row in running.models(work.loaded, [], running.Settings(examples=1)):
            step(row.model)
            if row.failure is None and row.result is not None:
                result[row.model] = Verified(f"1 call, {row.result.excess:.2f} of limit")
            else:
                result[row.model] = Verified("WRONG", f"{row.model}: {row.failure}\n  again:    {row.command}")
    return result


def show(rows: Sequence[Row], verified: Mapping[str, Verified]) -> None:
    """The table of compiled kernels."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.target), []).append(row)
    lines = []
    for (model, target), group in groups.items():
        counts = [sum(row.how == how for row in group) for how in ("compiled", "cached", "refused")]
        size = sum(row.bytes for row in group) / 1024
        seconds = sum(row.seconds for row in group)
        said = verified[model].shown if model in verified else "not run"
        lines.append([model, target, *map(str, counts), f"{size:.0f}", f"{seconds:.1f}", said])
    columns = ("model", "target", "compiled", "cached", "refused", "KiB", "compiler s", "verified")
    table.show("kernels", columns, lines)
