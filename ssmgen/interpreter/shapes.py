"""Making tiles, and changing their shape or element type: no arithmetic, no memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.arithmetic import as_type, binary
from ssmgen.interpreter.dtypes import bool_, dtype_of, int32, uint8
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.values import (
    Scalar,
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


def arange(size: Any, /, *, dtype: Any, start: Any = 0, step: Any = 1) -> Tile:
    """0, 1, … of `dtype`, or from `start` in steps."""
    (length,) = tile_shape(size, "the size of arange")
    kind = dtype_of(dtype)
    if not kind.is_integral:
        counted = Tile(torch.arange(length, dtype=torch.int32), int32).astype(kind)
        counted = counted if _is(step, 1) else binary("mul", counted, as_scalar(step).astype(kind))
        return counted if _is(start, 0) else binary("add", counted, as_scalar(start).astype(kind))
    first, by = integer(start, "arange's start"), integer(step, "arange's step")
    low, high = kind.range
    if not (low <= first <= high and low <= first + by * (length - 1) <= high):
        raise violation("overflow", f"arange reaches {first + by * (length - 1)}, which does not fit {kind}")
    return Tile((torch.arange(length, dtype=torch.int64) * by + first).to(kind.holds), kind)


def _is(value: Any, neutral: int) -> bool:
    return not isinstance(value, Tile) and bool(value == neutral)


def full(shape: Any, fill_value: Any, dtype: Any) -> Tile:
    """A tile of one value."""
    kind = dtype_of(dtype)
    value = fill_value if isinstance(fill_value, Tile) else number(fill_value)
    if isinstance(value, Tile) and value.shape:
        raise violation("shapes", f"a tile filled with one of {value.shape}", expected="one number")
    sizes = tile_shape(shape)
    unknown = value.unknown if isinstance(value, Tile) else None
    spread = Unknown(unknown.where.expand(sizes), unknown.origin) if unknown else None
    return tile(as_type(value, kind).expand(sizes), kind, spread)


def zeros(shape: Any, dtype: Any) -> Tile:
    """A tile of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any) -> Tile:
    """A tile of ones."""
    return full(shape, 1, dtype)


def astile(value: Any, /, *, dtype: Any) -> Tile:
    """A tile from a number or nested tuples of numbers."""
    kind = dtype_of(dtype)
    if isinstance(value, Tile):
        return astype(value, kind)
    if not isinstance(value, (tuple, list)):
        return full((), value, kind)
    parts = [astile(part, dtype=kind) for part in value]
    if len({part.shape for part in parts}) != 1:
        raise violation("shapes", f"a tile of parts of {[part.shape for part in parts]}", expected="one shape")
    tile_shape((len(parts), *parts[0].shape))
    return joined([expand_dims(part, 0) for part in parts], 0)


def astype(x: Any, dtype: Any, /, *, rounding_mode: Any = None) -> Tile:
    """The values of `x`, rounded to nearest even in `dtype`."""
    x, kind = as_scalar(x), dtype_of(dtype)
    assert isinstance(x, Tile)
    if rounding_mode is not None and getattr(rounding_mode, "name", None) != "RN":
        raise unsupported(f"astype with {rounding_mode}")
    if x.dtype is kind:
        return x
    if isinstance(x, Scalar) and kind.is_integral:
        low, high = kind.range
        cut = (x.value - low) % (high - low + 1) + low
        return Scalar(cut, kind, x.unknown)
    return tile(dtypes.convert(x.values, x.dtype, kind), kind, x.unknown)


def bitcast(x: Any, /, dtype: Any) -> Tile:
    """The bits of `x` as another type of the same width."""
    x, kind = as_scalar(x), dtype_of(dtype)
    if x.dtype.bits != kind.bits or bool_ in (x.dtype, kind):
        raise violation("types", f"bitcast of {x.dtype} to {kind}", expected="types of one width")
    return tile(x.values.contiguous().view(kind.holds), kind, x.unknown)


