"""Tiles and scalars: values with an element type, and where a value is anybody's guess, who let it in.

An integer or boolean of no dimensions is a Scalar, held in a Python int: index arithmetic is most of what a kernel
does, one number at a time. A number written in a kernel, or in its module, stays Python's own: it has no type until
it meets one. What operations do is decided elsewhere: `arithmetic` for operators, `shapes` for methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.dtypes import DType
from ssmgen.interpreter.faults import unsupported, violation

Number = bool | int | float


@dataclass(frozen=True)
class Unknown:
    """Which elements of a tile are undetermined, and the load that made them so."""

    where: torch.Tensor
    origin: str


class Tile:
    """Values of `dtype`, in the torch dtype that holds it; immutable."""

    __slots__ = ("dtype", "unknown", "values")
    # NumPy scalars must not take an operator over
    __array_ufunc__ = None
    values: torch.Tensor

    def __init__(self, values: torch.Tensor, dtype: DType, unknown: Unknown | None = None) -> None:
        self.values, self.dtype, self.unknown = values, dtype, unknown

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __bool__(self) -> bool:
        if self.shape:
            raise violation("shapes", f"the truth of a tile of {self.shape}", expected="one number")
        determined(self, "a branch")
        return bool(self.values)

    def __repr__(self) -> str:
        return f"<tile of {self.shape} {self.dtype}>"

    def __index__(self) -> int:
        raise violation("tile", "a value known only at run time, where a constant is needed")

    def __float__(self) -> float:
        raise unsupported("float() of a tile")

    def __int__(self) -> int:
        raise unsupported("int() of a tile")

    def __iter__(self) -> Any:
        raise violation("types", "a tile is no sequence")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise violation("types", "a tile is assigned to", expected="ct.insert or ct.where")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name) if name.startswith("_") else unsupported(f"Tile.{name}")

    __hash__ = None  # type: ignore[assignment]

    if TYPE_CHECKING:
        # `shapes` gives it these
        def astype(self, dtype: Any, *, rounding_mode: Any = None) -> Tile: ...
        def reshape(self, shape: Any) -> Tile: ...
        def extract(self, index: Any, shape: Any) -> Tile: ...


class Scalar(Tile):
    """An integer or boolean of no dimensions, known only at run time."""

    __slots__ = ("value",)
    value: int

    def __init__(self, value: int, dtype: DType, unknown: Unknown | None = None) -> None:
        self.value, self.dtype, self.unknown = value, dtype, unknown

    @property
    def values(self) -> torch.Tensor:
        return dtypes.integer_tensor(self.value, self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def __bool__(self) -> bool:
        determined(self, "a branch")
        return bool(self.value)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self.value}>"


def tile(values: torch.Tensor, dtype: DType, unknown: Unknown | None = None) -> Tile:
    """A tile of `values`; without dimensions and of integers or booleans, a Scalar."""
    if values.dim() == 0 and not dtype.is_float:
        return Scalar(int(values.item()), dtype, unknown)
    return Tile(values, dtype, unknown)


def as_scalar(value: Any) -> Tile:
    """A number as a value of its default type; what is a tile already stays as it is."""
    if isinstance(value, Tile):
        return value
    dtype = dtypes.dtype_of_constant(number(value))
    return Scalar(value, dtype) if not dtype.is_float else Tile(dtypes.constant(value, dtype), dtype)


def number(value: Any) -> Number:
    """A Python number; NumPy's become Python's, and whatever else there is is refused."""
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return number(value.item())
    raise violation("types", f"{value!r:.60} is neither a tile nor a number")


def integer(value: Any, what: str) -> int:
    """The integer in `value`, an element index or a tile index known by now."""
    if isinstance(value, Scalar) and value.dtype.is_integral:
        determined(value, what)
        return value.value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise violation("types", f"{what} is {value!r:.60}", expected="an integer")


def determined(
    value: Tile, use: str, part: Callable[[torch.Tensor], torch.Tensor] = lambda undetermined: undetermined
) -> None:
    """Refuse a value of which an element is undetermined where it decides something: `use` says what.

    `part` makes, of a mask of the value's shape, that of the elements which count; by default they all do.
    """
    if value.unknown is not None and bool(part(value.unknown.where.expand(value.shape)).any()):
        raise violation(
            "undetermined",
            f"undetermined padding reaches {use}",
            found=f"the load at {value.unknown.origin}",
            expected="a padding_mode, or a mask before it is used",
        )


def merge(shape: Sequence[int], *operands: Any) -> Unknown | None:
    """What is undetermined in an element-wise result of `shape`."""
    seen = [operand.unknown for operand in operands if isinstance(operand, Tile) and operand.unknown is not None]
    if not seen:
        return None
    where = seen[0].where.expand(shape)
    for other in seen[1:]:
        where = where | other.where.expand(shape)
    return Unknown(where, seen[0].origin)


def constant_int(value: Any, what: str) -> int:
    """A constant integer, such as a tile's size has to be."""
    if isinstance(value, Tile):
        raise violation("tile", f"{what} is known only at run time", expected="a constant")
    if isinstance(value, bool) or not isinstance(value, int):
        raise violation("types", f"{what} is {value!r:.60}", expected="a constant integer")
    return value


# kernels ask for the same few shapes again and again
_SEEN_SHAPES: set[tuple[int, ...]] = set()


def tile_shape(shape: Any, what: str = "a tile's size") -> tuple[int, ...]:
    """A tile's shape: constants, each a power of two."""
    try:
        # 2.0 and True are equal to integers
        if shape in _SEEN_SHAPES and all(type(size) is int for size in shape):
            return tuple(shape)
    except TypeError:
        # a list, or a tile among the sizes: looked at below
        pass
    sizes = tuple(constant_int(size, what) for size in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    for size in sizes:
        if size < 1 or size & (size - 1):
            raise violation("tile", f"{what} is {size}", found=str(sizes), expected="powers of two")
    _SEEN_SHAPES.add(sizes)
    return sizes
