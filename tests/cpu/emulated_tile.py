"""Enough of cuda.tile, in plain torch, to run the generated kernels block by block on a CPU; stricter than a GPU.

Tiles that lie wholly outside an array, tile sizes that are no power of two, products and stores of another dtype, and
two blocks that write one element are errors. What the kernels here do not use is not there.
"""

from __future__ import annotations

import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

TFLOAT32 = "tfloat32"
NOWHERE = "zero"


def _rounded(values: torch.Tensor, dtype: Any) -> torch.Tensor:
    if dtype != TFLOAT32:
        return values.to(dtype)
    mantissa, exponent = torch.frexp(values.double())
    kept = torch.ldexp(torch.round(mantissa * 2048) / 2048, exponent).float()
    return torch.where(torch.isfinite(values), kept, values.float())


class Tile:
    """Values and their element type; tfloat32 is held in float32."""

    def __init__(self, values: torch.Tensor, dtype: Any = None) -> None:
        assert all(n > 0 and n & (n - 1) == 0 for n in values.shape), f"a tile of {tuple(values.shape)}"
        self.values, self.dtype = values, dtype or values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def reshape(self, shape: tuple[int, ...]) -> Tile:
        assert math.prod(shape) == self.values.numel(), f"{self.shape} reshaped to {shape}"
        return Tile(self.values.reshape(shape), self.dtype)

    def astype(self, dtype: Any) -> Tile:
        return Tile(_rounded(self.values, dtype), dtype)

    def transpose(self) -> Tile:
        assert len(self.shape) == 2
        return Tile(self.values.T.contiguous(), self.dtype)

    def __getitem__(self, key: Any) -> Tile:
        return Tile(self.values[key], self.dtype)


def _operator(function: Callable[..., torch.Tensor], swapped: bool) -> Callable[[Tile, Any], Tile]:
    def apply(tile: Tile, other: Any) -> Tile:
        if isinstance(other, Tile):
            assert tile.dtype == other.dtype, f"{tile.dtype} and {other.dtype} in one {function.__name__}"
            other = other.values
        return Tile(function(other, tile.values) if swapped else function(tile.values, other))

    return apply


for _name in ("add", "sub", "mul", "truediv", "ge", "gt", "le", "lt", "eq", "and_"):
    setattr(Tile, f"__{_name.strip('_')}__", _operator(getattr(operator, _name), False))
for _name in ("add", "sub", "mul"):
    setattr(Tile, f"__r{_name}__", _operator(getattr(operator, _name), True))


class Device:
    """The block that runs, the grid it is of, and how often each element of each array was written by a launch."""

    block: tuple[int, ...] = (0, 0, 0)
    grid: tuple[int, ...] = (1, 1, 1)
    written: dict[int, torch.Tensor] = {}  # noqa: RUF012 - one device, as there is one GPU
    unwritten: list[tuple[str, int]] = []  # noqa: RUF012


def _place(array: torch.Tensor, index: tuple[int, ...], shape: tuple[int, ...], order: Any) -> tuple[slice, ...]:
    lengths = array.permute(order).shape if order else array.shape
    assert len(lengths) == len(index) == len(shape)
    for i, n, length in zip(index, shape, lengths, strict=True):
        assert isinstance(i, int)
        assert 0 <= i * n < length, f"tile {index} of {shape} lies outside {tuple(lengths)}, block {Device.block}"
    return tuple(slice(i * n, min(i * n + n, length)) for i, n, length in zip(index, shape, lengths, strict=True))


def _count(array: torch.Tensor) -> torch.Tensor:
    return Device.written.setdefault(array.data_ptr(), torch.zeros(array.shape, dtype=torch.int32))


def load(array: Any, index: Any, shape: Any, *, order: Any = None, padding_mode: Any = None, latency: int = 1) -> Tile:
    assert 1 <= latency <= 10
    part = (array.permute(order) if order else array)[_place(array, index, shape, order)]
    # what no padding mode promises is nothing to count on
    tile = torch.full(shape, 0.0 if padding_mode == NOWHERE else math.nan, dtype=array.dtype)
    tile[tuple(slice(0, n) for n in part.shape)] = part
    return Tile(tile)


def store(array: Any, index: Any, tile: Tile, *, order: Any = None) -> None:
    assert tile.dtype == array.dtype, f"a tile of {tile.dtype} stored as {array.dtype}"
    place = _place(array, index, tile.shape, order)
    part = (array.permute(order) if order else array)[place]
    part.copy_(tile.values[tuple(slice(0, n) for n in part.shape)])
    (_count(array).permute(order) if order else _count(array))[place] += 1