def pack_to_bytes(x: Any, /) -> Tile:
    """The bytes of `x` as one row of uint8."""
    x = as_scalar(x)
    determined(x, "pack_to_bytes")
    if x.dtype is bool_:
        raise violation("types", "the bytes of booleans", expected="an explicit astype")
    return Tile(x.values.contiguous().reshape(-1).view(torch.uint8), uint8)


def unpack_from_bytes(x: Tile, /, dtype: Any) -> Tile:
    """A row of bytes as a row of `dtype`."""
    kind = dtype_of(dtype)
    determined(x, "unpack_from_bytes")
    if x.dtype is not uint8 or x.ndim != 1 or kind is bool_ or x.shape[0] * 8 % kind.bits:
        raise violation("types", f"{kind} from the bytes of {x!r}", expected="a row of uint8 of whole elements")
    return Tile(x.values.contiguous().view(kind.holds), kind)


def reshape(x: Any, shape: Any, /) -> Tile:
    """The elements of `x`, in order, in another shape; -1 stands for what is left."""
    x = as_scalar(x)
    sizes = [constant_int(size, "a tile's size") for size in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = math.prod(x.shape) // max(1, -math.prod(sizes))
    if math.prod(sizes) != math.prod(x.shape):
        raise violation("shapes", f"a tile of {x.shape} reshaped to {tuple(sizes)}")
    to = tile_shape(tuple(sizes))
    return _each(x, lambda v: v.reshape(to))


def permute(x: Any, axes: Any, /) -> Tile:
    """The axes of `x` in another order."""
    x = as_scalar(x)
    order = _axes(axes, x.ndim)
    return _each(x, lambda v: v.permute(order))


def transpose(x: Any, /, axis0: Any = None, axis1: Any = None) -> Tile:
    """Two axes of `x` exchanged; without naming them, those of a matrix."""
    x = as_scalar(x)
    if (axis0 is None) != (axis1 is None) or (axis0 is None and x.ndim != 2):
        raise violation("shapes", f"transpose of a tile of {x.shape}", expected="two axes by number, or a matrix")
    if axis0 is None:
        axis0, axis1 = 0, 1
    a, b = axis_of(axis0, x.ndim), axis_of(axis1, x.ndim)
    return _each(x, lambda v: v.transpose(a, b))


def expand_dims(x: Any, /, axis: Any) -> Tile:
    """`x` with one more axis, of one element."""
    x = as_scalar(x)
    at = axis_of(axis, x.ndim + 1)
    return _each(x, lambda v: v.unsqueeze(at))


def broadcast_to(x: Any, shape: Any, /) -> Tile:
    """`x` repeated along axes of one element."""
    x, sizes = as_scalar(x), tile_shape(shape)
    if len(sizes) < x.ndim or any(a not in (1, b) for a, b in zip(x.shape[::-1], sizes[::-1], strict=False)):
        raise violation("shapes", f"a tile of {x.shape} broadcast to {sizes}")
    return _each(x, lambda v: v.expand(sizes))


def cat(tiles: Sequence[Tile], /, axis: Any) -> Tile:
    """Two tiles of one shape, one after the other."""
    if not 1 <= len(tiles) <= 2:
        raise violation("types", f"cat of {len(tiles)} tiles", expected="two")
    first, second = tiles[0], tiles[-1]
    at = axis_of(axis, first.ndim)
    others = [tuple(n for i, n in enumerate(t.shape) if i != at) for t in tiles]
    if first.dtype is not second.dtype or first.ndim != second.ndim or others[0] != others[-1]:
        raise violation("types", f"cat of {first!r} and {second!r}", expected="one type and shape")
    result = joined(list(tiles), at)
    tile_shape(result.shape)
    return result


def joined(tiles: list[Tile], at: int) -> Tile:
    """Tiles of one type, one after the other along an axis."""
    values = torch.cat([t.values for t in tiles], at)
    marked = [t.unknown for t in tiles if t.unknown is not None]
    if not marked:
        return Tile(values, tiles[0].dtype)
    masks = [t.unknown.where.expand(t.shape) if t.unknown else torch.zeros(t.shape, dtype=torch.bool) for t in tiles]
    return Tile(values, tiles[0].dtype, Unknown(torch.cat(masks, at), marked[0].origin))


def extract(x: Tile, /, index: Any, shape: Any) -> Tile:
    """Of `x` cut into tiles of `shape`, the one at `index`."""
    sizes = tile_shape(shape)
    at = _subtile(x, index, sizes or (1,) * x.ndim)
    return _each(x, lambda v: v[at].reshape(sizes))


def insert(x: Tile, /, index: Any, value: Any) -> Tile:
    """`x` with the tile at `index` replaced by `value`."""
    value = as_scalar(value)
    if value.dtype is not x.dtype:
        raise violation("types", f"insert of {value.dtype} into {x.dtype}")
    at = _subtile(x, index, value.shape or (1,) * x.ndim)
    values = x.values.clone()
    values[at] = value.values
    unknown = x.unknown
    if unknown is not None or value.unknown is not None:
        mask = unknown.where.expand(x.shape).clone() if unknown else torch.zeros(x.shape, dtype=torch.bool)
        mask[at] = value.unknown.where if value.unknown else False
        unknown = Unknown(mask, (value.unknown or unknown).origin)  # type: ignore[union-attr]
    return Tile(values, x.dtype, unknown)


def item(x: Tile) -> Tile:
    """The one element of a tile."""
    if math.prod(x.shape) != 1:
        raise violation("shapes", f"item of a tile of {x.shape}", expected="one element")
    return reshape(x, ())


def subscript(x: Tile, key: Any) -> Tile:
    """x[:, None]: new axes of one element; a tile is not indexed otherwise."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(k is not None and k is not Ellipsis and k != slice(None) for k in keys):
        raise violation("types", f"a tile indexed by {key!r:.60}", expected="None, : and … only, or extract or item")
    if sum(isinstance(k, slice) for k in keys) > x.ndim:
        raise violation("shapes", f"a tile of {x.shape} indexed by {key!r:.60}")
    return _each(x, lambda v: v[key])


def axis_of(axis: Any, ndim: int) -> int:
    """A constant axis of `ndim`, counted from the front."""
    at = constant_int(axis, "an axis")
    if not -ndim <= at < ndim:
        raise violation("shapes", f"axis {at} of {ndim}")
    return at % ndim


def _axes(axes: Any, ndim: int) -> list[int]:
    order = [axis_of(a, ndim) for a in axes]
    if sorted(order) != list(range(ndim)):
        raise violation("shapes", f"axes {tuple(order)}", expected=f"each of {ndim} once")
    return order


def _subtile(x: Tile, index: Any, sizes: tuple[int, ...]) -> tuple[slice, ...]:
    at = [integer(i, "a tile index") for i in (index if isinstance(index, (tuple, list)) else (index,))]
    if len(at) != x.ndim or len(sizes) != x.ndim or any(a % b for a, b in zip(x.shape, sizes, strict=False)):
        raise violation("shapes", f"the part {tuple(at)} of {sizes} of a tile of {x.shape}")
    for i, size, length in zip(at, sizes, x.shape, strict=True):
        if not 0 <= i * size < length:
            raise violation("outside", f"the part {tuple(at)} of {sizes} is outside a tile of {x.shape}")
    return tuple(slice(i * size, i * size + size) for i, size in zip(at, sizes, strict=True))


def _each(x: Tile, function: Callable[[torch.Tensor], torch.Tensor]) -> Tile:
    """`function` of the values and of what is undetermined among them."""
    unknown = x.unknown
    if unknown is not None:
        unknown = Unknown(function(unknown.where.expand(x.shape)), unknown.origin)
    return tile(function(x.values), x.dtype, unknown)


def _install() -> None:
    members: dict[str, Any] = dict(
        reshape=reshape, permute=permute, transpose=transpose, astype=astype, extract=extract, insert=insert,
        item=item, __getitem__=subscript,
    )  # fmt: skip
    for name, function in members.items():
        setattr(Tile, name, function)


_install()
