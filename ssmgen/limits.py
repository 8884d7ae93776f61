"""How much a package's kernels can be given in one call, whatever its memory.

Kernels count in int32: a row's tokens in whole chunks, and the items of a persistent grid, of which there are fewer
than tokens times heads. A grid has so many blocks along each axis at most. Strides are int32 too, which the host's
checks see to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ssmgen import plans
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import Plan, RouteSchedule
from ssmgen.runtime import driver
from ssmgen.runtime.archive import INT32_MAX
from ssmgen.spec import Spec
from ssmgen.stages.base import Problem
from ssmgen.targets import target

# what cuda-tile takes along the first axis of a grid, and CUDA along the others
MAX_GRID = (driver.MAX_GRID, 65535, 65535)


@dataclass(frozen=True)
class Limits:
    """`rows` of a batch, or sequences of packed ones; `tokens` of all rows, each padded to whole chunks of `chunk`."""

    rows: int
    tokens: int
    chunk: int


def limits(spec: Spec, lock: Lock) -> Limits:
    """What every route of the spec's mamba_chunk_scan_combined can count, on each of its targets."""
    operator = spec.operators.mamba_chunk_scan_combined
    assert operator is not None
    each = []
    for target_name in spec.targets:
        for route in operator.routes:
            schedule = lock[target_name, mamba2.NAME, route].schedule
            plan, problem = plans.of_route(spec.model.name, operator, target(target_name), route, schedule)
            each.append((plan, schedule, problem))
    return of_routes(each)


def of_routes(routes: Iterable[tuple[Plan, RouteSchedule, Problem]]) -> Limits:
    """What all of a model's routes can count."""
    rows, tokens, chunk = INT32_MAX, INT32_MAX, 1
    for plan, schedule, problem in routes:
        chunk = max(chunk, problem.chunk)
        tokens = min(tokens, INT32_MAX // problem.shape.heads)
        for stage in plan.stages:
            grid = stage.grid(schedule.stage(stage.name), problem)
            for blocks, most in zip(grid, MAX_GRID, strict=False):
                # a persistent grid is no larger than the GPU
                if blocks.startswith("min("):
                    continue
                each = int(eval(blocks, {"__builtins__": {}}, {"batch": 1, "entries": 1, "n_chunks": 1}))
                if "n_chunks" in blocks:
                    tokens = min(tokens, most // each * problem.chunk)
                if "batch" in blocks or "entries" in blocks:
                    rows = min(rows, most // each)
    return Limits(rows, tokens, chunk)
