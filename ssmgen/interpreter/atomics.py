"""Atomic operations, and what blocks may rely on through them.

A release lets whoever acquires at the same element rely on all that the block wrote before. Several elements at once
release and acquire for the whole array, which may hide a race and never invents one. Blocks run one after another, so
a block that spins on what a later one has to write would never end: that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ssmgen.interpreter.access import ALL, acquire, note_spinning, place_of, release, stored
from ssmgen.interpreter.arithmetic import binary
from ssmgen.interpreter.arrays import Array, TiledView
from ssmgen.interpreter.blocks import Block, current
from ssmgen.interpreter.dtypes import bfloat16, dtype_of, float16
from ssmgen.interpreter.enums import ACQUIRES, RELEASES, MemoryOrder
from ssmgen.interpreter.faults import violation, where
from ssmgen.interpreter.gathering import elements_at, expanded, numbered
from ssmgen.interpreter.memory import Access, put
from ssmgen.interpreter.shapes import broadcast_to
from ssmgen.interpreter.values import Tile, Unknown, as_scalar, determined, tile

Update = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _update(operation: str) -> Update:
    """As the operator of that name combines tiles: a sum that leaves its type's range is an error here too."""
    return lambda old, new: binary(operation, *(Tile(v, dtype_of(v.dtype)) for v in (old, new))).values


UPDATES: dict[str, Update] = {
    "add": _update("add"),
    "max": _update("maximum"),
    "min": _update("minimum"),
    "and": _update("and_"),
    "or": _update("or_"),
    "xor": _update("xor"),
}
_BITWISE = ("and", "or", "xor")


def atomic(name: str, update: Update) -> Callable[..., Tile]:
    """ct.atomic_NAME: `update` makes the new value of the old one and the operand."""

    def apply(
        array: Array,
        indices: Any,
        value: Any,
        /,
        *,
        check_bounds: Any = True,
        memory_order: Any = MemoryOrder.ACQ_REL,
        memory_scope: Any = None,
    ) -> Tile:
        _check_types(name, array, value)
        operand = _operand(value, array)
        return _atomically(name, array, (indices, check_bounds), memory_order, lambda old, at: update(old, operand(at)))

    apply.__name__ = name
    return apply


