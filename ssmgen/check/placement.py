"""Where the tensors of a call lie in memory that two processes share, as plain data, and views of them.

The candidate's process imports this too: it knows no values, no seeds and no guard bands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Place:
    """A strided tensor in shared memory: `start` in bytes from its beginning, strides in elements."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def view(self, memory: Tensor) -> Tensor:
        """The tensor, in `memory` (n,) uint8."""
        import torch

        kind: torch.dtype = getattr(torch, self.dtype)
        return memory[self.start : self.start + self.span].view(kind).as_strided(self.shape, self.strides)

    @property
    def span(self) -> int:
        """Bytes from its first element to the end of its last."""
        import torch

        if 0 in self.shape:
            return 0
        steps = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        return (steps + 1) * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True)
class Placed:
    """One call: the places of its tensors, inputs and outputs alike, and its scalars, by argument name."""

    tensors: Mapping[str, Place]
    scalars: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """As plain values, but for floats that JSON has no words for."""
        scalars = {n: {"float": v.hex()} if isinstance(v, float) else v for n, v in self.scalars.items()}
        return {"tensors": {name: asdict(place) for name, place in self.tensors.items()}, "scalars": scalars}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Placed:
        """What `as_json` made."""
        tensors = {
            name: Place(p["start"], tuple(p["shape"]), tuple(p["strides"]), p["dtype"])
            for name, p in value["tensors"].items()
        }
        scalars = {n: float.fromhex(v["float"]) if isinstance(v, dict) else v for n, v in value["scalars"].items()}
        return cls(tensors, scalars)

    def arguments(self, view: Callable[[Place], Tensor]) -> dict[str, Any]:
        """Keyword arguments of a candidate's `run`, its tensors as `view` makes them."""
        return {name: view(place) for name, place in self.tensors.items()} | dict(self.scalars)


Run = Callable[..., object]
"""A candidate: takes a call's tensors and scalars by name, and fills its outputs."""
