"""Whether the timers agree: the checker's clock, which decides, and what a candidate's process says of itself.

Events and a profiler in the candidate's process can be forged, and so prove nothing; but where they say less than has
passed here, work was done where they do not look, or they were. It decides no speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssmgen.check.verdict import Finding, Stage

# of a batch, microseconds: what a clock in another process may see later, and kernels' spans leave out at both ends
_SLACK_US = 30.0
# relative: events against the checker's clock, a profiled batch against one that is not
_EVENTS, _SPAN = 0.05, 0.10
# of the wall clock, what may pass beside events before the host is what is measured
_HOST_BOUND = 0.30
# an answer takes as long on a GPU, in microseconds; of a batch; and where interpreters share cores
_ANSWER_US, _ANSWER, _ANSWER_INTERPRETED_US = 500.0, 0.10, 20_000.0


@dataclass(frozen=True)
class Clocks:
    """Microseconds of one batch by each timer; None where there is none."""

    wall_us: float
    """By the checker, less what an empty batch takes."""
    event_us: float | None
    span_us: float | None
    host_bound: bool = False
    """Whether the host's own time may be most of it, as the problem says."""
    late_us: float = 0.0
    """From the word that it is done, which stops the checker's clock, to the answer of the candidate's process."""


def disagreements(clocks: Clocks) -> Iterator[Finding]:
    """What the timers contradict each other in, each a reason to reject."""
    wall, event, span = clocks.wall_us, clocks.event_us, clocks.span_us
    if clocks.late_us > max(_ANSWER_US if event is not None else _ANSWER_INTERPRETED_US, _ANSWER * wall):
        yield _finding(f"a batch that is said to be done after {wall:.0f} us went on for {clocks.late_us:.0f} us")
    if event is not None:
        if event > wall * (1 + _EVENTS) + _SLACK_US:
            yield _finding(f"events say {event:.0f} us of a batch that took {wall:.0f} us: they are forged")
        if not clocks.host_bound and wall - event > max(_HOST_BOUND * wall, _SLACK_US):
            yield _finding(
                f"events say {event:.0f} us of a batch that took {wall:.0f} us: work beside their stream, or forged"
            )
    if span is None:
        return
    if span > wall * (1 + _SPAN) + _SLACK_US:
        yield _finding(f"kernels are said to span {span:.0f} us of a batch that took {wall:.0f} us")
    if event is not None and span > event * (1 + _SPAN) + _SLACK_US:
        yield _finding(f"kernels span {span:.0f} us where events say {event:.0f} us: work beside their stream")
    if not clocks.host_bound and wall - span > max(_HOST_BOUND * wall, _SLACK_US):
        yield _finding(f"kernels span {span:.0f} us of a batch that took {wall:.0f} us: the rest is not on the GPU")


def ran(clocks: Clocks, profiler: str) -> dict[str, str]:
    """Which timers there were, and why one was not."""
    return {
        "wall clock": "ran",
        "events": "ran" if clocks.event_us is not None else "not available: no GPU",
        "kernel spans": f"ran: {profiler}" if clocks.span_us is not None else f"not available: {profiler}",
    }


def _finding(what: str) -> Finding:
    return Finding(Stage.TIMING, what)
