"""What came of a candidate: accepted with a speed, or rejected at a stage with the reason.

It decides nothing; the stages do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """Where a candidate can be rejected, in the order in which it is tried."""

    CONTRACT = "contract"
    """The contract cannot tell right from wrong, so nothing is judged by it."""
    STATIC = "static"
    """The syntax tree: what it imports, calls, and carries in which dtype."""
    BUILD = "build"
    """Import and compilation in a clean cache."""
    ISOLATION = "isolation"
    """The candidate's process: it died, hung, started threads or processes, or wrote where it must not."""
    VERIFY = "verify"
    """Results, inputs, guard bands, repeats, on secret shapes and values."""
    TIMING = "timing"
    """Results of timed calls, and timers that disagree."""
    PHYSICS = "physics"
    """Faster than the hardware allows."""


class Outcome(StrEnum):
    """The verdict in one word. QUARANTINED: too good to be believed without a second look."""

    FAST = "FAST"
    SAME = "SAME"
    SLOW = "SLOW"
    AMBG = "AMBG"
    REJECTED = "REJECTED"
    QUARANTINED = "QUARANTINED"


@dataclass(frozen=True)
class Finding:
    """One reason: the stage that found it, what it is, and where (a file and line, a tensor, a call)."""

    stage: Stage
    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.stage}: {self.where + ': ' if self.where else ''}{self.what}"


@dataclass(frozen=True)
class Verdict:
    """What came of a candidate against an incumbent on a problem."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    """Why it was rejected or quarantined; empty otherwise."""
    ratio: float | None = None
    """The candidate's time over the incumbent's; None where nothing was timed."""
    interval: tuple[float, float] | None = None
    """A confidence interval of `ratio`."""
    ran: dict[str, str] = field(default_factory=dict)
    """Every check by name: "ran", or why it was not available here. None is skipped silently."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What the verdict rests on: samples, noise floor, versions, GPU."""

    @property
    def accepted(self) -> bool:
        """Whether it is right, as far as it was checked: not whether it is faster."""
        return self.outcome not in (Outcome.REJECTED, Outcome.QUARANTINED)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)
