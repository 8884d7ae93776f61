"""What the GPU of this machine reaches: bytes a second of a copy, FLOPs a second of a matrix product.

It judges nothing: `physics` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ssmgen.check.physics import Hardware

# large beside any L2, and a product that fills every multiprocessor
_BYTES = 1 << 30
_SIDE = 8192
_TRIES = 8


def measured(hardware: Hardware) -> Hardware:
    """`hardware` with the best of several copies and products on the current GPU: 30 ms, and 2.4 GB for as long."""
    import torch

    source = torch.empty(_BYTES // 4, device="cuda").normal_()
    target = torch.empty_like(source)
    copied = 2 * _BYTES / _best_seconds(lambda: target.copy_(source))
    # of zeros a GPU multiplies faster than of what models have
    a, b = (torch.empty(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
    out = torch.empty_like(a)
    multiplied = 2 * _SIDE**3 / _best_seconds(lambda: torch.mm(a, b, out=out))
    return replace(hardware, copied=copied, multiplied={"bfloat16": multiplied, "float16": multiplied})


def _best_seconds(work: Callable[[], object]) -> float:
    import torch

    found: list[float] = []
    for _ in range(_TRIES):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        work()
        marks[1].record()
        marks[1].synchronize()
        found.append(marks[0].elapsed_time(marks[1]) * 1e-3)
    return min(found)
