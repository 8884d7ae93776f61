"""Decisions hold what they promise on simulated machines, and the careless estimators that they replace do not."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("torch")

from ssmgen.check import statistics
from ssmgen.check.statistics import Estimate, decide, estimate, floor, of_round, spent, student, voids
from ssmgen.check.verdict import Outcome


def test_students_quantiles():
    # Abramowitz and Stegun, table 26.10
    for degrees, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (8, 2.306), (15, 2.131), (120, 1.980)):
        assert student(0.975, degrees) == pytest.approx(expected, abs=6e-4)
    assert student(0.995, 7) == pytest.approx(3.499, abs=6e-4)
    assert student(0.025, 7) == -student(0.975, 7)
    with pytest.raises(ValueError, match="probability 1"):
        student(1, 3)


def test_blocks_are_ratios_of_medians():
    assert statistics.block([2.0, 2.0, 50.0], [1.0, 1.0, 1.0]) == pytest.approx(math.log(0.5))
    for wrong in ([], [0.0], [-1.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="expected positive times"):
            statistics.block([1.0], wrong)
        with pytest.raises(ValueError, match="expected positive times"):
            statistics.block(wrong, [1.0])


def test_an_interval_by_hand():
    found = estimate([[0.01, 0.03], [0.02, 0.04], [0.0, 0.02], [0.03, 0.05]])
    means = [0.02, 0.03, 0.01, 0.04]
    half = 3.182 * math.sqrt(sum((m - 0.025) ** 2 for m in means) / 3) / 2
    assert found.effect == pytest.approx(0.025)
    assert found.low == pytest.approx(0.025 - half, abs=1e-5)
    assert found.high == pytest.approx(0.025 + half, abs=1e-5)
    assert found.interval == (math.exp(found.low), math.exp(found.high))
    assert found == estimate([[0.01, 0.03], [0.02, 0.04], [0.0, 0.02], [0.03, 0.05]])


def test_a_process_that_stumbled_in_one_block_does_not_decide():
    steady = [[-0.03, -0.031, -0.029, -0.03 + n / 1e4] for n in range(8)]
    stumbled = [[*blocks[:3], 0.3] for blocks in steady]
    assert estimate(stumbled).high < -0.025
    # one that was slow all the time is another matter
    assert estimate([*steady[:7], [0.3] * 4]).high > 0


def test_one_process_is_no_evidence():
    with pytest.raises(ValueError, match="at least two"):
        estimate([[0.0] * 100])


@pytest.mark.parametrize(("low", "high", "expected"), [
    (-0.05, -0.011, Outcome.FAST), (-0.05, -0.009, Outcome.AMBG), (-0.009, 0.009, Outcome.SAME),
    (-0.011, 0.0, Outcome.AMBG), (0.0, 0.011, Outcome.AMBG), (0.009, 0.05, Outcome.AMBG), (0.011, 0.05, Outcome.SLOW),
    (-0.02, 0.02, Outcome.AMBG),
])  # fmt: skip
def test_decisions(low, high, expected):
    assert decide(Estimate((low + high) / 2, low, high, 8, 0.05), 0.01) == expected


def test_the_floor_is_what_the_machine_does_to_itself():
    assert floor(Estimate(0.0, -0.002, 0.003, 8, 0.05)) == 0.01
    assert floor(Estimate(0.0, -0.02, 0.003, 8, 0.05)) == pytest.approx(0.04)
    assert not voids(Estimate(0.0, -0.02, 0.003, 8, 0.05))
    assert voids(Estimate(0.0, -0.03, -0.02, 8, 0.05))


def test_looks_spend_no_more_than_all():
    shares = [spent(look, 3) for look in (1, 2, 3)]
    assert sum(shares) == pytest.approx(0.05)
    # O'Brien and Fleming: almost nothing at first
    assert shares[0] < 0.001 < shares[1] < shares[2]
    assert sum(of_round(n) for n in range(1, 10_000)) == pytest.approx(0.05, rel=1e-3)


# the noise of a machine, as relative deviations: of a process, of a drift that both sides share, of a sample
PROCESS, DRIFT, SAMPLE, OUTLIERS = 0.006, 0.01, 0.0075, 0.05


def machine(draw: random.Random, gain: float, processes: int, samples: int = 3) -> list[list[float]]:
    """Blocks of A B B A twice, in pairs of fresh processes."""
    found = []
    for _ in range(processes):
        sides = [draw.gauss(0, PROCESS), draw.gauss(0, PROCESS) + math.log(1 - gain)]
        drift, blocks = 0.0, []
        for order in ((0, 1), (1, 0)) * 2:
            times = {}
            for side in order:
                drift += draw.gauss(0, DRIFT / 4)
                times[side] = [
                    math.exp(sides[side] + drift + draw.gauss(0, SAMPLE)) * (1.3 if draw.random() < OUTLIERS else 1)
                    for _ in range(samples)
                ]
            blocks.append(statistics.block(times[0], times[1]))
        found.append(blocks)
    return found


def outcomes(gain: float, count: int, decided) -> list[Outcome]:
    draw = random.Random(gain)
    return [decided(draw, gain) for _ in range(count)]


def sequential(draw: random.Random, gain: float) -> Outcome:
    """As the checker does it: eight pairs, and twice four more while it cannot tell."""
    seen: list[list[float]] = []
    for look, more in enumerate((8, 4, 4), 1):
        seen += machine(draw, gain, more)
        outcome = decide(estimate(seen, spent(look, 3)), statistics.LEAST_FLOOR)
        if outcome is not Outcome.AMBG:
            return outcome
    return outcome


def test_no_gain_is_hardly_ever_called_one():
    found = outcomes(0.0, 400, sequential)
    # thirty comparisons of a session then have a false FAST with 3 % at most
    assert found.count(Outcome.FAST) + found.count(Outcome.SLOW) == 0
    assert found.count(Outcome.SAME) > 200


def test_three_percent_are_found():
    found = outcomes(0.03, 200, sequential)
    assert found.count(Outcome.FAST) >= 180
    assert found.count(Outcome.SLOW) == 0
    assert outcomes(-0.03, 100, sequential).count(Outcome.SLOW) >= 90


def test_the_interval_holds_what_it_promises():
    draw = random.Random(1)
    truth = math.log(0.98)
    inside = sum(f.low <= truth <= f.high for f in (estimate(machine(draw, 0.02, 8)) for _ in range(400)))
    assert inside >= 0.93 * 400


def test_samples_of_one_process_would_be_called_gains():
    def pseudo(draw: random.Random, gain: float) -> Outcome:
        # the same number of blocks, of one pair of processes, taken for pairs of their own
        one = [[b] for blocks in machine(draw, gain, 1) for b in blocks] * 4
        return decide(estimate(one), 0.0)

    found = outcomes(0.0, 200, pseudo)
    assert found.count(Outcome.FAST) > 20
