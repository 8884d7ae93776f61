"""How long the everyday commands take: python tests/bench_cli.py [REPEATS]; exits 1 if one is over its budget.

A script to be run by hand on a quiet machine, not a test: a timed test fails on a busy one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# seconds on 2 cores
BUDGETS = {"--help": 0.3, "generate --check": 2.0, "generate -o {scratch}": 2.0}


def seconds(arguments: list[str]) -> float:
    """One run of ssmgen, start to end."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "ssmgen", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"ssmgen {' '.join(arguments)} failed:\n{done.stdout.decode()}{done.stderr.decode()}")
    return time.perf_counter() - start


def main() -> int:
    """Time each command; 1 if one is over its budget."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    over = 0
    for command, budget in BUDGETS.items():
        taken = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as scratch:
                taken.append(seconds(command.format(scratch=scratch).split()))
        over += min(taken) > budget
        print(f"ssmgen {command:<24} {min(taken):.2f} s   (of {repeats}; budget {budget} s)")
    return min(over, 1)


if __name__ == "__main__":
    sys.exit(main())
