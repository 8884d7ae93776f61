"""The command line that the package describes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ssmgen.check import static
from ssmgen.check.compare import conditions
from tests import public_checkers
from tests.adversarial import CHEATS, CONTROLS, MODEL, NAME, Candidate
from tests.public_checkers.task import ARCHIVE, CANDIDATE

# in the order of the table; those that only read
CHECKERS = ("kernelbench", "sol_execbench", "flashinfer_bench", "kernelguard")
READING = ("kernelguard",)
SECONDS = 90


def judged(checker: str, where: Path, candidate: Path, incumbent: Path, cubins: Path | None) -> dict[str, Any]:
    """What one checker says of one candidate; a candidate that ends or holds up its process gets no verdict."""
    command = [sys.executable, "-m", f"tests.public_checkers.{checker}", str(where), str(incumbent)]
    environment = os.environ | {CANDIDATE: str(candidate)} | ({ARCHIVE: str(cubins)} if cubins else {})
    start = time.monotonic()
    try:
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"accepted": False, "said": f"no answer within {SECONDS} s", "seconds": SECONDS}
    said = [line for line in done.stdout.splitlines() if line.startswith('{"accepted"')]
    found: dict[str, Any] = {"accepted": False, "said": f"no verdict: the process ended with {done.returncode}"}
    if said:
        found = json.loads(said[-1])
    elif done.returncode == 1:
        raise RuntimeError(f"{checker} could not be run\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return found | {"seconds": round(time.monotonic() - start, 1)}


def version(checker: str, where: Path) -> str:
    """The commit of a checkout, or what is written beside a package of an index."""
    if (where / ".git").exists():
        command = ["git", "-C", str(where), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    name = f"{checker}-*.dist-info"
    found = [*where.glob(name), *where.parent.parent.glob(f"lib/python*/site-packages/{name}")]
    return found[0].stem.partition("-")[2] if found else "unknown"


def ours(candidate: Candidate, folder: Path, incumbent: Path) -> str:
    """The stages that reject it: what is read here, the others as the red team's own tests see it."""
    if candidate.stage is None:
        return "accepted"
    stages = ["static"] if static.check(folder, incumbent) else []
    return ", ".join([*stages, str(candidate.stage)])


def main() -> None:
    """Everything that was named, of every candidate."""
    about = public_checkers.__doc__
    parser = argparse.ArgumentParser(
        prog="python -m tests.public_checkers", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    for checker in CHECKERS:
        parser.add_argument(f"--{checker.replace('_', '-')}", type=Path)
    parser.add_argument("--cubins", type=Path, help="a folder as tests/gpu/test_checker.py makes it")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    device = "cuda" if args.cubins else "cpu"
    named = {checker: getattr(args, checker) for checker in CHECKERS}
    now = conditions(device) | {"checkers": {c: version(c, where) for c, where in named.items() if where is not None}}
    kept = json.loads(args.json.read_text()) if args.json.exists() else {"conditions": now, "candidates": {}}
    if kept["conditions"] != now:
        parser.error(f"{args.json} was begun under other conditions: {kept['conditions']}, now {now}")
    with tempfile.TemporaryDirectory() as folder:
        incumbent = CONTROLS[0].write(Path(folder) / "incumbent")
        for candidate in (*CHEATS, *CONTROLS):
            row = kept["candidates"].setdefault(candidate.name, {"does": candidate.does})
            here = args.cubins / candidate.name if args.cubins else Path(folder) / candidate.name
            package = here / NAME if args.cubins else candidate.write(here)
            row["ssmgen"] = ours(candidate, package, incumbent)
            # one of other dtypes is no answer to the task that they set
            asked = candidate.model.x == MODEL.x
            for checker, where in named.items():
                runs = checker in READING or (asked and (args.cubins or not candidate.cuda))
                if where is None or not runs or checker in row:
                    continue
                row[checker] = judged(checker, where, package, incumbent, here / "cubins" if args.cubins else None)
                print(f"{candidate.name:22} {checker:18} {row[checker]}", flush=True)
            args.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
