"""What all the adapters need: the candidate's changed files, a torch without a GPU, one line as the answer."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ssmgen.check import static
from tests.public_checkers.task import CANDIDATE


def changed(incumbent: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every Python file that the incumbent has otherwise or not at all, and of the host function.

    A host file that differs from the incumbent's by header and schedule alone is not among them, as in our own stage.
    """
    candidate = Path(os.environ[CANDIDATE])
    for path in sorted(candidate.rglob("*.py")):
        name = path.relative_to(candidate)
        before = incumbent / name
        if name.name == "_forward.py" or not before.exists() or not _same(before, path):
            yield name.as_posix(), path.read_text()


def _same(before: Path, path: Path) -> bool:
    if path.name not in static.HOST_FILES:
        return before.read_text() == path.read_text()
    return static.same_program(ast.parse(before.read_text()), ast.parse(path.read_text()))


def without_gpu() -> str:
    """The device; where it is the CPU, waiting for a GPU does nothing."""
    if torch.cuda.is_available():
        return "cuda:0"
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
    return "cpu"


def answer(accepted: bool, said: str, against: Sequence[str] = ()) -> None:
    """The last line that is printed, whatever a candidate printed before."""
    line = json.dumps({"accepted": accepted, "said": "; ".join(against) or said})
    sys.__stdout__.write(f"\n{line}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
