"""Every folder of tests/golden is a project of one spec: what it generates, or the error it ends in.

A case holds spec.yaml, lock.yaml where the lock exists, and either expected/ or stderr.txt. To accept a change:
pytest tests/test_golden.py --update-golden
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests.conftest import Project

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
UPDATE = "accept it with: pytest tests/test_golden.py --update-golden"


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, project: Project, request: pytest.FixtureRequest) -> None:
    folder = GOLDEN / case
    project.write(f"specs/{case}.yaml", (folder / "spec.yaml").read_text())
    if (folder / "lock.yaml").exists():
        project.write(f"specs/{case}.lock.yaml", (folder / "lock.yaml").read_text())
    outcome = project.run("generate", case)
    found = {"stderr.txt": outcome.err} if outcome.code else _tree(project.root / "generated", "expected/")
    assert outcome.code in (0, 2)
    assert not (outcome.code and (project.root / "generated").exists()), "an error left files behind"

    if request.config.getoption("--update-golden"):
        shutil.rmtree(folder / "expected", ignore_errors=True)
        (folder / "stderr.txt").unlink(missing_ok=True)
        for path, text in found.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    expected = _tree(folder / "expected", "expected/")
    if (folder / "stderr.txt").exists():
        expected["stderr.txt"] = (folder / "stderr.txt").read_text()
    assert sorted(found) == sorted(expected), UPDATE
    for path, text in found.items():
        assert text == expected[path], f"{case}/{path}: {UPDATE}"
        if path.endswith(".py"):
            compile(ast.parse(text), path, "exec")


def _tree(root: Path, prefix: str) -> dict[str, str]:
    return {prefix + p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}
