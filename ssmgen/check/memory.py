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
# bytes at a time that are compared
_PART = 1 << 26


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
        """Lay out a call: tensors that share memory go on doing so, in its layout; outputs hold nothing but poison."""
        start = self._at
        end = start + size_of(given, outputs)
        if end > self._data.shape[0]:
            raise ValueError(f"the call needs {end - start} bytes, {self._data.shape[0] - start} are left")
        self._data[start:end].random_(0, 256, generator=self._noise)
        places: dict[str, Place] = {}
        tensors = _tensors(given)
        bases: dict[int, int] = {}
        # in another order every time, so that no buffer has the same neighbours
        for name in self._random.sample(sorted(tensors), len(tensors)):
            tensor = tensors[name]
            stored = tensor.untyped_storage()
            if stored.data_ptr() not in bases:
                bases[stored.data_ptr()] = base = self._reserve(stored.nbytes())
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(stored)
                self._data[base : base + stored.nbytes()].copy_(whole)
            first = bases[stored.data_ptr()] + tensor.storage_offset() * tensor.element_size()
            places[name] = Place(first, tuple(tensor.shape), tensor.stride(), _name(tensor.dtype))
        for name, output in outputs.items():
            base = self._reserve(_bytes(output))
            places[name] = Place(base, output.shape, _contiguous(output.shape), _name(output.dtype))
            self._poison(places[name])
        self._at = end
        scalars = {name: value for name, value in given.items() if name not in tensors}
        filled = (*outputs, *in_place)
        return Call(Placed(places, scalars), given, filled, start, end, self._data[start:end].clone())

    def _reserve(self, size: int) -> int:
        base = _round(self._at) + GUARD + self._random.randrange(_SHIFTS) * ALIGNMENT
        self._at = base + _round(size) + GUARD
        return base

    def _poison(self, place: Place) -> None:
        """NaNs, no two calls alike: quiet ones of random payload and sign."""
        view = place.view(self._data)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[view.element_size()]
        quiet = {
            torch.float16: 0x7E00,
            torch.bfloat16: 0x7FC0,
            torch.float32: 0x7FC00000,
            torch.float64: 0x7FF8000000000000,
        }
        view.view(bits).bitwise_or_(quiet[view.dtype])

    def again(self, call: Call, given: Mapping[str, Any]) -> Call:
        """The call with other values where it lies, of the same shapes and dtypes; outputs poisoned anew."""
        data = self._data
        for name, tensor in _tensors(given).items():
            call.placed.tensors[name].view(data).copy_(tensor)
        for name in call.outputs:
            if name not in given:
                place = call.placed.tensors[name]
                view = place.view(data)
                view.copy_(torch.rand(view.shape, generator=self._noise, device=view.device))
                self._poison(place)
        scalars = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
        placed = replace(call.placed, scalars=scalars)
        return replace(call, placed=placed, given=given, copy=data[call.start : call.stop].clone())

    def read(self, call: Call) -> dict[str, Tensor]:
        """Copies of what the call's outputs, and inputs updated in place, hold now."""
        return {name: call.placed.tensors[name].view(self._data).clone() for name in call.outputs}

    def unwritten(self, call: Call, name: str) -> Tensor:
        """Where an output still holds the bits of its poison: of its shape, bool."""
        place = call.placed.tensors[name]
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[getattr(torch, place.dtype).itemsize]
        before = Place(place.start - call.start, place.shape, place.strides, place.dtype).view(call.copy)
        return place.view(self._data).view(bits) == before.view(bits)

    def touched(self, call: Call) -> str | None:
        """What else differs from before the call: an input, or where beside a buffer; None where nothing does."""
        data = self._data[call.start : call.stop]
        # outputs may differ: compared with themselves they do not
        before = call.copy.clone()
        for name in call.outputs:
            place = call.placed.tensors[name]
            here = Place(place.start - call.start, place.shape, place.strides, place.dtype)
            here.view(before).copy_(place.view(self._data))
        for at in range(0, len(data), _PART):
            differs = data[at : at + _PART] != before[at : at + _PART]
            if bool(differs.any()):
                return self._whose(call, call.start + at + int(differs.nonzero()[0]))
        return None

    def _whose(self, call: Call, byte: int) -> str:
        for name, place in call.placed.tensors.items():
            inside = byte - place.start
            if 0 <= inside < place.span and name not in call.outputs:
                return f"{name}: an input was written to, {inside} bytes from its start"
        near = min(call.placed.tensors.items(), key=lambda item: _distance(byte, item[1]))
        return f"{near[0]}: memory {_distance(byte, near[1])} bytes outside it was written to"


def _tensors(given: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}


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
