"""Whether a contract can tell right from wrong: every term's mutant must fail, and so must whoever computes nothing.

The margin of a wrong result is its error over its limit, on the output where that is largest. It must be at least
MARGIN for every term in every regime, but where the contract says that mathematics hides the term, and there it must
not be. No candidate is run, and no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ssmgen.check.contracts.base import Contract, Term, Witness
from ssmgen.interpreter.launching import one_thread

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 10.0
# regimes in which no term may be hidden, and how many others it must show in
ALWAYS, OTHERS = ("mild", "mixed_horizons"), 1
# larger margins mean no more than this one
_MOST = 1e6
# two draws: of one alone nobody knows that the seed matters
_SEEDS = (1, 2)


@dataclass(frozen=True)
class Margin:
    """Of one wrong result in one regime: how many times its limit it errs, on which output of which witness."""

    wrong: str
    regime: str
    margin: float
    output: str
    witness: str
    blind: str = ""
    """Why it need not show, where the contract says so."""


@dataclass(frozen=True)
class Certificate:
    """What a contract can tell apart."""

    operator: str
    terms: tuple[Margin, ...]
    trivial: tuple[Margin, ...]
    refusals: tuple[str, ...] = field(default=())
    """Why the contract is refused; empty where it is certified."""

    @property
    def certified(self) -> bool:
        return not self.refusals

    def as_json(self) -> dict[str, Any]:
        """As plain values, margins to three digits."""
        value = asdict(self)
        for kind in ("terms", "trivial"):
            for each in value[kind]:
                each["margin"] = float(f"{each['margin']:.3g}")
        return value


def certify(contract: Contract[Any, Any]) -> Certificate:
    """Measure every margin of a contract; it is refused where one is missing, named by term and regime."""
    with one_thread():
        return _certificate(contract)


def _certificate(contract: Contract[Any, Any]) -> Certificate:
    terms: list[Margin] = []
    trivial: list[Margin] = []
    refusals: list[str] = list(_outline(contract))
    for regime in contract.regimes:
        seen = [_Seen(contract, witness) for witness in contract.witnesses(regime, _SEEDS[0])]
        others = [_Seen(contract, witness) for witness in contract.witnesses(regime, _SEEDS[1])]
        refusals += _inputs_that_stay(regime, seen, others)
        refusals += _results_that_stay(regime, seen, others)
        terms += [_mutant(term, regime, seen) for term in contract.terms]
        trivial += _trivial(contract, regime, seen, others)
    refusals += [r for term in contract.terms for r in _refusals(term, [m for m in terms if m.wrong == term.name])]
    refusals += [
        f"{m.wrong} pass in {m.regime}: {m.margin:.3g} times the limit on {m.output} of {m.witness}, not {MARGIN:g}"
        for m in trivial
        if m.margin < MARGIN
    ]
    return Certificate(contract.name, tuple(terms), tuple(trivial), tuple(refusals))


class _Seen:
    """A witness with what is right for it."""

    def __init__(self, contract: Contract[Any, Any], witness: Witness[Any]) -> None:
        self.contract, self.name, self.given = contract, witness.name, witness.given
        self.expected = contract.reference(witness.given)
        self.deviations = contract.deviations(witness.operator, witness.given)

    def margins(self, wrong: Mapping[str, Tensor]) -> Iterator[tuple[float, str, str]]:
        """(margin, output, witness) of wrong results."""
        for name, expected in self.expected.items():
            excess = self.contract.excess(name, wrong[name], expected, self.deviations[name])
            yield min(excess, _MOST), name, self.name


def _mutant(term: Term, regime: str, seen: Iterable[_Seen]) -> Margin:
    found = [m for each in seen for m in each.margins(each.contract.reference(each.given, term.name))]
    margin, output, witness = max(found)
    return Margin(term.name, regime, margin, output, witness, term.blind.get(regime, ""))


def _refusals(term: Term, margins: list[Margin]) -> Iterator[str]:
    """What is missing of one term."""
    for each in margins:
        at = f"{each.margin:.3g} times the limit on {each.output} of {each.witness}"
        if each.margin < MARGIN and not each.blind:
            yield f"without {term.name} ({term.mutant}) a result passes for {each.regime}: {at}, not {MARGIN:g}"
        if each.margin >= MARGIN and each.blind:
            yield f"{term.name} is said not to show for {each.regime} ({each.blind}), and does: {at}"
        if each.blind and each.regime in ALWAYS:
            yield f"{term.name} must show for {each.regime}, and is said not to: {each.blind}"
    others = [m for m in margins if m.regime not in ALWAYS and m.margin >= MARGIN]
    if len(others) < OTHERS:
        yield f"{term.name} shows in no regime beside {' and '.join(ALWAYS)}"


def _outline(contract: Contract[Any, Any]) -> Iterator[str]:
    """What can be seen without a number."""
    yield from (f"no regime {regime}" for regime in ALWAYS if regime not in contract.regimes)
    names = [term.name for term in contract.terms]
    yield from (f"two terms are called {name}" for name in sorted({n for n in names if names.count(n) > 1}))
    for term in contract.terms:
        yield from (f"{term.name}: no regime {regime}" for regime in term.blind if regime not in contract.regimes)
    if not names:
        yield "no terms: nothing is known to be seen"


def _trivial(contract: Contract[Any, Any], regime: str, seen: list[_Seen], others: list[_Seen]) -> list[Margin]:
    """Candidates that do not compute: on every witness they must fail, so it is the least margin that counts."""
    made: dict[str, Callable[[_Seen], dict[str, Tensor]]]
    made = {"zeros": _zeros, "means": _means, "copies of inputs": lambda s: contract.copies(s.given)}
    margins = []
    for name, make in made.items():
        margins.append(Margin(name, regime, *min(max(each.margins(make(each))) for each in seen)))
    # what lay in the buffers after another call of the same sizes
    stale = [
        max(each.margins(other.expected))
        for each, other in zip(seen, others, strict=True)
        if all(each.expected[n].shape == other.expected[n].shape for n in each.expected)
    ]
    if stale:
        margins.append(Margin("results of the call before", regime, *min(stale)))
    return margins


def _zeros(seen: _Seen) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in seen.expected.items()}


def _means(seen: _Seen) -> dict[str, Tensor]:
    return {name: value.mean().expand_as(value) for name, value in seen.expected.items()}


def _inputs_that_stay(regime: str, seen: list[_Seen], others: list[_Seen]) -> Iterator[str]:
    """Inputs that another seed leaves as they are, of those whose values are drawn."""
    for each, other in zip(seen, others, strict=True):
        for name in each.contract.activations:
            if name in each.given and torch.equal(each.given[name], other.given[name]):
                yield f"{name} is the same for two seeds, in {regime} of {each.name}"


def _results_that_stay(regime: str, seen: list[_Seen], others: list[_Seen]) -> Iterator[str]:
    """Outputs that no input of any witness moves."""
    for name in seen[0].expected:
        pairs = [(each.expected[name], other.expected[name]) for each, other in zip(seen, others, strict=True)]
        if all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            yield f"{name} is the same whatever the inputs, in {regime}"
