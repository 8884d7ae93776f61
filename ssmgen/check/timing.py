"""The stage that times: pairs of fresh processes, incumbent and candidate by turns, every timed call looked at.

    for each pair of processes:  A B B A, A B B A      each letter a block of batches, each batch calls in a row
    one batch:                   values and places nobody has seen -> go -> done, by this process's clock -> right?

The clock that decides runs here, from the word that starts a batch to the word that ends it; what events and a profiler
in the candidate's process say is kept beside it. It judges no speed: `statistics` does.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import torch

from ssmgen.check import memory, verifying
from ssmgen.check.memory import Call, Layout, Memory
from ssmgen.check.process import Lost, Tampered, Worker, Zygote
from ssmgen.check.samples import Block, Plan, Reported, Timed
from ssmgen.check.verdict import Finding, Stage
from ssmgen.check.verifying import Subject

if TYPE_CHECKING:
    from torch import Tensor

# bytes that are read before a batch: several times any GPU's L2
_COLD = 256 << 20
# empty batches by which the cost of starting and ending one is known
_EMPTY = 9
# of calls whose results are the incumbent's to the bit, those that are also compared with fp64
_EVALUATED = 1 / 3
# microseconds: no time that is told here is longer
_LONGEST = 1e12
# calls of the batch by which a batch's length is chosen
_FIRST = 4


def measure(zygote: Zygote, sides: tuple[Subject, Subject], call: Any, plan: Plan, timed: Timed | None = None) -> Timed:
    """Time (incumbent, candidate) on one call's shape, in more pairs of processes than `timed` has already.

    It ends at the first finding, which is the candidate's. Raises RuntimeError for what the incumbent does wrong:
    nothing can be compared with it.
    """
    timed = timed or Timed()
    base = sides[0].contract.given(sides[0].operator, call, sides[0].device)
    timed.numbers.planned += 2 * plan.processes * 2 * plan.rounds * plan.batches * plan.calls[1]
    pairs: list[_Pair] = []
    try:
        # all at once: they wait for the driver side by side, and then for their turn
        pairs += [_Pair(zygote, sides, base, plan) for _ in range(plan.processes)]
        for step in (_Pair.ready, _Pair.run):
            for pair in pairs:
                try:
                    step(pair, timed)
                except Lost as e:
                    if not isinstance(e, Tampered):
                        pair.blame(e.finding)
                    timed.findings.append(e.finding)
                    return timed
    finally:
        for end in (_Pair.end, _Pair.reap):
            for pair in pairs:
                end(pair)
    return timed


def _number(said: Any) -> float | None:
    """What a process says is a time, if it can be one."""
    return float(said) if isinstance(said, int | float) and 0 <= said < _LONGEST else None


def no_measure(finding: Finding) -> RuntimeError:
    """What is raised where the incumbent is what is wrong."""
    return RuntimeError(f"the incumbent is not what can be compared with: {finding}")


@dataclass
class _Side:
    """One process of a pair."""

    subject: Subject
    lent: Memory
    worker: Worker
    layout: Layout
    walls: list[float] = field(default_factory=list)
    lates: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Ran:
    """A call of a batch, and what it left."""

    side: _Side
    call: Call
    results: Mapping[str, Tensor]


class _Pair:
    """A process of each side, and the values that both are given."""

    def __init__(self, zygote: Zygote, sides: tuple[Subject, Subject], base: dict[str, Any], plan: Plan) -> None:
        self._random = SystemRandom()
        self._zygote = zygote
        self._base, self._plan = base, plan
        contract, operator = sides[0].contract, sides[0].operator
        self._contract, self._operator = contract, operator
        size = memory.size_of(base, contract.outputs(operator, base))
        self._least = max(plan.calls[0], -(-plan.cold_bytes // size) if sides[0].device == "cuda" else 0)
        self._most = min(plan.calls[1], max(self._least, plan.most_bytes // size))
        self._sides = [self._side(subject, size * max(self._most, self._least)) for subject in sides]
        self._noise = torch.Generator(device=sides[0].device)
        self._noise.manual_seed(self._random.getrandbits(62))
        self._cold = torch.zeros(_COLD // 4, device="cuda") if sides[0].device == "cuda" else None
        self._active = self._sides[0]

    def _side(self, subject: Subject, size: int) -> _Side:
        lent = subject.memory(size)
        worker = self._zygote.fork(lent, subject.device)
        return _Side(subject, lent, worker, Layout(lent, self._random))

    def end(self) -> None:
        """Kill both."""
        for side in self._sides:
            side.worker.end()

    def reap(self) -> None:
        """Wait for them to have ended, and free what they were lent."""
        for side in self._sides:
            self._zygote.reap(side.worker.process)
            side.lent.close()

    def blame(self, finding: Finding) -> None:
        """RuntimeError, if it is the incumbent's."""
        if self._active is self._sides[0]:
            raise no_measure(finding)

    def ready(self, timed: Timed) -> None:
        """Wait for both to be there, and open what they run."""
        for side in self._sides:
            self._active = side
            side.worker.ready()
            side.worker.open(side.subject.package)

    def run(self, timed: Timed) -> None:
        """All of its blocks."""
        self._begin(timed)
        timed.processes.append([block for _ in range(self._plan.rounds) for block in self._round(timed)])
        if not timed.reported:
            timed.reported = self._reported(timed)

    def _begin(self, timed: Timed) -> None:
        """Learn how many calls a batch has and what an empty one costs."""
        for side in self._sides:
            self._active = side
            # kernels are loaded by a first call, which no graph may do
            self._judge(self._batch(side, [self._fresh()], timed, graph=False), timed)
            side.worker.watch()
        self._active = self._sides[0]
        empty = []
        for side in self._sides * _EMPTY:
            side.worker.arm([], False)
            self._clear_caches()
            empty.append(side.worker.batch()[0])
        timed.empty_us = statistics.median(empty)
        if not timed.calls:
            first = [self._fresh() for _ in range(min(_FIRST, self._most))]
            self._judge(self._batch(self._sides[0], first, timed, self._plan.graph), timed)
            count = round(self._plan.batch_us / max(self._sides[0].walls[-1], 0.01))
            timed.calls = max(self._least, min(count, self._most))
        for side in self._sides:
            side.walls.clear()
            side.lates.clear()
            side.events.clear()

    def _round(self, timed: Timed) -> Iterator[Block]:
        """A B, then B A."""
        for order in ((0, 1), (1, 0)):
            given = [[self._fresh() for _ in range(timed.calls)] for _ in range(self._plan.batches)]
            walls: dict[int, list[float]] = {}
            ran: list[_Ran] = []
            for which in order:
                side = self._active = self._sides[which]
                before = len(side.walls)
                for values in given:
                    ran += self._batch(side, values, timed, self._plan.graph)
                walls[which] = side.walls[before:]
            self._judge(ran, timed)
            yield Block(tuple(walls[0]), tuple(walls[1]))

    def _reported(self, timed: Timed) -> dict[str, Reported]:
        """What every timer says of each side, in this pair."""
        found = {}
        for name, side in zip(("incumbent", "candidate"), self._sides, strict=True):
            self._active = side
            said: dict[str, Any] = {}
            # of the incumbent nothing is to be found out
            if side.subject.device == "cuda" and name == "candidate" and self._plan.profile:
                side.layout.start()
                values = [self._fresh() for _ in range(timed.calls)]
                placed = [self._given(side, self._reserved(side, each), each).placed for each in values]
                self._clear_caches()
                said = side.worker.profile(placed, self._plan.graph)
            span = _number(said.get("span_us"))
            found[name] = Reported(
                statistics.median(side.walls),
                statistics.median(side.events) if side.events else None,
                span / timed.calls if span is not None else None,
                tuple(map(str, said.get("kernels", ()))),
                statistics.median(side.lates),
            )
        return found

    def _fresh(self) -> dict[str, Any]:
        return self._contract.fresh(self._base, self._noise)

    def _reserved(self, side: _Side, given: Mapping[str, Any]) -> Call:
        outputs = self._contract.outputs(self._operator, given)
        return side.layout.reserve(self._contract.arguments(given), outputs, self._contract.in_place)

    def _given(self, side: _Side, call: Call, values: Mapping[str, Any]) -> Call:
        return replace(side.layout.fill(call, self._contract.arguments(values)), given=values)

    def _clear_caches(self) -> None:
        """Leave nothing of what was just written in L2, by reading more than it holds."""
        if self._cold is not None:
            self._cold.sum()
            torch.cuda.synchronize()

    def _batch(self, side: _Side, given: Sequence[Mapping[str, Any]], timed: Timed, graph: bool) -> list[_Ran]:
        side.layout.start()
        calls = [self._reserved(side, given[0]) for _ in given]
        side.worker.arm([call.placed for call in calls], graph)
        # only now, so that nothing can be done about them before the clock runs
        calls = [self._given(side, call, values) for call, values in zip(calls, given, strict=True)]
        self._clear_caches()
        taken, late, said = side.worker.batch()
        side.walls.append((taken - timed.empty_us) / len(calls))
        side.lates.append(late)
        if (event_us := _number(said.get("event_us"))) is not None:
            side.events.append(event_us / len(calls))
        ran = []
        for number, call in enumerate(calls):
            results = side.layout.read(call)
            for finding in verifying.misdeeds(side.layout, call):
                where = f"{finding.where} (call {number} of a timed batch)".strip()
                raise Lost(replace(finding, stage=Stage.TIMING, where=where))
            ran.append(_Ran(side, call, results))
        side.worker.watch()
        return ran

    def _judge(self, ran: Sequence[_Ran], timed: Timed) -> None:
        """Lost for the first result that is wrong; the same values are evaluated once for both sides.

        Where both sides agree to the bit, a part of the calls that nobody can foresee is evaluated.
        """
        by_values = sorted(ran, key=lambda each: id(each.call.given))
        for _, same in itertools.groupby(by_values, key=lambda each: id(each.call.given)):
            first, *others = same
            timed.numbers.calls += 1 + len(others)
            differ = [each for each in others if not verifying.same_bits(first.results, each.results)]
            if others and not differ and self._random.random() > _EVALUATED:
                continue
            expected = verifying.expect(self._contract, self._operator, first.call.given)
            for each in (first, *differ):
                self._active = each.side
                for finding in verifying.judge(self._contract, expected, each.results, timed.numbers):
                    raise Lost(replace(finding, stage=Stage.TIMING, where=f"{finding.where} (a timed call)"))
