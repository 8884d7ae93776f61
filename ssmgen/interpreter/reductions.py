"""Sums, extremes and scans along axes; sums run in the tile's own type, as on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ssmgen.interpreter.arithmetic import broadcast_shape, in_64_bits, positive, settled
from ssmgen.interpreter.dtypes import converts_silently, int32, uint64
from ssmgen.interpreter.elementwise import check_hints
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.shapes import axis_of, broadcast_to, joined, permute, reshape
from ssmgen.interpreter.values import Tile, Unknown, as_scalar, tile


def _axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(sorted(axis_of(a, ndim) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))))
    if len(set(axes)) < len(axes):
        raise violation("shapes", f"axes {axes}", expected="each axis once")
    return axes


def _arithmetic(x: Any, name: str) -> Tile:
    operand: Tile = positive(as_scalar(x))
    if operand.dtype.kind == "restricted":
        raise violation("types", f"{name} of {operand.dtype}", expected="an explicit astype")
    return operand


def _wide(x: Tile, name: str) -> torch.Tensor:
    """Integers in 64 bits; what these cannot put in order is refused."""
    if x.dtype.is_float:
        return x.values
    wide = in_64_bits(x.values)
    if x.unknown is not None:
        wide = settled(wide, x.unknown, 1 if name in ("prod", "cumprod") else 0)
    if x.dtype is uint64 and name not in ("sum", "prod", "cumsum", "cumprod") and bool((wide < 0).any()):
        raise unsupported(f"{name} of uint64 values beyond 2^63")
    return wide


def _unknown(x: Tile, axes: tuple[int, ...], keepdims: bool) -> Unknown | None:
    """One undetermined element makes the whole of its sum undetermined."""
    if x.unknown is None:
        return None
    where = x.unknown.where.expand(x.shape)
    return Unknown(where.any(dim=axes, keepdim=keepdims) if axes else where, x.unknown.origin)


def _halved(values: torch.Tensor, axis: int, combine: Callable[..., torch.Tensor]) -> torch.Tensor:
    """`values` with one axis combined pairwise, a tree of roundings in the values' own type."""
    while values.shape[axis] > 1:
        first, second = values.chunk(2, axis)
        values = combine(first, second)
    return values


def reduction(name: str) -> Callable[..., Any]:
    """ct.sum, ct.prod, ct.max or ct.min."""
    combine = {"sum": torch.add, "prod": torch.mul, "max": torch.fmax, "min": torch.fmin}[name]
    propagating = {"max": torch.maximum, "min": torch.minimum}.get(name, combine)

    def apply(
        x: Any,
        /,
        axis: Any = None,
        *,
        keepdims: bool = False,
        rounding_mode: Any = None,
        flush_to_zero: bool = False,
        propagate_nan: bool = False,
    ) -> Any:
        check_hints(name, rounding_mode)
        x = _arithmetic(x, name)
        axes = _axes_of(axis, x.ndim)
        wide = _wide(x, name)

        def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            result = (propagating if propagate_nan else combine)(a, b)
            _fits(result, x, name)
            return result

        for at in axes:
            wide = _halved(wide, at, step)
        if not keepdims:
            wide = wide.reshape([n for at, n in enumerate(wide.shape) if at not in axes])
        return tile(_fits(wide, x, name), x.dtype, _unknown(x, axes, keepdims))

    apply.__name__ = name
    return apply


def _fits(wide: torch.Tensor, x: Tile, name: str) -> torch.Tensor:
    """An integer result in the tile's own type, where it fits."""
    if x.dtype.is_float:
        return wide
    low, high = x.dtype.range
    if x.dtype.kind == "signed" and x.dtype.bits < 64 and bool(((wide < low) | (wide > high)).any()):
        raise violation("overflow", f"{name} of {x.dtype} leaves its range", expected=f"{low} to {high}")
    return (wide & high if x.dtype.kind == "unsigned" and x.dtype.bits < 64 else wide).to(x.dtype.holds)


def extreme_index(name: str) -> Callable[..., Any]:
    """ct.argmax or ct.argmin: the first of equals."""
    pick = {"argmax": torch.argmax, "argmin": torch.argmin}[name]

    def apply(x: Any, /, axis: Any = None, *, keepdims: bool = False, propagate_nan: bool = False) -> Any:
        x = _arithmetic(x, name)
        if x.dtype.is_float and bool(torch.isnan(x.values).any()):
            raise unsupported(f"{name} of NaN")
        axes = _axes_of(axis, x.ndim)
        if axis is None:
            values = pick(_wide(x, name).reshape(-1), 0).reshape([1] * x.ndim if keepdims else [])
        elif isinstance(axis, (tuple, list)):
            raise violation("types", f"{name} along {axis}", expected="one axis, or None")
        else:
            values = pick(_wide(x, name), axes[0], keepdim=keepdims)
        return tile(values.to(torch.int32), int32, _unknown(x, axes, keepdims))

    apply.__name__ = name
    return apply


