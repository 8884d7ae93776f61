"""Arrays as kernels see them: a torch tensor with the shadow of its memory, and views of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.blocks import Block, current
from ssmgen.interpreter.dtypes import DType, int32
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.memory import Access, Memory, Shadow, View, put, view_of
from ssmgen.interpreter.shapes import axis_of, broadcast_to
from ssmgen.interpreter.values import Scalar, Tile, constant_int, determined, integer, tile_shape


@dataclass(eq=False)
class Array:
    """A parameter of a kernel, or a slice of one; `overlaps` names a parameter that shares elements with it."""

    tensor: torch.Tensor
    name: str
    memory: Memory
    shadow: Shadow
    index_dtype: DType = int32
    static_shape: frozenset[int] = frozenset()
    static_strides: frozenset[int] = frozenset()
    overlaps: str | None = None
    view: View = field(init=False)

    def __post_init__(self) -> None:
        self.view = view_of(self.tensor)
        low, high = self.index_dtype.range
        for what, sizes in (("length", self.tensor.shape), ("stride", self.tensor.stride())):
            if any(not low <= n <= high for n in sizes):
                raise violation("overflow", f"{self.name}: a {what} of {max(sizes)} does not fit {self.index_dtype}")

    @property
    def dtype(self) -> DType:
        return dtypes.dtype_of(self.tensor.dtype)

    @property
    def ndim(self) -> int:
        axes: int = self.tensor.dim()
        return axes

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._sizes(self.tensor.shape, self.static_shape)

    @property
    def strides(self) -> tuple[Any, ...]:
        return self._sizes(self.tensor.stride(), self.static_strides)

    def _sizes(self, sizes: Sequence[int], static: frozenset[int]) -> tuple[Any, ...]:
        return tuple(n if at in static else Scalar(n, self.index_dtype) for at, n in enumerate(sizes))

    def slice(self, axis: Any, start: Any, stop: Any) -> Array:
        """The elements from `start` up to `stop` along one axis."""
        at = axis_of(axis, self.ndim)
        first, end = integer(start, "a slice's start"), integer(stop, "a slice's stop")
        length = self.tensor.shape[at]
        # an empty slice at the end is what a zero-length sequence makes
        if not (0 <= first <= end <= length):
            raise violation("outside", f"{self.name}: slice {first} to {end} of an axis of {length}")
        offset = first * self.tensor.stride(at)
        if not self.index_dtype.range[0] <= offset <= self.index_dtype.range[1]:
            raise violation("overflow", f"{self.name}: the slice's offset {offset} does not fit {self.index_dtype}")
        part = self.tensor.narrow(at, first, end - first)
        known = () if isinstance(start, Tile) or isinstance(stop, Tile) else (at,)
        return Array(
            part, self.name, self.memory, self.shadow, self.index_dtype,
            self.static_shape - {at} | set(known), self.static_strides, self.overlaps,
        )  # fmt: skip

    def tiled_view(self, tile_shape: Any, *, padding_mode: Any = None, traversal_steps: Any = None) -> TiledView:
        """This array cut into tiles."""
        from ssmgen.interpreter.enums import PaddingMode

        return TiledView(self, *_tiling(self, tile_shape, traversal_steps), padding_mode or PaddingMode.UNDETERMINED)

    def read(self, order: Sequence[int], part: tuple[Any, ...], block: Block, atomic: bool = False) -> torch.Tensor:
        """The elements at `part`, noted as read."""
        self.memory.read(self.shadow, Access(self.view, order, part, block, self.name, atomic))
        values = self.tensor.permute(tuple(order))[part]
        self._touch("read", order, part, block)
        block.counts.read_bytes += values.numel() * self.tensor.element_size()
        return values.clone()

    def write(
        self, order: Sequence[int], part: tuple[Any, ...], values: torch.Tensor, block: Block, atomic: bool = False
    ) -> None:
        """Store `values` at `part`, noted as written."""
        self.writable()
        self.memory.store(self.shadow, Access(self.view, order, part, block, self.name, atomic))
        put(self.tensor.permute(tuple(order)), part, values)
        self._touch("written", order, part, block)
        block.counts.written_bytes += values.numel() * self.tensor.element_size()

    def _touch(self, how: str, order: Sequence[int], part: tuple[Any, ...], block: Block) -> None:
        counts = block.counts
        if counts.touched is not None:
            blank = torch.zeros(self.tensor.shape, dtype=torch.bool)
            counts.touched.setdefault((how, self.name), blank).permute(tuple(order))[part] = True
            counts.item_bytes[self.name] = self.tensor.element_size()

    def writable(self) -> None:
        """Refuse a store to memory that another parameter shares, or that other elements of the array are."""
        if any(stride == 0 and length > 1 for stride, length in zip(self.view[1], self.view[0], strict=True)):
            raise violation("alias", f"{self.name} is stored to, and its own elements share memory")
        if self.overlaps is not None:
            raise violation(
                "alias",
                f"{self.name} is stored to, and shares elements with {self.overlaps}",
                expected="arrays of one launch apart from each other",
            )

    def __getitem__(self, key: Any) -> Any:
        raise violation("types", f"{self.name} is indexed", expected="ct.load or ct.gather")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise violation("types", f"{self.name} is assigned to", expected="ct.store or ct.scatter")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name) if name.startswith("_") else unsupported(f"Array.{name}")

    def __repr__(self) -> str:
        return f"<array {self.name} {tuple(self.tensor.shape)} {self.dtype}>"


@dataclass(eq=False)
class TiledView:
    """An array cut into tiles that begin every `traversal_steps` elements."""

    array: Array
    tile_shape: tuple[int, ...]
    traversal_steps: tuple[int, ...]
    padding_mode: Any

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def num_tiles(self, axis: Any) -> Any:
        """How many tiles begin inside the array along an axis."""
        at = axis_of(axis, self.array.ndim)
        return Scalar(-(-self.array.tensor.shape[at] // self.traversal_steps[at]), int32)

    def load(self, index: Any, **hints: Any) -> Any:
        """The tile at `index`."""
        from ssmgen.interpreter.access import load

        return load(self, index, self.tile_shape, padding_mode=self.padding_mode, **hints)

    def store(self, index: Any, tile: Any, **hints: Any) -> None:
        """Store a tile at `index`."""
        from ssmgen.interpreter.access import store, stored

        store(self, index, broadcast_to(stored(tile, self.array), self.tile_shape), **hints)

    def __getattr__(self, name: str) -> Any:
        """atomic_store_add and its like."""
        from ssmgen.interpreter.atomics import UPDATES, atomic_store

        if name.removeprefix("atomic_store_") not in UPDATES or not name.startswith("atomic_store_"):
            raise AttributeError(name) if name.startswith("_") else unsupported(f"TiledView.{name}")
        return lambda index, update, /: atomic_store(name, self, index, update)


@dataclass(eq=False)
class ArrayList:
    """A list of arrays, indexed at run time."""

    arrays: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, key: Any) -> Array:
        at = integer(key, "a list's index")
        if not 0 <= at < len(self.arrays):
            raise violation("outside", f"array {at} of a list of {len(self.arrays)}")
        return self.arrays[at]


def _tiling(array: Array, shape: Any, steps: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = tile_shape(shape)
    whole = sizes or (1,) * array.ndim
    given = whole if steps is None else steps if isinstance(steps, (tuple, list)) else (steps,)
    every = tuple(constant_int(s, "a step") for s in given)
    if len(whole) != array.ndim or len(every) != array.ndim or any(s < 1 for s in every):
        raise violation("shapes", f"{array.name}: tiles of {sizes} every {every} of {array.ndim} axes")
    return sizes, every


def num_tiles(array: Array, /, axis: Any, shape: Any, order: Any = "C") -> Any:
    """How many tiles of `shape` an array has along an axis of its permuted axes."""
    sizes = tile_shape(shape) or (1,) * array.ndim
    if len(sizes) != array.ndim:
        raise violation("shapes", f"{array.name}: tiles of {sizes} of {array.ndim} axes")
    axes = permutation(order, array.ndim)
    at = axis_of(axis, array.ndim)
    return Scalar(-(-array.tensor.shape[axes[at]] // sizes[at]), int32)


def permutation(order: Any, ndim: int) -> tuple[int, ...]:
    """The array axis of each tile axis."""
    if order in ("C", "F"):
        return tuple(range(ndim))[:: 1 if order == "C" else -1]
    axes = tuple(axis_of(a, ndim) for a in order)
    if sorted(axes) != list(range(ndim)):
        raise violation("shapes", f"order {order!r}", expected=f"each of {ndim} axes once")
    return axes


def assume_divisible_by(x: Any, divisor: Any) -> Any:
    """`x`, which has to be a multiple of `divisor`."""
    current("assume_divisible_by")
    value, by = integer(x, "x"), constant_int(divisor, "a divisor")
    if isinstance(x, Scalar):
        determined(x, "assume_divisible_by")
    if by < 1 or value % by:
        raise violation("promise", f"{value} is assumed divisible by {by}")
    return x
