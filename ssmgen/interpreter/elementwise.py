"""Functions of one tile, element by element. float16 and bfloat16 are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.arithmetic import OPERATIONS, as_type, broadcast_shape, common_dtype, settled
from ssmgen.interpreter.blocks import running
from ssmgen.interpreter.dtypes import bool_, float32
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.values import Number, Tile, Unknown, merge, number, tile

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh")
}
# what a hint may ask for, and the interpreter may ignore: the result is only less exact on a GPU
_IGNORED = ("RN", "FULL", "APPROX")


def function(name: str) -> Callable[..., Any]:
    """ct.NAME: integers become float32 first; a number stays a number."""

    def apply(x: Any, /, *, rounding_mode: Any = None, flush_to_zero: bool = False) -> Any:
        check_hints(name, rounding_mode)
        if not isinstance(x, Tile):
            return _of_number(name, number(x))
        if x.dtype.kind == "restricted":
            raise violation("types", f"{name} of {x.dtype}", expected="an explicit astype")
        x = x if x.dtype.is_float else x.astype(float32)
        block = running()
        if block is not None and name in ("exp", "exp2"):
            block.counts.exponentials += x.values.numel()
        wide = x.values if x.dtype.bits >= 32 else x.values.to(torch.float32)
        return Tile(FUNCTIONS[name](wide).to(x.dtype.holds), x.dtype, x.unknown)

    apply.__name__ = name
    return apply


def check_hints(name: str, rounding_mode: Any) -> None:
    """Refuse a rounding mode that would change results beyond the last bits."""
    if rounding_mode is not None and getattr(rounding_mode, "name", None) not in _IGNORED:
        raise unsupported(f"{name} with {rounding_mode}")


def _of_number(name: str, x: Number) -> float:
    return float(FUNCTIONS[name](torch.tensor(float(x), dtype=torch.float64)))


def absolute(x: Any, /) -> Any:
    """|x|, of the type of x."""
    if not isinstance(x, Tile):
        return abs(number(x))
    if x.dtype.kind == "restricted":
        raise violation("types", f"abs of {x.dtype}", expected="an explicit astype")
    if x.dtype in (bool_,) or x.dtype.kind == "unsigned":
        return x
    values = settled(x.values, x.unknown, 0) if x.unknown is not None else x.values
    if x.dtype.is_integral and bool((values == x.dtype.range[0]).any()):
        raise violation("overflow", f"abs of {x.dtype.range[0]}, the smallest {x.dtype}")
    return tile(values.abs(), x.dtype, x.unknown)


def _rounded(name: str, to_integer: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def apply(x: Any, /) -> Any:
        if not isinstance(x, Tile):
            return getattr(math, name)(number(x))
        if x.dtype.kind != "float":
            raise violation("types", f"{name} of {x.dtype}", expected="a float")
        return Tile(to_integer(x.values), x.dtype, x.unknown)

    apply.__name__ = name
    return apply


floor = _rounded("floor", torch.floor)
ceil = _rounded("ceil", torch.ceil)


def isnan(x: Any, /) -> Any:
    """Whether each element is not a number."""
    if not isinstance(x, Tile):
        return math.isnan(number(x))
    if x.dtype.kind != "float":
        raise violation("types", f"isnan of {x.dtype}", expected="a float")
    return tile(torch.isnan(x.values), bool_, x.unknown)


def where(condition: Any, x: Any, y: Any) -> Tile:
    """`x` where the condition holds, `y` elsewhere: what is not taken may be undetermined."""
    taken, x, y = (v if isinstance(v, Tile) else number(v) for v in (condition, x, y))
    if isinstance(x, Tile) or isinstance(y, Tile):
        dtype = common_dtype(OPERATIONS["eq"], x, y)
    else:
        dtype = dtypes.promote(dtypes.dtype_of_constant(x), dtypes.dtype_of_constant(y))
    choice, a, b = as_type(taken, bool_), as_type(x, dtype), as_type(y, dtype)
    shape = broadcast_shape(choice, a, b)
    unknown = _unknown_where(shape, choice, taken, x, y)
    return tile(torch.where(choice, a, b), dtype, unknown)


def _unknown_where(shape: tuple[int, ...], choice: torch.Tensor, taken: Any, x: Any, y: Any) -> Unknown | None:
    whole = merge(shape, taken)
    for operand, chosen in ((x, choice), (y, ~choice)):
        part = merge(shape, operand)
        if part is not None:
            mask = part.where & chosen
            whole = Unknown(mask if whole is None else whole.where | mask, part.origin)
    return whole
