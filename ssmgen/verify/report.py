"""The verb `verify`: what its options ask for, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmgen import repository, table
from ssmgen.errors import CompilerError, UsageError
from ssmgen.repository import Loaded
from ssmgen.verify import problems
from ssmgen.verify.run import Row, Settings


@dataclass(frozen=True)
class Request:
    """The options of a command line."""

    specs: tuple[str, ...]
    device: str
    archive: Path | None
    examples: int
    seed: int
    problems: tuple[str, ...]
    compiling: bool


def run(request: Request) -> list[Row]:
    """One row a call, with progress where somebody watches; UsageError for options that cannot be obeyed."""
    from ssmgen.loading import need

    need("torch", "pip install torch; a CPU build is enough for --device cpu")
    from ssmgen.verify import run as running

    settings = _settings(request)
    given = [problems.parse(text) for text in request.problems]
    drawn = [p for p in given if p.drawn is not None]
    if drawn and (request.specs or len(drawn) < len(given)):
        raise UsageError(
            f"problem: {drawn[0]} describes a model", expected="a call only, of SPEC", next="leave SPEC out"
        )
    if drawn:
        with table.progress("verifying", len(drawn)) as step:
            return _stepped(running.drawn(drawn, settings), step)
    specs = [each for each in repository.open_specs(request.specs).loaded if each.has_kernels]
    if not specs:
        raise UsageError("no spec with kernels", next="ssmgen new CONFIG.json")
    for each in specs:
        operator = each.spec.operators.mamba_chunk_scan_combined
        packed = [p for p in given if operator and p.call != p.call.for_model(operator)]
        if packed:
            raise UsageError(
                f"problem: {packed[0]} has packed sequences, which {each.spec.model.name} does not take",
                expected="options.packed: true in its spec, or a problem without sequences and cuts",
            )
    with table.progress("verifying", len(specs) * (len(given) or settings.examples)) as step:
        rows = _stepped(running.models(specs, given, settings), step)
    if settings.device == "cpu" and request.compiling:
        rows += _compiled(specs)
    return rows


def _settings(request: Request) -> Settings:
    if request.device not in ("cpu", "cuda"):
        raise UsageError(f"--device {request.device}", expected="cpu or cuda")
    if request.archive is not None and request.device != "cuda":
        raise UsageError("--archive on the CPU: cubins run on a GPU", next="add --device cuda")
    if request.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: there is no CUDA device here", next="leave --device out")
        return Settings("cuda", request.archive, request.examples, request.seed)
    return Settings("cpu", None, request.examples, request.seed)


def _stepped(rows: Any, step: Any) -> list[Row]:
    done = []
    for row in rows:
        done.append(row)
        step(f"{row.model} {row.problem}")
    return done


def _compiled(specs: Sequence[Loaded]) -> list[Row]:
    """A row for each model that cuTile refuses; one for all where there is no compiler to ask."""
    from ssmgen import build
    from ssmgen.compiler import check_compiler

    try:
        check_compiler()
    except CompilerError as e:
        print(f"note: not compiled, {e.what}")
        return []
    failed = []
    for each in specs:
        name = each.spec.model.name
        try:
            build.check(each.spec, each.schedules, build.Settings(progress=table.progress))
        except CompilerError as e:
            failed.append(Row(name, "compile", None, str(e), f"ssmgen compile {each.path}"))
    return failed


def show(rows: Sequence[Row]) -> None:
    """A table of models, then every failure with its command."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.model, []).append(row)
    lines = []
    for model, group in groups.items():
        results = [row.result for row in group if row.result is not None]
        worst = max((r.excess for r in results), default=float("nan"))
        errors = (
            [f"{max(r.out_error for r in results):.1e}", f"{max(r.state_error for r in results):.1e}"]
            if results
            else ["", ""]
        )
        failed = sum(row.failure is not None for row in group)
        seconds = sum(r.seconds for r in results)
        lines.append([model, str(len(group)), str(failed), *errors, f"{worst:.2f}", f"{seconds:.1f}"])
    columns = ("model", "calls", "failed", "out error", "state error", "of limit", "s")
    table.show("verified against the fp64 recurrence", columns, lines)
    for row in rows:
        if row.failure:
            print(f"\n{row.model}: {row.problem}\n  {row.failure}\n  again:    {row.command}")
