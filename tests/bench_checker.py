"""How often the checker errs about speed on this machine: the same against itself, and against itself made slower.

    python tests/bench_checker.py --archive cubins.tar.xz --json checker.json --same 30 --slower 10 --seconds 300

It goes on where the JSON file ends, so that a machine may be taken away between calls. The slower incumbent launches
one more kernel of its own; by how much that is slower, all its comparisons together say.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

MODEL, TOKENS = "nemotron_h_8b", 2048
LAUNCH = "    ct.launch(stream, ("


def slower(package: Path, folder: Path, launches: int) -> Path:
    """A copy of the package that launches its first kernel more often, for three quarters of what it does."""
    copy = folder / package.name
    shutil.copytree(package, copy)
    file = copy / "_forward.py"
    text = file.read_text()
    start = text.index(LAUNCH)
    end = text.index("\n    ct.launch(", start) + 1
    more = text[start:end].replace("(n_chunks, ", "(max(1, n_chunks * 3 // 4), ")
    file.write_text(text[:end] + more * launches + text[end:])
    return copy


def main() -> None:
    """The command line in the module's docstring."""
    from ssmgen import spec
    from ssmgen.check.compare import Package, Problem, Settings, compare, conditions
    from ssmgen.check.process import Zygote
    from ssmgen.check.samples import Plan
    from ssmgen.paths import project
    from ssmgen.verify.problems import Call

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--same", type=int, default=30)
    parser.add_argument("--slower", type=int, default=10)
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500.0)
    args = parser.parse_args()
    begun = time.monotonic()

    here = project(Path(__file__))
    package = here.generated / MODEL
    operator = spec.load(here.specs / f"{MODEL}.yaml").operators.mamba_chunk_scan_combined
    problem = Problem("mamba_chunk_scan_combined", operator, Call(tokens=TOKENS))
    plan = Plan(rounds=2, batches=1, batch_us=2000.0)
    settings = Settings(secret=0, looks=(8,), plan=plan)
    now = conditions("cuda") | {"problem": f"{MODEL}, batch 1, {TOKENS} tokens", "plan": repr(plan)}
    kept: dict[str, Any] = {"conditions": now, "same": [], "slower": []}
    if args.json.exists():
        kept = json.loads(args.json.read_text())
        if kept["conditions"] != now:
            parser.error(f"{args.json} was begun under other conditions: {kept['conditions']}, now {now}")
    with tempfile.TemporaryDirectory() as folder, Zygote() as zygote:
        slow = slower(package, Path(folder), args.launches)
        for kind, incumbent, wanted in (("slower", slow, args.slower), ("same", package, args.same)):
            while len(kept[kind]) < wanted:
                start = time.monotonic()
                sides = Package(incumbent, args.archive), Package(package, args.archive)
                verdict = compare(*sides, problem, settings, zygote=zygote)
                settings = replace(settings, plan=replace(plan, profile=False))
                row = dict(outcome=verdict.outcome, ratio=verdict.ratio, interval=verdict.interval)
                row |= dict(findings=[str(f) for f in verdict.findings], ran=verdict.ran)
                row |= {n: verdict.figures.get(n) for n in ("reported", "calls_in_a_batch", "empty_batch_us")}
                blocks = verdict.figures.get("samples_us", [])
                row["samples_us"] = [[(b["incumbent"], b["candidate"]) for b in each] for each in blocks]
                row["seconds"] = time.monotonic() - start
                kept[kind].append(row)
                args.json.write_text(json.dumps(kept) + "\n")
                print(kind, len(kept[kind]), verdict.outcome, verdict.ratio, verdict.interval, *verdict.findings,
                      f"{row['seconds']:.1f} s", flush=True)  # fmt: skip
                if time.monotonic() - begun + 1.2 * row["seconds"] > args.seconds:
                    return
    for kind in ("same", "slower"):
        ratios = [math.log(row["ratio"]) for row in kept[kind] if row["ratio"]]
        print(kind, {o: [r["outcome"] for r in kept[kind]].count(o) for o in ("FAST", "SAME", "AMBG", "SLOW")},
              f"ratio {math.exp(statistics.fmean(ratios)):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
