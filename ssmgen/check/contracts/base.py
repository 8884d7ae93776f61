"""What a checker has to know of an operator: tensors, regimes, terms, an fp64 reference, limits, work.

It runs no candidate, owns no buffer and holds no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

    import torch
    from torch import Tensor

OperatorT = TypeVar("OperatorT")
"""A model's entry for the operator in its spec: shape, dtypes, options."""
CallT = TypeVar("CallT")
"""What one call is given, as one frozen dataclass with `regime` and `seed` among its fields."""


@dataclass(frozen=True)
class Output:
    """A tensor that a candidate fills: contiguous, owned by the caller."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Term:
    """A term of the recurrence, and the mutant that lacks it."""

    name: str
    mutant: str
    """What the mutant does instead, as a reader of the certificate needs to know it."""
    blind: Mapping[str, str] = field(default_factory=dict)
    """Regimes in which no test can tell the mutant from the operator, with the mathematical reason."""


@dataclass(frozen=True)
class Work:
    """What a call cannot do without: bytes of inputs read and outputs written once, and the cheapest known FLOPs."""

    read: int
    written: int
    flops: int
    matrix_dtype: torch.dtype
    """In which the matrix products may run: its peak bounds `flops`."""


@dataclass(frozen=True)
class Witness(Generic[OperatorT]):
    """A call that a contract is certified on."""

    name: str
    operator: OperatorT
    given: dict[str, Any]


class Contract(ABC, Generic[OperatorT, CallT]):
    """One operator's contract. Tensors of a call go by the operator's own argument names, on one device."""

    name: str
    """As in `ssmgen.ops`."""
    regimes: tuple[str, ...]
    """By name; `mild` and `mixed_horizons` are among them."""
    terms: tuple[Term, ...]
    in_place: tuple[str, ...] = ()
    """Inputs that the operator updates; every other input must be left as it was."""
    activations: tuple[str, ...]
    """Inputs of which any element may be any number of their dtype's: where one that changed must show."""
    baselines: tuple[str, ...]
    """Implementations that a candidate is timed against, where they can be imported."""

    @abstractmethod
    def given(self, operator: OperatorT, call: CallT, device: str = "cpu") -> dict[str, Any]:
        """Arguments of the call, tensors and scalars by name: the same values on every device for the same call."""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments, beside its outputs, of a candidate's `run`: by default those of the operator."""
        return dict(given)

    @abstractmethod
    def outputs(self, operator: OperatorT, given: Mapping[str, Any]) -> dict[str, Output]:
        """The tensors that a candidate fills for these arguments, beside what it updates in place."""

    @abstractmethod
    def reference(self, given: Mapping[str, Any], without: str = "") -> dict[str, Tensor]:
        """Every output, and every input updated in place, in fp64; with `without` the mutant that lacks that term."""

    @abstractmethod
    def deviations(self, operator: OperatorT, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the roundings of an honest evaluation do to each of `reference`'s values: standard deviations, fp64."""

    def evaluation(self, operator: OperatorT, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(reference, deviations), by a faster way where there is one: for calls of which many are looked at."""
        return self.reference(given), self.deviations(operator, given)

    def fresh(self, given: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
        """The call with other values of the same distribution, drawn where its tensors are: normal activations."""
        values = dict(given)
        for name in self.activations:
            if (tensor := given.get(name)) is not None:
                scale = tensor.float().square().mean().sqrt()
                values[name] = tensor.float().normal_(generator=generator).mul_(scale).to(tensor.dtype)
        return values

    @abstractmethod
    def excess(self, name: str, actual: Tensor, expected: Tensor, deviation: Tensor, among: int = 1) -> float:
        """How many times its limit the largest error of one output is: at most 1 where it passes; inf for a NaN.

        `among` is of how many such calls it is one: of many, the largest error of all is larger.
        """

    @abstractmethod
    def witnesses(self, regime: str, seed: int) -> list[Witness[OperatorT]]:
        """Calls that between them show every term in a regime, as far as it can be seen there."""

    @abstractmethod
    def copies(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """What a candidate that only copies its inputs gives: every one of `reference`'s tensors."""

    @abstractmethod
    def draw(self, operator: OperatorT, random: Random) -> CallT:
        """A call that no list has: any size, regime, layout and option that the operator takes."""

    def hard(self, operator: OperatorT) -> tuple[CallT, ...]:
        """Calls in which small errors grow: on a GPU every candidate meets them; interpreted they take minutes."""
        return ()

    @abstractmethod
    def work(self, operator: OperatorT, given: Mapping[str, Any]) -> Work:
        """What the call cannot do without."""
