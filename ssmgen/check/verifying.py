"""The stage that looks at results: calls nobody has listed, each wherever it happens to lie, against fp64.

    for each call:  elsewhere, new values   -> right? inputs and guard bands untouched? nothing unwritten, nothing late?
                    elsewhere, same values  -> the same bits?
                    same place, new values  -> right?
                    same place, one element changed, by far -> right?

Expected values are computed once the candidate has returned, in a process whose memory it cannot read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ssmgen.check import memory
from ssmgen.check.contracts.base import Contract
from ssmgen.check.memory import Call, DeviceMemory, HostMemory, Layout, Memory
from ssmgen.check.process import Lost, Package, Worker, Zygote
from ssmgen.check.verdict import Finding, Stage

if TYPE_CHECKING:
    from torch import Tensor

# seconds after a call in which nothing may be written any more, at most
_LATE = 0.05
# how far one changed element goes, in root mean squares of its tensor: out of any tolerance
_FAR = 16.0
# of an output's root mean square, what may come out as 0; and of its elements, how many larger ones may
_SMALL, _ZEROS = 1e-6, 1e-4
# in which a call is given
_FORMS = 4
# tries to find an element that matters
_TRIES = 8


@dataclass(frozen=True)
class Subject:
    """A candidate of an operator, and where it runs."""

    contract: Contract[Any, Any]
    operator: Any
    package: Package
    device: str = "cpu"

    def memory(self, size: int) -> Memory:
        """Memory that its process can map."""
        return DeviceMemory(size) if self.device == "cuda" else HostMemory(size)


@dataclass
class Numbers:
    """The largest error of each output in units of its limit, and how many calls were looked at."""

    excess: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    planned: int = 1
    """How many will have been looked at in the end."""

    def note(self, name: str, excess: float) -> None:
        """One more."""
        self.excess[name] = max(excess, self.excess.get(name, 0.0))


def verify(zygote: Zygote, subject: Subject, listed: list[Any], secret: int) -> tuple[list[Finding], Numbers]:
    """Findings of the first call that has any: `listed` calls and `secret` drawn ones, in an order of their own."""
    random = SystemRandom()
    calls = listed + [subject.contract.draw(subject.operator, random) for _ in range(secret)]
    random.shuffle(calls)
    given = [subject.contract.given(subject.operator, call, subject.device) for call in calls]
    # a call, and once more elsewhere
    size = 2 * max(memory.size_of(g, subject.contract.outputs(subject.operator, g)) for g in given)
    numbers = Numbers(planned=_FORMS * len(calls))
    lent = subject.memory(size)
    worker = zygote.fork(lent, subject.device)
    try:
        worker.ready()
        worker.open(subject.package)
        checker = _Checker(subject, worker, Layout(lent, random), random, numbers)
        for call, values in zip(calls, given, strict=True):
            if findings := checker.findings(call, values):
                return [replace(f, where=f"{f.where} ({call})".strip()) for f in findings], numbers
    except Lost as e:
        return [e.finding], numbers
    finally:
        worker.end()
        zygote.reap(worker.process)
        lent.close()
    return [], numbers


@dataclass(frozen=True)
class _Checker:
    """One process, asked one call after another."""

    subject: Subject
    worker: Worker
    layout: Layout
    random: Random
    numbers: Numbers

    def findings(self, call: Any, given: Mapping[str, Any]) -> list[Finding]:
        """Of the first of the call's forms that has any."""
        self.layout.start()
        placed = self._place(given)
        first, found = self._run(placed)
        if found:
            return found
        elsewhere = self._place(given)
        second, found = self._ran(elsewhere)
        for name, value in first.items():
            if not found and not _same_bits(value, second[name]):
                found = [Finding(Stage.VERIFY, "the same values, elsewhere, gave other bits", name)]
        if found:
            return found
        other = self._given(replace(call, seed=self.random.getrandbits(31)))
        for values in (other, self._changed(other)):
            if _fits(values, given):
                placed = self.layout.fill(placed, self._arguments(values))
                _, found = self._run(replace(placed, given=values))
                if found:
                    return found
        return []

    def _given(self, call: Any) -> dict[str, Any]:
        return self.subject.contract.given(self.subject.operator, call, self.subject.device)

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return self.subject.contract.arguments(given)

    def _place(self, given: Mapping[str, Any]) -> Call:
        contract = self.subject.contract
        outputs = contract.outputs(self.subject.operator, given)
        return replace(self.layout.call(self._arguments(given), outputs, contract.in_place), given=given)

    def _run(self, call: Call) -> tuple[dict[str, Tensor], list[Finding]]:
        """What the candidate made of a call, and what is wrong with it, its numbers included."""
        results, found = self._ran(call)
        if not found:
            expected = expect(self.subject.contract, self.subject.operator, call.given)
            found = list(judge(self.subject.contract, expected, results, self.numbers))
        return results, found

    def _ran(self, call: Call) -> tuple[dict[str, Tensor], list[Finding]]:
        """The same without its numbers."""
        self.worker.call(call.placed)
        results = self.layout.read(call)
        self.numbers.calls += 1
        return results, list(self._misdeeds(call, results))

    def _misdeeds(self, call: Call, results: Mapping[str, Tensor]) -> Iterator[Finding]:
        yield from misdeeds(self.layout, call)
        time.sleep(self.random.uniform(0, _LATE))
        for name, value in self.layout.read(call).items():
            if not _same_bits(value, results[name]):
                yield Finding(Stage.VERIFY, "went on changing after the call had returned", name)
        self.worker.watch()

    def _changed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same with one element of one tensor changed, so far that it must show."""
        contract, device = self.subject.contract, self.subject.device
        names = [n for n in contract.activations if isinstance(given.get(n), torch.Tensor) and given[n].numel()]
        before, limits = contract.evaluation(self.subject.operator, given)
        for _ in range(_TRIES if names else 0):
            name = self.random.choice(names)
            tensor = given[name].clone(memory_format=torch.preserve_format)
            at = tuple(self.random.randrange(length) for length in tensor.shape)
            far = _FAR * tensor.double().square().mean().sqrt() + 1.0
            tensor[at] = (tensor[at].double() + far * self.random.choice((-1, 1))).to(tensor.dtype)
            changed = {**given, name: tensor.to(device)}
            after, _ = contract.evaluation(self.subject.operator, changed)
            if any(contract.excess(n, before[n], after[n], limits[n]) > 1 for n in after):
                return changed
        return dict(given)


def misdeeds(layout: Layout, call: Call) -> Iterator[Finding]:
    """What a call left unwritten, and what it wrote to that is none of its outputs."""
    for name in call.outputs:
        if name not in call.given and (found := _unwritten(layout.unwritten(call, name))):
            yield Finding(Stage.VERIFY, found, name)
    if touched := layout.touched(call):
        yield Finding(Stage.VERIFY, touched)


class Expected(NamedTuple):
    """What fp64 makes of a call, and the deviations of an honest evaluation, by output."""

    values: Mapping[str, Tensor]
    deviations: Mapping[str, Tensor]


def expect(contract: Contract[Any, Any], operator: Any, given: Mapping[str, Any]) -> Expected:
    """Of one call; only ever once the candidate has returned."""
    return Expected(*contract.evaluation(operator, given))


def judge(
    contract: Contract[Any, Any], expected: Expected, results: Mapping[str, Tensor], numbers: Numbers
) -> Iterator[Finding]:
    """What is wrong with the results of a call."""
    for name, value in results.items():
        excess = contract.excess(name, value, expected.values[name], expected.deviations[name], numbers.planned)
        numbers.note(name, excess)
        # a NaN is no error that is at most 1
        if not excess <= 1:
            yield Finding(Stage.VERIFY, f"its error is {excess:.3g} times its limit", name)
        # also of what is too far off: it tells how
        if found := _zeros(value, expected.values[name]):
            yield Finding(Stage.VERIFY, found, name)


def _zeros(actual: Tensor, expected: Tensor) -> str | None:
    """Exact zeros where none belongs: rounding gives hardly any, whatever the size of the others."""
    if not actual.numel():
        return None
    least = max(torch.finfo(actual.dtype).tiny, _SMALL * float(expected.square().mean().sqrt()))
    count = int(((actual == 0) & (expected.abs() > least)).count_nonzero())
    if count <= _ZEROS * actual.numel() + 2:
        return None
    return f"{count} of {actual.numel()} elements are 0 and should be small: no rounding makes that"


def _unwritten(where: Tensor) -> str | None:
    count = int(where.count_nonzero())
    if not count:
        return None
    first = tuple(where.nonzero()[0].tolist())
    return f"{count} of {where.numel()} elements were never written, the first at {first}"


def same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether all results are the same to the bit."""
    return all(_same_bits(value, b[name]) for name, value in a.items())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(torch.equal(a.view(bits), b.view(bits)))


def _fits(values: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether they can lie where the others lay: the same tensors by name, shape and dtype."""
    return _looks(values) == _looks(given)


def _looks(given: Mapping[str, Any]) -> dict[str, Any]:
    return {n: (value.shape, value.dtype) for n, value in given.items() if isinstance(value, torch.Tensor)}
