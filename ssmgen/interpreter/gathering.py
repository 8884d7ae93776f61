"""Loads and stores of chosen elements: gather and scatter, and rows chosen by a tile of indices.

Indices beyond the array are left out, as cuTile leaves them out; where a kernel asks for no check they are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.access import check_latency, fill_padding, stored
from ssmgen.interpreter.arrays import Array
from ssmgen.interpreter.blocks import current
from ssmgen.interpreter.dtypes import bool_
from ssmgen.interpreter.enums import PaddingMode
from ssmgen.interpreter.faults import violation, where
from ssmgen.interpreter.memory import put
from ssmgen.interpreter.values import Tile, Unknown, as_scalar, determined, integer, merge, tile, tile_shape


@dataclass(frozen=True)
class Slice:
    """`length` elements from `start`, for advanced indexing."""

    start: Any
    length: Any


def gather(
    array: Array,
    indices: Any,
    /,
    *,
    mask: Any = None,
    padding_value: Any = 0,
    check_bounds: Any = True,
    latency: Any = None,
) -> Tile:
    """The elements at `indices`, `padding_value` where the mask or the array's bounds leave one out."""
    block = current("gather")
    check_latency(latency)
    part, inside, shape = elements_at(array, indices, mask, check_bounds)
    values = expanded(stored(padding_value, array), shape).clone()
    if bool(inside.any()):
        put(values, inside, array.read(tuple(range(array.ndim)), part, block))
    unknown = merge(shape, padding_value)
    if unknown is not None:
        unknown = Unknown(unknown.where & ~inside, unknown.origin)
    return tile(values, array.dtype, unknown)


def scatter(
    array: Array, indices: Any, value: Any, /, *, mask: Any = None, check_bounds: Any = True, latency: Any = None
) -> None:
    """Store `value` at `indices`, where the mask and the array's bounds let it."""
    block = current("scatter")
    check_latency(latency)
    part, inside, shape = elements_at(array, indices, mask, check_bounds)
    source = stored(value, array)
    kept = expanded(source, shape)
    determined(source, f"a scatter to {array.name}", lambda mask: mask.expand(shape) & inside)
    if bool(inside.any()):
        _distinct(array, part, kept[inside])
        array.write(tuple(range(array.ndim)), part, kept[inside], block)


def elements_at(
    array: Array, indices: Any, mask: Any, check_bounds: Any
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, tuple[int, ...]]:
    """The chosen elements, which of the indices choose one, and the indices' common shape."""
    given = indices if isinstance(indices, (tuple, list)) else (indices,)
    if len(given) != array.ndim:
        raise violation("shapes", f"{array.name}: {len(given)} indices of {array.ndim} axes")
    tiles = [as_scalar(i) for i in given]
    for one in tiles:
        if not one.dtype.is_integral:
            raise violation("types", f"{array.name}: indices of {one.dtype}", expected="integers")
    chosen = as_scalar(True if mask is None else mask)
    if chosen.dtype is not bool_:
        raise violation("types", f"{array.name}: a mask of {chosen.dtype}", expected="booleans")
    try:
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tiles)))
        inside = chosen.values.expand(shape).clone()
    except RuntimeError:
        raise violation("shapes", f"{array.name}: indices and mask that do not broadcast") from None
    determined(chosen, f"the mask of {array.name}")
    for one in tiles:
        determined(one, f"an index of {array.name}", lambda mask: mask.expand(shape) & inside)
    wide = [t.values.expand(shape).to(torch.int64) for t in tiles]
    for one, length in zip(wide, array.tensor.shape, strict=True):
        within = (one >= 0) & (one < length)
        if not check_bounds and bool((inside & ~within).any()):
            raise violation("outside", f"{array.name}: an unchecked index is outside {tuple(array.tensor.shape)}")
        inside &= within
    return tuple(one[inside] for one in wide), inside, shape


def load_advanced_indexing(
    array: Array,
    indices: Any,
    /,
    *,
    padding_mode: Any = PaddingMode.UNDETERMINED,
    latency: Any = None,
    allow_tma: Any = None,
) -> Tile:
    """Rows chosen by a tile of indices along one axis, slices along the others."""
    block = current("load_advanced_indexing")
    part, inside, shape = _rows_at(array, indices)
    values = torch.empty(shape, dtype=array.dtype.holds)
    undetermined = fill_padding(values, array.dtype, padding_mode)
    if bool(inside.any()):
        put(values, inside, array.read(tuple(range(array.ndim)), part, block))
    unknown = Unknown(~inside, str(where())) if undetermined and not bool(inside.all()) else None
    return tile(values, array.dtype, unknown)


def store_advanced_indexing(
    array: Array, indices: Any, tile: Any, /, *, latency: Any = None, allow_tma: Any = None
) -> None:
    """Store to rows chosen by a tile of indices along one axis, slices along the others."""
    block = current("store_advanced_indexing")
    part, inside, shape = _rows_at(array, indices)
    source = stored(tile, array)
    if source.shape != shape:
        raise violation("shapes", f"{array.name}: a tile of {source.shape} stored at indices of {shape}")
    determined(source, f"a store to {array.name}", lambda mask: mask & inside)
    if bool(inside.any()):
        _distinct(array, part, source.values[inside])
        array.write(tuple(range(array.ndim)), part, source.values[inside], block)


def expanded(value: Tile, shape: tuple[int, ...]) -> torch.Tensor:
    """The values of a tile, one for each of the indices."""
    try:
        return value.values.expand(shape)
    except RuntimeError:
        raise violation("shapes", f"a tile of {value.shape} scattered to {shape} elements") from None


def numbered(array: Array, part: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
    """The chosen elements, `count` of them, each by one number: equal where they are one element."""
    flat = torch.zeros(count, dtype=torch.int64)
    for one, length in zip(part, array.tensor.shape, strict=True):
        flat = flat * length + one
    return flat


def _distinct(array: Array, part: tuple[torch.Tensor, ...], values: torch.Tensor) -> None:
    """Refuse two values for one element: which one stays is anybody's guess."""
    flat = numbered(array, part, values.numel())
    unique, position = torch.unique(flat, return_inverse=True)
    if unique.numel() == flat.numel():
        return
    bits = values.contiguous().view(torch.uint8).reshape(values.numel(), -1)
    first = bits.new_zeros((unique.numel(), bits.shape[1]))
    first[position] = bits
    if not torch.equal(first[position], bits):
        raise violation("race", f"{array.name}: one store puts two values into one element")


def _rows_at(array: Array, indices: Any) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, tuple[int, ...]]:
    rows = [at for at, i in enumerate(indices) if not isinstance(i, Slice)]
    if len(indices) != array.ndim or len(rows) != 1 or not isinstance(indices[rows[0]], Tile):
        raise violation("types", f"{array.name}: advanced indexing", expected="one tile of indices, slices elsewhere")
    shaped = []
    for at, i in enumerate(indices):
        if isinstance(i, Slice):
            (length,) = tile_shape(i.length, "a slice's length")
            values = torch.arange(length) + integer(i.start, "a slice's start")
        else:
            determined(i, f"an index of {array.name}")
            if i.ndim != 1 or not i.dtype.is_integral:
                raise violation("types", f"{array.name}: advanced indexing by {i!r}", expected="a row of integers")
            values = i.values.to(torch.int64)
        shaped.append(Tile(values.reshape([-1 if k == at else 1 for k in range(array.ndim)]), dtypes.int64))
    found = elements_at(array, tuple(shaped), None, True)
    if not bool(found[1].any()):
        raise violation("outside", f"{array.name}: none of the chosen rows lies inside {tuple(array.tensor.shape)}")
    return found
