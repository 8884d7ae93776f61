"""Memory that a checker lends to a candidate: inputs, poisoned outputs, guard bands, and a private copy of all of it.

    lay out a call -> the candidate runs -> what differs from the copy, where it must not?

Every call lies elsewhere and between other bytes than the one before. It runs nothing and compares no results.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ssmgen.check.contracts.base import Output
from ssmgen.check.placement import Place, Placed

if TYPE_CHECKING:
    from torch import Tensor

# bytes on each side of a buffer: more than a tile's row, so that a write one past the end never meets another buffer
GUARD = 4096
# bytes; what every promise of an address is made in
ALIGNMENT = 16
# of how many alignments a buffer is moved, at most
_SHIFTS = 256
# integers of an element's size
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Memory(Protocol):
    """A block that the checker allocated and a candidate's process maps."""

    data: Tensor
    """(n,) uint8."""

    def share(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        """What the other process needs to map it: plain values, and file descriptors."""

    def close(self) -> None:
        """Free it, once no process maps it."""


class HostMemory:
    """CPU memory, behind an anonymous file."""

    def __init__(self, size: int) -> None:
        self._file = os.memfd_create("ssmgen-check")
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        self.data: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)
        self._size = size

    def share(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        return {"size": self._size}, (self._file,)

    def close(self) -> None:
        os.close(self._file)


class DeviceMemory:
    """GPU memory of an allocation of its own, for an IPC handle opens all of the allocation that it is in."""

    def __init__(self, size: int) -> None:
        from ssmgen.check import gpu

        self._pointer, self._handle, self.data = gpu.shared(size)
        self._size = size

    def share(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        return {"size": self._size, "handle": self._handle.hex()}, ()

    def close(self) -> None:
        from ssmgen.check import gpu

        gpu.free(self._pointer)


@dataclass(frozen=True)
class Call:
    """A call as it was laid out; `given` are the values that it holds, on the checker's side alone."""

    placed: Placed
    given: Mapping[str, Any]
    outputs: tuple[str, ...]
    start: int
    stop: int
    """The bytes that are the call's, guard bands included."""
    copy: Tensor
    """(stop - start,) uint8: those bytes before the candidate ran."""


def size_of(given: Mapping[str, Any], outputs: Mapping[str, Output]) -> int:
    """Bytes that are enough for one such call, wherever its buffers are moved to."""
    stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(given).values()}
    sizes = [*stored.values(), *(_bytes(o) for o in outputs.values())]
    return sum(_round(size) + 2 * GUARD + _SHIFTS * ALIGNMENT for size in sizes) + GUARD


class Layout:
    """Lays out calls one behind the other in a block of memory; `start` makes room again."""

    def __init__(self, memory: Memory, random: Random) -> None:
        self._data = memory.data
        self._random = random
        self._noise = torch.Generator(device=memory.data.device)
        self._at = 0
        self.start()

    def start(self) -> None:
        """Forget all calls."""
        self._at = 0
        self._noise.manual_seed(self._random.getrandbits(62))

    def call(self, given: Mapping[str, Any], outputs: Mapping[str, Output], in_place: tuple[str, ...] = ()) -> Call:
        """Lay out a call: outputs hold nothing but poison, and what is no tensor's nothing but noise."""
        return self.fill(self.reserve(given, outputs, in_place), given)

    def reserve(self, given: Mapping[str, Any], outputs: Mapping[str, Output], in_place: tuple[str, ...] = ()) -> Call:
        """Places for a call, without its values: tensors that share memory go on doing so, in its layout."""
        start = self._at
        end = start + size_of(given, outputs)
        if end > self._data.shape[0]:
            raise ValueError(f"the call needs {end - start} bytes, {self._data.shape[0] - start} are left")
        places: dict[str, Place] = {}
        tensors = _tensors(given)
        bases: dict[int, int] = {}
        # in another order every time, so that no buffer has the same neighbours
        for name in self._random.sample(sorted(tensors), len(tensors)):
            tensor = tensors[name]
            stored = tensor.untyped_storage()
            if stored.data_ptr() not in bases:
                bases[stored.data_ptr()] = self._reserve(stored.nbytes())
            first = bases[stored.data_ptr()] + tensor.storage_offset() * tensor.element_size()
            places[name] = Place(first, tuple(tensor.shape), tensor.stride(), _name(tensor.dtype))
        for name, output in outputs.items():
            base = self._reserve(_bytes(output))
            places[name] = Place(base, output.shape, _contiguous(output.shape), _name(output.dtype))
        self._at = end
        placed = Placed(places, _scalars(given))
        return Call(placed, given, (*outputs, *in_place), start, end, self._data[:0])

    def fill(self, call: Call, given: Mapping[str, Any]) -> Call:
        """The call with values of the shapes and dtypes that it has places for; whatever was there is gone."""
        data = self._data
        data[call.start : call.stop].random_(0, 256, generator=self._noise)
        for name, tensor in _tensors(given).items():
            place = call.placed.tensors[name]
            # an axis that repeats itself lies there once
            once = tuple(slice(0, 1 if step == 0 else None) for step in place.strides)
            place.view(data)[once].copy_(tensor[once])
        for name in call.outputs:
            if name not in given:
                self._poison(call.placed.tensors[name])
        placed = replace(call.placed, scalars=_scalars(given))
        return replace(call, placed=placed, given=given, copy=data[call.start : call.stop].clone())

    def _reserve(self, size: int) -> int:
        base = _round(self._at) + GUARD + self._random.randrange(_SHIFTS) * ALIGNMENT
        self._at = base + _round(size) + GUARD
        return base

    def _poison(self, place: Place) -> None:
        """NaNs, no two calls alike: quiet ones of random payload and sign."""
        view = place.view(self._data)
        quiet = {
            torch.float16: 0x7E00,
            torch.bfloat16: 0x7FC0,
            torch.float32: 0x7FC00000,
            torch.float64: 0x7FF8000000000000,
        }
        view.view(_BITS[view.element_size()]).bitwise_or_(quiet[view.dtype])

    def read(self, call: Call) -> dict[str, Tensor]:
        """Copies of what the call's outputs, and inputs updated in place, hold now."""
        return {name: call.placed.tensors[name].view(self._data).clone() for name in call.outputs}

    def unwritten(self, call: Call, name: str) -> Tensor:
        """Where an output still holds the bits of its poison: of its shape, bool."""
        return self._view(call, name) == self._before(call, name)

    def touched(self, call: Call) -> str | None:
        """What else differs from before the call: an input, or where beside a buffer; None where nothing does."""
        data = self._data[call.start : call.stop]
        # outputs may differ: what they held is put back for as long as it takes to look
        views = [(self._view(call, name), self._before(call, name)) for name in call.outputs]
        written = [view.clone() for view, _ in views]
        for view, before in views:
            view.copy_(before)
        same = torch.equal(data, call.copy)
        first = -1 if same else int((data != call.copy).nonzero()[0])
        for (view, _), value in zip(views, written, strict=True):
            view.copy_(value)
        return None if same else self._whose(call, call.start + first)

    def _view(self, call: Call, name: str) -> Tensor:
        """Its bits, as they are now."""
        view = call.placed.tensors[name].view(self._data)
        return view.view(_BITS[view.element_size()])

    def _before(self, call: Call, name: str) -> Tensor:
        """Its bits, as they were before the candidate ran."""
        place = call.placed.tensors[name]
        view = Place(place.start - call.start, place.shape, place.strides, place.dtype).view(call.copy)
        return view.view(_BITS[view.element_size()])

    def _whose(self, call: Call, byte: int) -> str:
        for name, place in call.placed.tensors.items():
            inside = byte - place.start
            if 0 <= inside < place.span and name not in call.outputs:
                return f"{name}: an input was written to, {inside} bytes from its start"
        near = min(call.placed.tensors.items(), key=lambda item: _distance(byte, item[1]))
        return f"{near[0]}: memory {_distance(byte, near[1])} bytes outside it was written to"


def _tensors(given: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


def _scalars(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}


def _distance(byte: int, place: Place) -> int:
    return max(place.start - byte, byte - place.start - place.span + 1, 0)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _bytes(output: Output) -> int:
    count: int = output.dtype.itemsize
    for length in output.shape:
        count *= length
    return count


def _round(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
