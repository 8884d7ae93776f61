"""From samples to a decision: is the candidate faster, by more than chance and than the noise of this machine?

The unit of replication is a pair of fresh processes: what differs between them (placement, clocks, the state of a
machine) is most of the error, and no number of samples within one shows it. Of each block the ratio of medians is
taken, of each process the median of their logarithms, for a machine that stumbles once must not decide, and of all
processes the mean. Its interval is Student's over the processes or a bootstrap's, whichever is wider (Hoefler and Belli
2015, rules 5 to 8). Blocks are not resampled: of four, one on which the machine stumbled is drawn twice too often. It
measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

from ssmgen.check.verdict import Outcome

ALPHA = 0.05
# below this no difference is called one, however quiet the machine
LEAST_FLOOR = 0.01
_RESAMPLES = 2000

Processes = Sequence[Sequence[float]]
"""Of each pair of processes, of each of its blocks the logarithm of candidate over incumbent."""


@dataclass(frozen=True)
class Estimate:
    """The mean log ratio candidate / incumbent, and its interval."""

    effect: float
    low: float
    high: float
    processes: int
    alpha: float

    @property
    def ratio(self) -> float:
        return math.exp(self.effect)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the ratio."""
        return math.exp(self.low), math.exp(self.high)


def block(incumbent: Sequence[float], candidate: Sequence[float]) -> float:
    """The log ratio of one block's medians; ValueError for a sample that is no positive time."""
    if not (incumbent and candidate and all(0 < t < math.inf for t in (*incumbent, *candidate))):
        raise ValueError(f"found samples {list(incumbent)} and {list(candidate)}, expected positive times of both")
    return math.log(median(candidate) / median(incumbent))


def estimate(processes: Processes, alpha: float = ALPHA) -> Estimate:
    """The effect, and an interval that misses it with a probability of at most `alpha`.

    ValueError for fewer than two processes: of one nobody knows by how much another would differ.
    """
    if len(processes) < 2 or not all(processes):
        raise ValueError(f"found {len(processes)} processes, expected at least two, each with a block")
    means = [median(blocks) for blocks in processes]
    effect = fmean(means)
    half = student(1 - alpha / 2, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    low, high = _bootstrap(means, alpha)
    return Estimate(effect, min(effect - half, low), max(effect + half, high), len(means), alpha)


def floor(same: Estimate) -> float:
    """What this machine calls a difference between an implementation and itself, as a log ratio; see `voids`."""
    return max(LEAST_FLOOR, 2 * max(abs(same.low), abs(same.high)))


def voids(same: Estimate) -> bool:
    """Whether an implementation was measured to differ from itself: nothing measured beside it counts."""
    return decide(same, LEAST_FLOOR) in (Outcome.FAST, Outcome.SLOW)


def decide(found: Estimate, noise: float) -> Outcome:
    """FAST or SLOW where the interval lies wholly beyond the noise, SAME where wholly within, AMBG otherwise."""
    if found.high < -noise:
        return Outcome.FAST
    if found.low > noise:
        return Outcome.SLOW
    return Outcome.SAME if -noise < found.low and found.high < noise else Outcome.AMBG


def spent(look: int, looks: int, alpha: float = ALPHA) -> float:
    """The error probability of one of `looks` equally spaced looks, so that together they err with at most `alpha`.

    What may be spent by then is Lan and DeMets' (1983) form of O'Brien and Fleming's boundary, 2 - 2 Phi(z / sqrt(t));
    a look gets what has been added since the last one, which is on the safe side of an exact boundary.
    """
    normal = NormalDist()
    z = normal.inv_cdf(1 - alpha / 2)

    def by(at: int) -> float:
        return 2 - 2 * normal.cdf(z / math.sqrt(at / looks)) if at else 0.0

    return by(look) - by(look - 1)


def of_round(number: int, alpha: float = ALPHA) -> float:
    """The error probability of a search's comparison 1, 2, …, which all together err with at most `alpha`."""
    return alpha * 6 / (math.pi * number) ** 2


def student(probability: float, degrees: int) -> float:
    """The quantile of Student's t for a whole number of degrees of freedom.

    By bisection of its distribution, which is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"found probability {probability}, {degrees} degrees of freedom")
    if probability < 0.5:
        return -student(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, degrees) < probability else (low, middle)
    return high


def _student_cdf(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    term, total = math.cos(angle) if degrees % 2 else 1.0, 0.0
    for k in range(degrees % 2 + 1, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    within = math.sin(angle) * total
    if degrees % 2:
        within = 2 / math.pi * (angle + within)
    return 0.5 + within / 2


def _bootstrap(means: Sequence[float], alpha: float) -> tuple[float, float]:
    """Quantiles of the mean over resampled processes; how blocks differ within them is part of how processes do."""
    import torch

    values = torch.tensor(means, dtype=torch.float64)
    # the same samples always decide alike
    generator = torch.Generator().manual_seed(int(values.sum().abs() * 2**40) % 2**62)
    drawn = values[torch.randint(len(values), (_RESAMPLES, len(values)), generator=generator)].mean(1)
    low, high = drawn.quantile(torch.tensor([alpha / 2, 1 - alpha / 2], dtype=torch.float64)).tolist()
    return low, high
