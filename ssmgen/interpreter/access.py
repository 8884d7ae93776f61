"""Loads and stores of whole tiles.

A tile that begins outside its array is an error, however a GPU would take it; one that reaches over its end is padded,
and what no padding mode determines is remembered as undetermined until it is masked away or used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.arrays import Array, TiledView, permutation
from ssmgen.interpreter.blocks import Block, current
from ssmgen.interpreter.dtypes import DType
from ssmgen.interpreter.enums import ACQUIRES, PADDING, RELEASES, MemoryOrder, PaddingMode
from ssmgen.interpreter.faults import violation, where
from ssmgen.interpreter.values import (
    Tile,
    Unknown,
    as_scalar,
    constant_int,
    determined,
    integer,
    number,
    tile,
    tile_shape,
)
from ssmgen.interpreter.watching import fill

ALL = -1
"""In place of an element: any of an array's."""
_SPINS = 10_000


@dataclass(frozen=True)
class _Place:
    """Where a tile lies: the array's axes in `order`, its elements there, and the tile's own that they are."""

    order: tuple[int, ...]
    part: tuple[slice, ...]
    own: tuple[slice, ...]
    whole: bool


def load(  # noqa: PLR0913 - its signature in cuda.tile
    array: Any,
    /,
    index: Any,
    shape: Any,
    *,
    order: Any = "C",
    padding_mode: Any = PaddingMode.UNDETERMINED,
    check_bounds: Any = True,
    latency: Any = None,
    allow_tma: Any = None,
    memory_order: Any = MemoryOrder.WEAK,
    memory_scope: Any = None,
) -> Tile:
    """The tile at `index` of `array` cut into tiles of `shape`."""
    block = current("load")
    base = _array(array)
    sizes = tile_shape(shape)
    check_latency(latency)
    if not isinstance(padding_mode, PaddingMode):
        raise violation("types", f"padding_mode {padding_mode!r:.40}", expected="a ct.PaddingMode")
    place = place_of(array, index, sizes, order, check_bounds)
    atomic = memory_order is not MemoryOrder.WEAK
    if memory_order in ACQUIRES:
        acquire(base, block)
    values = base.read(place.order, place.part, block, atomic)
    if atomic:
        note_spinning(block, base, hash((str(where()), base.view, tuple((p.start, p.stop) for p in place.part))))
    if place.whole:
        return tile(values.reshape(sizes), base.dtype)
    return _padded(values, place, sizes, base.dtype, padding_mode)


def store(  # noqa: PLR0913 - its signature in cuda.tile
    array: Any,
    /,
    index: Any,
    tile: Any,
    *,
    order: Any = "C",
    check_bounds: Any = True,
    latency: Any = None,
    allow_tma: Any = None,
    memory_order: Any = MemoryOrder.WEAK,
    memory_scope: Any = None,
) -> None:
    """Store `tile` at `index`; what lies beyond the array is dropped."""
    block = current("store")
    base = _array(array)
    check_latency(latency)
    value = stored(tile, base)
    sizes = value.shape or (1,) * base.ndim
    values = value.values.reshape(sizes)
    place = place_of(array, index, sizes, order, check_bounds)
    determined(value, f"a store to {base.name}", lambda mask: mask.reshape(sizes)[place.own])
    base.write(place.order, place.part, values[place.own], block, memory_order is not MemoryOrder.WEAK)
    if memory_order in RELEASES:
        release(base, block)


def stored(value: Any, array: Array) -> Tile:
    """A value as the array's type: only what cuTile converts by itself."""
    if isinstance(value, Tile):
        if not dtypes.converts_silently(value.dtype, array.dtype):
            raise violation(
                "types", f"{array.name}: {value.dtype} stored as {array.dtype}", expected="an explicit astype"
            )
        return value.astype(array.dtype)
    constant = as_scalar(value)
    if not dtypes.constant_converts_silently(number(value), array.dtype):
        raise violation("types", f"{array.name}: {value!r} stored as {array.dtype}")
    return constant.astype(array.dtype)


