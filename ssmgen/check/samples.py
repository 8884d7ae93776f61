"""How much is timed, and what was measured: plain data.

It measures and judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from ssmgen.check.physics import COLD_BYTES
from ssmgen.check.verdict import Finding
from ssmgen.check.verifying import Numbers


@dataclass(frozen=True)
class Plan:
    """How much is timed, and how: the process is what is repeated, a block what is interleaved."""

    processes: int = 8
    rounds: int = 2
    """Of A B B A, in each pair of processes."""
    batches: int = 3
    """A block's."""
    batch_us: float = 3000.0
    """Microseconds that a batch takes at least, as long as its calls are not too many."""
    calls: tuple[int, int] = (4, 64)
    """Of a batch: at least, and at most."""
    graph: bool = True
    """Whether a batch is one CUDA graph; otherwise its calls are made one by one, and the host's time counts."""
    profile: bool = True
    """Whether a profiler also says how long the candidate's kernels take: some seconds."""
    cold_bytes: int = COLD_BYTES
    """Bytes that a batch's calls hold at least, so that none finds its inputs in L2."""
    most_bytes: int = 3 << 30
    """Bytes that they hold at most, unless the fewest calls need more: all processes have theirs at once."""


@dataclass(frozen=True)
class Block:
    """Microseconds a call, one number a batch."""

    incumbent: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True)
class Reported:
    """Of one side, microseconds a call: by the checker's clock, and as its process says, None where it is silent."""

    wall_us: float
    event_us: float | None
    span_us: float | None
    kernels: tuple[str, ...] = ()
    late_us: float = 0.0
    """From the word that a batch is done to the answer of the process, which is not a call's time but a batch's."""


@dataclass
class Timed:
    """What was measured."""

    processes: list[list[Block]] = field(default_factory=list)
    """Of each pair of processes its blocks."""
    reported: dict[str, Reported] = field(default_factory=dict)
    calls: int = 0
    """In a batch."""
    empty_us: float = 0.0
    """What starting and ending a batch costs, and was taken off."""
    numbers: Numbers = field(default_factory=Numbers)
    findings: list[Finding] = field(default_factory=list)

    def median_us(self, side: str) -> float:
        """Of one side, "incumbent" or "candidate", over all batches."""
        found: list[float] = [t for blocks in self.processes for block in blocks for t in getattr(block, side)]
        return median(found)