def _elements(array: Any, index: tuple[Any, ...], mask: Tile) -> tuple[list[torch.Tensor], torch.Tensor]:
    parts = [i.values if isinstance(i, Tile) else torch.tensor(i) for i in index]
    *parts, inside = torch.broadcast_tensors(*parts, mask.values)
    for part, length in zip(parts, array.shape, strict=True):
        assert not (inside & ((part < 0) | (part >= length))).any(), "an index outside its array, not masked"
    return [torch.where(inside, part, 0).long() for part in parts], inside


def gather(array: Any, index: Any, *, mask: Tile) -> Tile:
    parts, inside = _elements(array, index, mask)
    return Tile(torch.where(inside, array[tuple(parts)], torch.zeros((), dtype=array.dtype)))


def scatter(array: Any, index: Any, value: Tile, *, mask: Tile) -> None:
    parts, inside = _elements(array, index, mask)
    at = tuple(part[inside] for part in parts)
    array[at] = torch.broadcast_to(value.values, inside.shape)[inside]
    _count(array)[at] += 1


def mma(x: Tile, y: Tile, acc: Tile) -> Tile:
    assert x.dtype == y.dtype, f"a product of {x.dtype} and {y.dtype}"
    assert x.dtype in (torch.bfloat16, torch.float16, TFLOAT32), f"a product of {x.dtype} runs on CUDA cores"
    assert acc.dtype == torch.float32
    return Tile((x.values.double() @ y.values.double()).float() + acc.values)


def launch(_stream: Any, grid: tuple[int, ...], kernel: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    assert all(isinstance(n, int) and n > 0 for n in grid)
    Device.grid, Device.written = (*grid, 1, 1)[:3], {}
    for block in itertools.product(*map(range, Device.grid)):
        Device.block = block
        kernel(*arguments)
    for array in arguments:
        if isinstance(array, torch.Tensor) and array.data_ptr() in Device.written:
            times = _count(array)
            assert (times <= 1).all(), f"{kernel.__name__}: two blocks write one element"
            Device.unwritten += [(kernel.__name__, int((times == 0).sum()))] if (times == 0).any() else []


def _values(x: Any) -> torch.Tensor:
    return x.values if isinstance(x, Tile) else torch.tensor(x)


def _where(condition: Any, x: Any, y: Any) -> Tile:
    return Tile(torch.where(_values(condition), _values(x), _values(y)))


def _bound(function: Callable[..., torch.Tensor]) -> Callable[..., Tile]:
    return lambda x, y, propagate_nan: Tile(function(x.values, torch.tensor(float(y))))


def _unary(function: Callable[..., torch.Tensor]) -> Callable[[Tile], Tile]:
    return lambda x: Tile(function(x.values))


def _extract(tile: Tile, *, index: tuple[int, ...], shape: tuple[int, ...]) -> Tile:
    return Tile(tile.values[tuple(slice(i * n, i * n + n) for i, n in zip(index, shape, strict=True))])


def module() -> types.ModuleType:
    """What a generated file may import as cuda.tile."""
    ct = types.ModuleType("cuda.tile")
    vars(ct).update(
        load=load, store=store, gather=gather, scatter=scatter, mma=mma, launch=launch, where=_where, extract=_extract,
        kernel=lambda **_hints: lambda function: function,
        bid=lambda axis: Device.block[axis], num_blocks=lambda axis: Device.grid[axis], cdiv=lambda a, b: -(-a // b),
        exp=_unary(torch.exp), exp2=_unary(torch.exp2), log=_unary(torch.log),
        minimum=_bound(torch.minimum), maximum=_bound(torch.maximum),
        cumsum=lambda x, axis: Tile(torch.cumsum(x.values, axis)), sum=lambda x, axis: Tile(x.values.sum(axis)),
        zeros=lambda shape, dtype: Tile(torch.zeros(shape, dtype=dtype)),
        arange=lambda n, dtype: Tile(torch.arange(n, dtype=dtype)), PaddingMode=types.SimpleNamespace(ZERO=NOWHERE),
        int32=torch.int32, float32=torch.float32, float16=torch.float16, bfloat16=torch.bfloat16, tfloat32=TFLOAT32,
    )  # fmt: skip
    return ct
