"""What the contracts of the decode operators share: calls of one step, and the slots of a state pool.

It knows no operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import torch

from ssmgen.reference import tolerance
from ssmgen.verify import inputs

if TYPE_CHECKING:
    from torch import Tensor

REGIMES = tuple(r for r in inputs.REGIMES if r not in ("padded", "limited", "no_step"))
"""Those of the forward operators but for what a decode step has not: a dt_limit, and padding behind a row."""
SLOTS = ("own", "shuffled", "padded")
"""Row b's slot is its own; any, in a pool that has others too; likewise, and some rows are padding."""


@dataclass(frozen=True)
class Call:
    """What one decode step is given."""

    batch: int = 3
    slots: str = "own"
    regime: str = "mild"
    seed: int = 0


@dataclass(frozen=True)
class Drawn:
    """The values of a call that go with its regime, and whatever else is drawn with them; CPU."""

    generator: torch.Generator
    step: Tensor
    """dt' (B, H), fp64."""
    decay: Tensor
    """A (H,), fp64, all <= 0."""

    @classmethod
    def of(cls, call: Call, heads: int) -> Drawn:
        """The same for the same call."""
        generator = torch.Generator().manual_seed(call.seed)
        step, decay, _ = inputs.steps(call.regime, (call.batch, 1, heads), generator)
        return cls(generator, step[:, 0], decay)

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers, fp32."""
        return torch.randn(*shape, generator=self.generator)

    def before_softplus(self, bias: Tensor) -> Tensor:
        """What softplus makes dt' of, once `bias` (H,) is added: (B, H), fp64."""
        return inputs.before_softplus(self.step) - bias.double()

    def slots(self, call: Call, first: int, padding: int) -> tuple[Tensor, int]:
        """(slots (B,) int32, pool size): slots from `first` on; of padded calls every third row's is `padding`."""
        if call.slots == "own":
            return torch.arange(first, first + call.batch, dtype=torch.int32), first + call.batch
        size = first + 2 * call.batch + 1
        slots = first + torch.randperm(size - first, generator=self.generator)[: call.batch]
        if call.slots == "padded":
            slots[1::3] = padding
        return slots.int(), size


def draw(random: Random) -> Call:
    """A call that no list has."""
    call = Call(batch=random.choice((1, 2, 3, 5, 8, random.randint(1, 64))), slots=random.choice(SLOTS))
    return replace(call, regime=random.choice(REGIMES), seed=random.getrandbits(31))


def pool_excess(actual: Tensor, expected: Tensor, deviation: Tensor, *, among: int = 1) -> float:
    """`tolerance.state_excess` of a pool (N, H, P, S); inf where a slot changed that no row has, its deviations 0."""
    untouched = deviation == 0
    if not torch.equal(actual.double()[untouched], expected[untouched]):
        return float("inf")
    return tolerance.state_excess(actual, expected, deviation, among=among)


def in_pool(slots: Tensor, rows: Tensor, pool: Tensor) -> Tensor:
    """Deviations (N, H, P, S) of a pool from those of the rows that have a slot; of other slots 0."""
    return torch.zeros_like(pool, dtype=torch.float64).index_copy(0, slots, rows)


def without_padding(slots: Tensor, pool: Tensor) -> Tensor:
    """The slots (B,) with the first free one of the pool for the first row that has none."""
    rows = (slots < 0).nonzero()[:, 0].tolist()
    free = sorted(set(range(len(pool))) - set(slots.tolist()))
    taken = slots.clone()
    if rows and free:
        taken[rows[0]] = free[0]
    return taken