def reduce(x: Any, /, axis: Any, func: Callable[..., Any], identity: Any, *, keepdims: bool = False) -> Any:
    """A reduction by the kernel's own function of two tiles, or of two tuples of tiles."""
    together = isinstance(x, tuple)
    parts = _broadcast(x if together else (x,))
    at = axis_of(axis, parts[0].ndim)
    halves = tuple(permute(p, (at, *(i for i in range(p.ndim) if i != at))) for p in parts)
    while halves[0].shape[0] > 1:
        size = (halves[0].shape[0] // 2, *halves[0].shape[1:])
        low = tuple(p.extract((0,) * p.ndim, size) for p in halves)
        high = tuple(p.extract((1, *(0,) * (p.ndim - 1)), size) for p in halves)
        halves = _combined(func, low, high, together)
    shape = parts[0].shape
    to = [1 if i == at else n for i, n in enumerate(shape)] if keepdims else [n for i, n in enumerate(shape) if i != at]
    results = tuple(reshape(p, tuple(to)) for p in halves)
    return results if together else results[0]


def _combined(func: Callable[..., Any], low: tuple[Any, ...], high: tuple[Any, ...], together: bool) -> tuple[Any, ...]:
    result = func(*low, *high)
    results = tuple(result) if together else (result,)
    if len(results) != len(low):
        raise violation("types", f"a function of {len(low)} pairs hands back {len(results)} values")
    return tuple(_like(one, first) for one, first in zip(results, low, strict=True))


def _like(result: Any, like: Tile) -> Tile:
    """What the kernel's function made of two values, as their own type."""
    if not isinstance(result, Tile) or not converts_silently(result.dtype, like.dtype):
        raise violation("types", f"a function of {like.dtype} values hands back {result!r:.60}")
    return result.astype(like.dtype)


def _broadcast(parts: tuple[Any, ...]) -> tuple[Tile, ...]:
    tiles = [as_scalar(part) for part in parts]
    shape = broadcast_shape(*(t.values for t in tiles))
    return tuple(broadcast_to(t, shape) for t in tiles)


def running_total(name: str) -> Callable[..., Any]:
    """ct.cumsum or ct.cumprod."""
    scan_values = {"cumsum": torch.cumsum, "cumprod": torch.cumprod}[name]

    def apply(
        x: Any, /, axis: Any = 0, *, reverse: bool = False, rounding_mode: Any = None, flush_to_zero: bool = False
    ) -> Any:
        check_hints(name, rounding_mode)
        x = _arithmetic(x, name)
        at = axis_of(axis, x.ndim)
        wide = _wide(x, name)
        turned = wide.flip(at) if reverse else wide
        total = scan_values(turned.to(torch.float32) if x.dtype.bits == 16 and x.dtype.is_float else turned, at)
        total = total.flip(at) if reverse else total
        values = total.to(x.dtype.holds) if x.dtype.is_float else _fits(total, x, name)
        return Tile(values, x.dtype, _seen(x, at, reverse))

    apply.__name__ = name
    return apply


def _seen(x: Tile, at: int, reverse: bool) -> Unknown | None:
    """Where an undetermined element has entered a running total."""
    if x.unknown is None:
        return None
    where = x.unknown.where.expand(x.shape)
    where = where.flip(at) if reverse else where
    entered = torch.cummax(where.to(torch.int32), at).values.bool()
    return Unknown(entered.flip(at) if reverse else entered, x.unknown.origin)


def scan(x: Any, /, axis: Any, func: Callable[..., Any], identity: Any, *, reverse: bool = False) -> Any:
    """A running reduction by the kernel's own function of two tiles, or of two tuples of tiles."""
    together = isinstance(x, tuple)
    parts = _broadcast(x if together else (x,))
    at = axis_of(axis, parts[0].ndim)
    steps = range(parts[0].shape[at])
    total: tuple[Any, ...] | None = None
    rows: list[tuple[Tile, ...]] = []
    for step in reversed(steps) if reverse else steps:
        piece = tuple(_slice(p, at, step) for p in parts)
        total = piece if total is None else _combined(func, total, piece, together)
        rows.append(total)
    rows = rows[::-1] if reverse else rows
    results = tuple(joined([row[i] for row in rows], at) for i in range(len(parts)))
    return results if together else results[0]


def _slice(x: Tile, at: int, step: int) -> Tile:
    size = tuple(1 if i == at else n for i, n in enumerate(x.shape))
    return x.extract(tuple(step if i == at else 0 for i in range(x.ndim)), size)