def atomic_cas(  # noqa: PLR0913 - its signature in cuda.tile
    array: Array,
    indices: Any,
    expected: Any,
    desired: Any,
    /,
    *,
    check_bounds: Any = True,
    memory_order: Any = MemoryOrder.ACQ_REL,
    memory_scope: Any = None,
) -> Tile:
    """Store `desired` where the element is `expected`; what was there before."""
    _check_types("atomic_cas", array, desired)
    compared = stored(expected, array)
    wanted, new = _operand(expected, array), _operand(desired, array)

    def exchange(old: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.where(old == wanted(at), new(at), old)

    return _atomically("atomic_cas", array, (indices, check_bounds), memory_order, exchange, compared)


def _operand(value: Any, array: Array) -> Callable[[torch.Tensor], torch.Tensor]:
    """The operand's elements at chosen places."""
    source = stored(value, array)
    determined(source, f"an atomic operation on {array.name}")
    return lambda inside: expanded(source, tuple(inside.shape))[inside]


def _atomically(
    name: str,
    array: Array,
    at: tuple[Any, Any],
    order: Any,
    update: Callable[..., torch.Tensor],
    outside: Tile | None = None,
) -> Tile:
    """The old values; for an index that is outside, what `outside` holds, or anybody's guess."""
    block = current(name)
    array.writable()
    part, inside, shape = elements_at(array, at[0], None, at[1])
    old = expanded(outside, shape).clone() if outside is not None else torch.zeros(shape, dtype=array.tensor.dtype)
    unknown = None if outside is not None or bool(inside.all()) else Unknown(~inside, str(where()))
    if not bool(inside.any()):
        return tile(old, array.dtype, unknown)
    element = _element(array, part)
    if order in ACQUIRES:
        acquire(array, block, element)
    array.memory.update(array.shadow, _access(array, part, block))
    before, after = _one_by_one(array, part, inside, update)
    put(old, inside, before)
    if order in RELEASES:
        release(array, block, element)
    note_spinning(block, array, element, bool(torch.equal(before, after)))
    block.counts.read_bytes += before.numel() * before.element_size()
    block.counts.written_bytes += before.numel() * before.element_size()
    return tile(old, array.dtype, unknown)


def _access(array: Array, part: tuple[Any, ...], block: Block) -> Access:
    return Access(array.view, tuple(range(array.ndim)), part, block, array.name, atomic=True)


def _one_by_one(
    array: Array, part: tuple[torch.Tensor, ...], inside: torch.Tensor, update: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Old and new values; where an element is named twice, one update follows the other."""
    flat = numbered(array, part, int(inside.sum()))
    if torch.unique(flat).numel() == flat.numel():
        before = array.tensor[part].clone()
        after = update(before, inside)
        put(array.tensor, part, after)
        return before, after
    olds, news = [], []
    places = inside.nonzero()
    for step in range(flat.numel()):
        single = torch.zeros_like(inside)
        single[tuple(places[step])] = True
        here = tuple(one[step : step + 1] for one in part)
        olds.append(array.tensor[here].clone())
        news.append(update(olds[-1], single))
        put(array.tensor, here, news[-1])
    return torch.cat(olds), torch.cat(news)


def _element(array: Array, part: tuple[torch.Tensor, ...]) -> int:
    if part and part[0].numel() != 1:
        return ALL
    strides = array.tensor.stride()
    offset: int = array.tensor.storage_offset()
    within: int = sum(int(p) * s for p, s in zip(part, strides, strict=True))
    return offset + within


def atomic_store(name: str, view: TiledView, index: Any, update: Any) -> None:
    """TiledView.atomic_store_add and its like: no order among blocks, and nothing handed back."""
    block, array = current(name), view.array
    _check_types(name, array, update)
    array.writable()
    sizes = view.tile_shape or (1,) * array.ndim
    place = place_of(view, index, sizes, "C", True)
    value = broadcast_to(stored(as_scalar(update), array), sizes)
    determined(value, f"{name} to {array.name}", lambda mask: mask[place.own])
    array.memory.update(array.shadow, _access(array, place.part, block))
    before = array.tensor[place.part]
    array.tensor[place.part] = UPDATES[name.removeprefix("atomic_store_")](before, value.values[place.own])
    block.counts.read_bytes += before.numel() * before.element_size()
    block.counts.written_bytes += before.numel() * before.element_size()


def _check_types(name: str, array: Array, operand: Any) -> None:
    """Refuse an element type that cuTile has no such atomic operation for."""
    kind = name.removeprefix("atomic_").removeprefix("store_")
    dtype = array.dtype
    fits = dtype.kind in ("signed", "unsigned", "float") and dtype.bits >= 32
    if kind in UPDATES and kind != "add":
        fits = fits and dtype.is_integral
    if not fits and not (kind == "add" and dtype in (float16, bfloat16)):
        raise violation("types", f"{name} of {dtype}", expected="a type of 32 or 64 bits that it takes")
    if kind in _BITWISE and as_scalar(operand).dtype is not dtype:
        raise violation("types", f"{name} of {as_scalar(operand).dtype} to {dtype}", expected="one type")


atomic_add = atomic("atomic_add", UPDATES["add"])
atomic_max = atomic("atomic_max", UPDATES["max"])
atomic_min = atomic("atomic_min", UPDATES["min"])
atomic_and = atomic("atomic_and", UPDATES["and"])
atomic_or = atomic("atomic_or", UPDATES["or"])
atomic_xor = atomic("atomic_xor", UPDATES["xor"])
atomic_xchg = atomic("atomic_xchg", lambda old, new: new.expand(old.shape))
