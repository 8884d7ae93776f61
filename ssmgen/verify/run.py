"""`ssmgen verify`: problems of committed models, or of drawn ones, through the interpreter or on the GPU.

It decides which problems, loads what they run on, and turns what went wrong into the command that shows it again.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Literal

from ssmgen import generate, writing
from ssmgen.errors import SsmgenError, UsageError
from ssmgen.loading import interpreted, interpreted_spec, load, package_directory
from ssmgen.repository import Loaded
from ssmgen.verify import check, problems
from ssmgen.verify.check import Result, Subject
from ssmgen.verify.inputs import REGIMES
from ssmgen.verify.problems import Call, Chunks, Problem

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Settings:
    """Where to run, from which cubins if any, how many calls a model, drawn from which seed."""

    device: Device = "cpu"
    archive: Path | None = None
    examples: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One call and what came of it: `failure` is None where it passed; `command` shows it again."""

    model: str
    problem: str
    result: Result | None
    failure: str | None
    command: str


@dataclass(frozen=True)
class Again:
    """The command line that a row's problem completes."""

    start: tuple[str, ...]
    settings: Settings

    def command(self, problem: Problem) -> str:
        words = [*self.start, "--problem", str(problem)]
        words += ["--device", self.settings.device] if self.settings.device != "cpu" else []
        words += ["--archive", str(self.settings.archive)] if self.settings.archive else []
        return shlex.join(words)


def calls(subject: Subject, settings: Settings) -> list[Call]:
    """Calls of a committed model: every regime in turn, lengths around its chunk, short on the CPU."""
    random = Random(settings.seed)
    chunk = subject.chunks.unpacked
    lengths = [chunk + 1, 1, chunk, chunk - 1, 2 * chunk + 3]
    if settings.device == "cuda":
        lengths += [5 * chunk + 17, 1000]
    drawn = []
    for at in range(settings.examples):
        call = problems.sample(Call, random)
        regime = REGIMES[at % len(REGIMES)]
        batch = call.batch if settings.device == "cuda" else 1
        call = replace(call, regime=regime, tokens=lengths[at % len(lengths)], batch=batch)
        drawn.append(call.for_model(subject.operator))
    return drawn


def models(specs: Sequence[Loaded], given: Sequence[Problem], settings: Settings) -> Iterator[Row]:
    """Rows of `specs`, on the given problems or on drawn calls, one after another as they are run."""
    for each in specs:
        if not each.has_kernels:
            continue
        subject = committed(each, settings)
        name = each.spec.model.name
        for call in [p.call for p in given] or calls(subject, settings):
            yield row(name, subject, Problem(None, call), Again(("ssmgen", "verify", str(each.path)), settings))


def drawn(given: Sequence[Problem], settings: Settings) -> Iterator[Row]:
    """Rows of problems whose models are drawn: generated in memory, or in a folder for cuTile's compiler."""
    if settings.archive is not None:
        raise UsageError("problem: a drawn model has no cubins in an archive", next="leave out --archive")
    for problem in given:
        with drawn_subject(problem, settings.device) as subject:
            yield row("(drawn)", subject, problem, Again(("ssmgen", "verify"), settings))


@contextmanager
def drawn_subject(problem: Problem, device: Device) -> Iterator[Subject]:
    """What a drawn problem runs on."""
    assert problem.drawn is not None
    spec, known = problem.drawn.spec(), problem.drawn.lock()
    operator, chunks = problem.drawn.operator, problem.drawn.chunks
    if device == "cpu":
        yield Subject(interpreted(spec, known), operator, chunks)
        return
    with tempfile.TemporaryDirectory(prefix="ssmgen-") as folder:
        # kernels are compiled as they lie on disk
        writing.write_files(Path(folder), generate.fileset(spec, known))
        yield Subject(load(Path(folder) / spec.model.name), operator, chunks, device)


def committed(each: Loaded, settings: Settings) -> Subject:
    """What a spec's problems run on: its committed package, or without one what it generates."""
    operator = each.spec.operators.mamba_chunk_scan_combined
    assert operator is not None
    chunks = Chunks.of(operator, each.schedules)
    return Subject(_kernels(each, settings), operator, chunks, settings.device)


def _kernels(each: Loaded, settings: Settings) -> ModuleType:
    if settings.device == "cpu":
        return interpreted_spec(each.path, each.spec, each.schedules)
    if settings.archive is not None:
        return load(package_directory(each.path), backend="cubin", archive=settings.archive)
    return load(package_directory(each.path))


def row(model: str, subject: Subject, problem: Problem, again: Again) -> Row:
    """Run one call; whatever an operator raises for it is a failure of the row."""
    shown = again.command(problem)
    try:
        result = check.run(subject, problem.call)
    except (SsmgenError, AssertionError, ValueError, TypeError, RuntimeError) as e:
        return Row(model, str(problem), None, f"{type(e).__name__}: {e}", shown)
    failure = None if result.passed else failure_of(result)
    return Row(model, str(problem), result, failure, shown)


def failure_of(result: Result) -> str:
    """What is wrong with a result, in words."""
    return (
        f"error {result.excess:.3g} times its limit (relative to the fp64 recurrence: out {result.out_error:.2e}, "
        f"final states {result.state_error:.2e})"
    )
