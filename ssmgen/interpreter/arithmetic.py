"""Operators between tiles, scalars and numbers: promotion, broadcasting, and rounding to the result's type.

Sums, products and quotients are rounded to nearest even in the result's own type, as the hardware does; a signed
integer that leaves its range is an error, where the hardware would wrap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.dtypes import DType, bool_, float32, int8, int32, int64
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.values import Scalar, Tile, Unknown, merge, number, tile


@dataclass(frozen=True)
class Operation:
    """`on_tiles` computes in one type, `on_ints` on Python integers (None where the result is no integer)."""

    name: str
    on_tiles: Callable[..., torch.Tensor]
    on_ints: Callable[[int, int], int] | None
    kind: str = "arithmetic"


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.floor(x / y) if x.is_floating_point() else torch.div(x, y, rounding_mode="floor")


def _ceil_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -torch.div(-x, y, rounding_mode="floor")


OPERATIONS = {
    o.name: o
    for o in (
        Operation("add", torch.add, operator.add),
        Operation("sub", torch.sub, operator.sub),
        Operation("mul", torch.mul, operator.mul),
        Operation("truediv", torch.true_divide, None, "quotient"),
        Operation("floordiv", _floor_divide, operator.floordiv, "division"),
        Operation("cdiv", _ceil_divide, lambda x, y: -(-x // y), "division"),
        Operation("mod", torch.remainder, operator.mod, "division"),
        Operation("pow", torch.pow, None, "float"),
        Operation("atan2", torch.atan2, None, "float"),
        Operation("minimum", torch.fmin, min),
        Operation("maximum", torch.fmax, max),
        Operation("and_", torch.bitwise_and, operator.and_, "bits"),
        Operation("or_", torch.bitwise_or, operator.or_, "bits"),
        Operation("xor", torch.bitwise_xor, operator.xor, "bits"),
        Operation("lshift", operator.lshift, operator.lshift, "shift"),
        Operation("rshift", operator.rshift, operator.rshift, "shift"),
        Operation("eq", torch.eq, operator.eq, "comparison"),
        Operation("ne", torch.ne, operator.ne, "comparison"),
        Operation("ge", torch.ge, operator.ge, "comparison"),
        Operation("gt", torch.gt, operator.gt, "comparison"),
        Operation("le", torch.le, operator.le, "comparison"),
        Operation("lt", torch.lt, operator.lt, "comparison"),
    )
}
_WRAPPING = ("add", "sub", "mul")
_SIGNED_BITS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_NAN_PROPAGATING = {"minimum": torch.minimum, "maximum": torch.maximum}


_INT32 = int32.range


def binary(name: str, x: Any, y: Any, *, propagate_nan: bool = False) -> Any:
    """`x` and `y`, at least one of them a tile, combined as cuTile combines them."""
    operation = OPERATIONS[name]
    if type(x) is Scalar and x.dtype is int32 and operation.on_ints and _is_int32(y):
        # most of what kernels do one number at a time: indices
        return _on_ints(operation, x, y, int32)
    x, y = (v if isinstance(v, Tile) else number(v) for v in (x, y))
    dtype = common_dtype(operation, x, y)
    if _is_int(x) and _is_int(y) and operation.on_ints is not None and not dtype.is_float:
        return _on_ints(operation, x, y, dtype)
    a, b = as_type(x, dtype), as_type(y, dtype)
    shape = broadcast_shape(a, b)
    unknown = merge(shape, x, y)
    function = _NAN_PROPAGATING.get(name, operation.on_tiles) if propagate_nan else operation.on_tiles
    if operation.kind == "comparison":
        return tile(function(*(_comparable(v, dtype) for v in (a, b))), bool_, unknown)
    if dtype.is_integral:
        if unknown is not None:
            # what is anybody's guess overflows nothing
            a, b = settled(a, unknown, 0), settled(b, unknown, 1)
        return tile(_on_integers(operation, function, a, b, dtype), dtype, unknown)
    return tile(function(a, b), dtype, unknown)


def settled(values: torch.Tensor, unknown: Unknown, number: int) -> torch.Tensor:
    """`values`, and `number` where they are undetermined."""
    return torch.where(unknown.where, torch.tensor(number).to(values.dtype), values)


def _is_int32(value: Any) -> bool:
    if type(value) is int:
        return _INT32[0] <= value <= _INT32[1]
    return type(value) is Scalar and value.dtype is int32


def common_dtype(operation: Operation, x: Any, y: Any) -> DType:
    """The type in which two operands meet; one that cuTile refuses for this operation is an error."""
    if operation.kind in ("bits", "shift"):
        _check_bits(operation, x, y)
    if isinstance(x, Tile) and isinstance(y, Tile):
        dtype = dtypes.promote(x.dtype, y.dtype)
    else:
        typed, constant = (x, y) if isinstance(x, Tile) else (y, x)
        if operation.kind == "quotient" and not typed.dtype.is_float:
            return float32
        dtype = dtypes.promote_constant(typed.dtype, constant)
    if operation.kind == "quotient" and not dtype.is_float:
        return float32
    if operation.kind == "float" and not dtype.is_float:
        raise unsupported(f"{operation.name} of {_types(x, y)}")
    if operation.kind not in ("comparison", "bits") and (
        dtype.kind == "restricted" or dtype is bool_ or (operation.name == "cdiv" and dtype.is_float)
    ):
        raise violation("types", f"{operation.name} of {_types(x, y)}", expected="an explicit astype")
    return dtype


def _check_bits(operation: Operation, x: Any, y: Any) -> None:
    """Refuse bits of floats and of mixed types; a shift mixes integers, and takes no booleans."""
    one, other = (v.dtype if isinstance(v, Tile) else dtypes.dtype_of_constant(v) for v in (x, y))
    if operation.kind == "shift":
        fits = one.is_integral and other.is_integral
    else:
        mixed = isinstance(x, Tile) and isinstance(y, Tile) and one is not other
        fits = not (one.is_float or other.is_float or mixed or {one, other} == {bool_, int8})
    if not fits:
        raise violation("types", f"{operation.name} of {_types(x, y)}", expected="integers or booleans of one type")


def as_type(value: Any, dtype: DType) -> torch.Tensor:
    """The values of an operand, as `dtype` holds them."""
    if isinstance(value, Tile):
        return dtypes.convert(value.values, value.dtype, dtype)
    return dtypes.constant(value, dtype)


def broadcast_shape(first: torch.Tensor, *others: torch.Tensor) -> tuple[int, ...]:
    """The common shape of operands."""
    shape = first.shape
    for other in others:
        if other.shape == shape or not other.shape:
            continue
        # torch.broadcast_shapes costs more than the operation itself
        sizes = list(zip_longest(reversed(shape), reversed(other.shape), fillvalue=1))
        if any(a != b and 1 not in (a, b) for a, b in sizes):
            shapes = f"{tuple(shape)} and {tuple(other.shape)}"
            raise violation("shapes", f"tiles of {shapes} in one operation", expected="shapes that broadcast")
        shape = torch.Size([b if a == 1 else a for a, b in reversed(sizes)])
    return tuple(shape)


def in_range(value: int, dtype: DType) -> int:
    """`value` as `dtype` holds it: unsigned integers wrap, a signed one out of range is an error."""
    low, high = dtype.range
    if low <= value <= high:
        return value
    if dtype.kind == "signed":
        raise violation("overflow", f"{value} does not fit {dtype}", expected=f"{low} to {high}")
    return value & high


def _on_ints(operation: Operation, x: Any, y: Any, dtype: DType) -> Scalar:
    assert operation.on_ints is not None
    a, b = (int(v.value if isinstance(v, Scalar) else v) for v in (x, y))
    unknown = merge((), x, y)
    if unknown is not None and bool(unknown.where):
        a, b = 0, 1
    if operation.kind == "division" and b == 0:
        raise violation("overflow", f"{operation.name} of {a} by zero")
    if operation.kind == "shift" and not 0 <= b < dtype.bits:
        raise violation("overflow", f"{operation.name} of {dtype} by {b}", expected=f"0 to {dtype.bits - 1}")
    result = operation.on_ints(a, b)
    if operation.kind == "comparison" or dtype is bool_:
        return Scalar(int(result), bool_, unknown)
    return Scalar(in_range(result, dtype), dtype, unknown)


def _on_integers(
    operation: Operation, function: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor, dtype: DType
) -> torch.Tensor:
    """Integer tiles, computed in 64 bits: what leaves the range shows."""
    if dtype.bits == 64 and operation.name not in (*_WRAPPING, "and_", "or_", "xor", "lshift"):
        for v in (a, b):
            if dtype.kind == "unsigned" and bool((v.view(torch.int64) < 0).any()):
                raise unsupported(f"{operation.name} of uint64 values beyond 2^63")
    if operation.kind == "division" and bool((b == 0).any()):
        raise violation("overflow", f"{operation.name} by zero")
    if operation.kind == "shift" and bool(((in_64_bits(b) < 0) | (in_64_bits(b) >= dtype.bits)).any()):
        raise violation("overflow", f"{operation.name} of {dtype} by an amount beyond its bits")
    wide = function(in_64_bits(a), in_64_bits(b))
    low, high = dtype.range
    leaves = (wide < low) | (wide > high) if dtype.bits < 64 else torch.zeros_like(wide, dtype=torch.bool)
    if dtype is int64 and operation.name in _WRAPPING:
        # what wrapped is off by 2^64
        leaves = (function(a.to(torch.float64), b.to(torch.float64)) - wide.to(torch.float64)).abs() > 2.0**62
    elif dtype is int64 and operation.name == "lshift":
        leaves = wide >> b != a
    if dtype.kind == "signed" and bool(leaves.any()):
        raise violation("overflow", f"{operation.name} of {dtype} tiles leaves its range", expected=f"{low} to {high}")
    if dtype.bits == 64:
        return wide.view(dtype.holds)
    return (wide & high if dtype.kind == "unsigned" else wide).to(dtype.holds)


def in_64_bits(values: torch.Tensor) -> torch.Tensor:
    """Integers in 64 bits; uint64 keeps its bits."""
    return values.view(torch.int64) if values.dtype == torch.uint64 else values.to(torch.int64)


def _comparable(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype.kind == "restricted":
        return values.to(torch.float32)
    if dtype.kind != "unsigned":
        return values
    # uint64 in the order of int64
    return values.to(torch.int64) if dtype.bits < 64 else values.view(torch.int64) ^ int64.range[0]


def _is_int(value: Any) -> bool:
    return isinstance(value, (Scalar, int))


def _types(*operands: Any) -> str:
    return " and ".join(str(v.dtype) if isinstance(v, Tile) else repr(v) for v in operands)


def positive(x: Tile) -> Any:
    """+x; a boolean becomes an integer."""
    return x.astype(int32) if x.dtype is bool_ else x


def negative(x: Tile) -> Any:
    """-x; a boolean becomes an integer first."""
    return binary("sub", 0, positive(x)) if not x.dtype.is_float else _negated(x)


def _negated(x: Tile) -> Tile:
    if x.dtype.kind == "restricted":
        raise violation("types", f"negative of {x.dtype}", expected="an explicit astype")
    return Tile(-x.values, x.dtype, x.unknown)


def invert(x: Tile) -> Any:
    """~x: the bits of an integer, or a boolean's opposite."""
    if x.dtype.is_float:
        raise violation("types", f"the bits of {x.dtype}", expected="an integer or a boolean")
    if isinstance(x, Scalar):
        return Scalar(int(not x.value) if x.dtype is bool_ else in_range(~x.value, x.dtype), x.dtype, x.unknown)
    bits = x.values if x.dtype.kind != "unsigned" else x.values.view(_SIGNED_BITS[x.dtype.bits])
    return Tile(torch.bitwise_not(bits).view(x.dtype.holds), x.dtype, x.unknown)


def _install() -> None:
    """Python's operators, on either side."""
    both = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod",
            "pow": "pow", "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift"}  # fmt: skip
    for method, name in both.items():
        setattr(Tile, f"__{method}__", lambda x, y, name=name: _try(name, x, y))
        setattr(Tile, f"__r{method}__", lambda y, x, name=name: _try(name, x, y))
    for name in ("eq", "ne", "ge", "gt", "le", "lt"):
        setattr(Tile, f"__{name}__", lambda x, y, name=name: _try(name, x, y))
    members: dict[str, Any] = dict(__neg__=negative, __invert__=invert, __pos__=positive)
    for method, function in members.items():
        setattr(Tile, method, function)


def _try(name: str, x: Any, y: Any) -> Any:
    if x is None or y is None or isinstance(x, (str, tuple)) or isinstance(y, (str, tuple)):
        return NotImplemented
    return binary(name, x, y)


_install()
