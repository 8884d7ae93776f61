"""The README says what the code does: architectures, and the one test command that CI also runs."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from ssmgen.configs import READERS, refused

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# spellings that only occur inside other configs, or a remote-code twin of one that is listed
NESTED = ("_text", "_text_01", "Text01")


@pytest.mark.parametrize("model_type", [n for n in [*READERS, *refused.REASONS] if not n.endswith(NESTED)])
def test_every_architecture_is_in_the_table(model_type: str) -> None:
    row = next(line for line in README.splitlines() if line.startswith("|") and f"`{model_type}`" in line)
    assert ("refused" in row) == (model_type in refused.REASONS)


def test_ci_finds_the_test_command() -> None:
    commands = [line for line in README.splitlines() if "python -m pytest" in line]
    assert len(commands) == 1
    assert "grep -m1 'python -m pytest' README.md" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_who_catches_what_is_as_it_was_measured() -> None:
    """All of the red team is in the table, and nothing in it that the report has otherwise."""
    pytest.importorskip("torch")
    from tests.public_checkers import table

    report = json.loads((ROOT / "generated" / "report" / "public_checkers.json").read_text(encoding="utf-8"))
    assert "\n".join(table.rows(report)) in README


def test_the_checker_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs as it stands, up to the call, which takes what it is given."""
    pytest.importorskip("torch")
    from ssmgen.check import compare
    from ssmgen.check.verdict import Outcome, Verdict

    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "compare(" in block]
    asked: list[inspect.BoundArguments] = []
    signature = inspect.signature(compare.compare)

    def answered(*given: object, **named: object) -> Verdict:
        asked.append(signature.bind(*given, **named))
        return Verdict(Outcome.SAME)

    monkeypatch.setattr(compare, "compare", answered)
    monkeypatch.chdir(ROOT)
    exec(example, {})
    (arguments,) = asked
    incumbent, problem = arguments.arguments["incumbent"], arguments.arguments["problem"]
    assert (incumbent.folder / "MANIFEST.json").exists()
    assert problem.contract.name == "mamba_chunk_scan_combined"
    assert problem.operator.shape.heads == 128
