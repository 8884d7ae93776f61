"""KernelGuard: it reads, and runs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.public_checkers.adapting import answer, changed

PROFILE = "generic"


def main(executable: Path, incumbent: Path) -> None:
    """Rejected is what it would filter out; what it notes beside that, it lets pass."""
    against, noted = [], []
    for name, text in changed(incumbent):
        command = [str(executable), "--api-mode", "--profile", PROFILE]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        if found["should_filter"]:
            against.append(f"{name}: {found['filter_reason']}")
        noted += [pattern["pattern"] for pattern in found["matched_patterns"]]
    answer(not against, f"notes {', '.join(noted)}" if noted else "nothing", against)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