def _array(array: Any) -> Array:
    base = array.array if isinstance(array, TiledView) else array
    if not isinstance(base, Array):
        raise violation("types", f"{array!r:.60} is no array of this kernel")
    return base


def check_latency(latency: Any) -> None:
    """Refuse a latency hint that cuTile would."""
    if latency is not None and not 1 <= constant_int(latency, "latency") <= 10:
        raise violation("types", f"latency {latency}", expected="1 to 10")


def place_of(array: Any, index: Any, sizes: Sequence[int], order: Any, check_bounds: Any) -> _Place:
    """Where the tile at `index` lies; one that begins outside the array is refused."""
    base = _array(array)
    steps = array.traversal_steps if isinstance(array, TiledView) else None
    axes = permutation(order, base.ndim)
    at = [integer(i, "a tile index") for i in (index if isinstance(index, (tuple, list)) else (index,))]
    sizes = tuple(sizes) or (1,) * base.ndim
    if len(at) != base.ndim or len(sizes) != base.ndim:
        raise violation("shapes", f"{base.name}: tile {tuple(at)} of {sizes} of {base.ndim} axes")
    part, own, whole = [], [], True
    for i, size, step, axis in zip(at, sizes, steps or sizes, axes, strict=True):
        length, start = base.tensor.shape[axis], i * step
        if not 0 <= start < length:
            raise violation(
                "outside",
                f"{base.name}: tile {tuple(at)} of {sizes} lies outside the array",
                found=f"it begins at {start} of axis {axis}, which has {length} elements",
            )
        end = min(start + size, length)
        whole = whole and end == start + size
        part.append(slice(start, end))
        own.append(slice(0, end - start))
    if not whole and not check_bounds:
        raise violation("outside", f"{base.name}: an unchecked tile {tuple(at)} of {sizes} reaches over the end")
    return _Place(axes, tuple(part), tuple(own), whole)


def _padded(values: torch.Tensor, place: _Place, sizes: tuple[int, ...], dtype: DType, mode: Any) -> Tile:
    full_sizes = sizes or (1,) * len(place.own)
    padded = torch.empty(full_sizes, dtype=dtype.holds)
    undetermined = fill_padding(padded, dtype, mode)
    padded[place.own] = values
    unknown = None
    if undetermined:
        outside = torch.ones(full_sizes, dtype=torch.bool)
        outside[place.own] = False
        unknown = Unknown(outside, str(where()))
    return tile(padded.reshape(sizes), dtype, unknown)


def fill_padding(values: torch.Tensor, dtype: DType, mode: Any) -> bool:
    """Fill with what `mode` says, and answer whether it leaves that open."""
    if mode is PaddingMode.UNDETERMINED:
        fill(values) if dtype.kind != "restricted" else values.zero_()
        return True
    if mode is not PaddingMode.ZERO and not dtype.is_float:
        raise violation("types", f"{mode} of {dtype}", expected="PaddingMode.ZERO")
    values.copy_(torch.tensor(PADDING[mode])) if mode is not PaddingMode.ZERO else values.zero_()
    return False


def acquire(array: Array, block: Block, element: int = ALL) -> None:
    """Let `block` rely on what was released at `element` of an array, or at any."""
    released = array.shadow.released
    for one in (element, ALL) if element != ALL else tuple(released):
        block.sees |= released.get(one, set())


def release(array: Array, block: Block, element: int = ALL) -> None:
    """Let whoever acquires at `element` of an array rely on all that `block` wrote, and on what it relied on."""
    block.sees.add(block.number)
    array.shadow.released.setdefault(element, set()).update(block.sees)
    block.number = array.memory.new_number(block.index)


def note_spinning(block: Block, array: Array, place: int, unchanged: bool = True) -> None:
    """Count what changes nothing: blocks run one after another, so one that waits for a later one waits forever."""
    key = (array.shadow.tensor.untyped_storage().data_ptr(), place)
    block.spins[key] = block.spins.get(key, 0) + 1 if unchanged else 0
    if block.spins[key] > _SPINS:
        raise violation(
            "order",
            f"{array.name}: an atomic operation changed nothing {_SPINS} times",
            expected="no block that waits for one with a higher number: here they run one after another",
        )
