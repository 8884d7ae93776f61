"""How long 200 drawn problems take: python tests/bench_verify.py [PROBLEMS]; exits 1 if that is over its budget.

Each is generated, interpreted and compared, and the first model of each class is compiled, with a cold cache. A script
to be run by hand on a quiet machine, not a test.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time

# seconds for 200 problems on 2 cores
BUDGET = 180.0
# problems a process draws at once: it compiles each class once
BATCH = 25


def run(batch: tuple[int, int]) -> tuple[int, float]:
    """How many of a batch's problems were checked, and the seconds of those that fail nothing."""
    from ssmgen import testing
    from ssmgen.verify import problems

    seed, count = batch
    start = time.perf_counter()
    for problem in problems.samples(count, seed):
        testing.check(problem, compile=True)
    return count, time.perf_counter() - start


def main() -> int:
    """Time them; 1 if they are over the budget."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    processes = min(2, os.cpu_count() or 1)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SSMGEN_CACHE_DIR"] = cache
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            batches = [(at, min(BATCH, count - at)) for at in range(0, count, BATCH)]
            done = sum(checked for checked, _ in pool.imap_unordered(run, batches))
    taken = time.perf_counter() - start
    print(f"{done} drawn problems in {taken:.0f} s on {processes} processes   (budget for 200: {BUDGET:.0f} s)")
    return int(taken > BUDGET * count / 200)


if __name__ == "__main__":
    sys.exit(main())
