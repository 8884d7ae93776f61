"""Who catches what, as the README has it: a report of this package as a Markdown table.

python -m tests.public_checkers.table generated/report/public_checkers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.adversarial import CHEATS, CONTROLS, Candidate
from tests.public_checkers.__main__ import CHECKERS

NAMES = ("KernelBench", "SOL-ExecBench", "flashinfer-bench", "KernelGuard")


def rows(report: dict[str, Any]) -> Iterator[str]:
    """The table's lines; the candidates are those of the report, which must be all there are."""
    yield f"| candidate | it … | ssmgen | {' | '.join(NAMES)} |"
    yield "|---" * (3 + len(NAMES)) + "|"
    listed = report["candidates"]
    assert list(listed) == [c.name for c in (*CHEATS, *CONTROLS)]
    for candidate in (*CHEATS, *CONTROLS):
        row = listed[candidate.name]
        cells = [_cell(candidate, row.get(checker)) for checker in CHECKERS]
        yield f"| `{candidate.name}` | {candidate.does} | {row['ssmgen']} | {' | '.join(cells)} |"


def _cell(candidate: Candidate, found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if candidate.stage is None:
        return "accepted" if found["accepted"] else "**rejected**"
    return "**passes**" if found["accepted"] else "caught"


if __name__ == "__main__":
    print(*rows(json.loads(Path(sys.argv[1]).read_text())), sep="\n")
