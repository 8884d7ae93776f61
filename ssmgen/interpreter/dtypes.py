"""The element types of cuTile: names, implicit promotion, and rounding, with torch dtypes to hold the values.

Which conversions happen without being asked for follows cuTile 1.7's data model («Arithmetic Promotion»). It knows
nothing of tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch

from ssmgen.interpreter.faults import unsupported, violation

Kind = Literal["bool", "unsigned", "signed", "float", "restricted"]
_CATEGORY = {"bool": 0, "unsigned": 1, "signed": 1, "float": 2, "restricted": 3}


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """An element type. `holds` is the torch dtype of a tile's values: float32 for tfloat32, which torch lacks."""

    name: str
    kind: Kind
    bits: int
    holds: torch.dtype

    @property
    def bitwidth(self) -> int:
        return self.bits

    @property
    def is_integral(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def is_float(self) -> bool:
        return self.kind in ("float", "restricted")

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value of an integer type."""
        if self.kind == "signed":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def __call__(self, value: Any) -> Any:
        """A scalar of exactly this type, as `ct.int16(5)` makes one."""
        from ssmgen.interpreter.values import as_scalar

        return as_scalar(value).astype(self)

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


bool_ = DType("bool_", "bool", 8, torch.bool)
uint8 = DType("uint8", "unsigned", 8, torch.uint8)
uint16 = DType("uint16", "unsigned", 16, torch.uint16)
uint32 = DType("uint32", "unsigned", 32, torch.uint32)
uint64 = DType("uint64", "unsigned", 64, torch.uint64)
int8 = DType("int8", "signed", 8, torch.int8)
int16 = DType("int16", "signed", 16, torch.int16)
int32 = DType("int32", "signed", 32, torch.int32)
int64 = DType("int64", "signed", 64, torch.int64)
float16 = DType("float16", "float", 16, torch.float16)
bfloat16 = DType("bfloat16", "float", 16, torch.bfloat16)
float32 = DType("float32", "float", 32, torch.float32)
float64 = DType("float64", "float", 64, torch.float64)
tfloat32 = DType("tfloat32", "restricted", 32, torch.float32)
float8_e4m3fn = DType("float8_e4m3fn", "restricted", 8, torch.float8_e4m3fn)
float8_e5m2 = DType("float8_e5m2", "restricted", 8, torch.float8_e5m2)
float8_e8m0fnu = DType("float8_e8m0fnu", "restricted", 8, torch.float8_e8m0fnu)

ALL = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, bfloat16, float32, float64,
    tfloat32, float8_e4m3fn, float8_e5m2, float8_e8m0fnu,
)  # fmt: skip
# tfloat32 is no element type of memory
_OF_TORCH = {dtype.holds: dtype for dtype in ALL if dtype is not tfloat32}


def dtype_of(value: Any) -> DType:
    """The element type that `value` names: one of ours, torch's or NumPy's, or Python's bool, int or float."""
    if isinstance(value, DType):
        return value
    if isinstance(value, torch.dtype):
        if value in _OF_TORCH:
            return _OF_TORCH[value]
        raise unsupported(f"the element type {value}")
    if value in (bool, int, float):
        return {bool: bool_, int: int32, float: float32}[value]
    # NumPy's dtypes have a name and its scalar types a __name__; NumPy itself need not be installed
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    for dtype in ALL:
        if isinstance(name, str) and dtype.name.rstrip("_") == name.rstrip("_"):
            return dtype
    raise unsupported(f"{value!r:.60} as an element type")


def dtype_of_constant(value: bool | int | float) -> DType:
    """The type that a constant without one takes where no operand decides it."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    for dtype in (int32, int64, uint64):
        if dtype.range[0] <= value <= dtype.range[1]:
            return dtype
    raise violation("types", f"the integer {value} fits no type", expected="-2^63 to 2^64 - 1")


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands that both have one."""
    if a is b:
        return a
    if "restricted" in (a.kind, b.kind):
        raise violation("types", f"{a} and {b} in one operation", expected="an explicit astype")
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.is_float or b.is_float:
        return _promote_floats(a, b)
    if a.kind != b.kind:
        raise violation("types", f"{a} and {b} in one operation", expected="both signed or both unsigned")
    return a if a.bits >= b.bits else b


def _promote_floats(a: DType, b: DType) -> DType:
    if not (a.is_float and b.is_float):
        return a if a.is_float else b
    if a.bits == b.bits:
        raise violation("types", f"{a} and {b} in one operation", expected="an explicit astype")
    return a if a.bits > b.bits else b


def promote_constant(dtype: DType, value: bool | int | float) -> DType:
    """The common type of an operand of `dtype` and a constant without a type."""
    of_constant = dtype_of_constant(value)
    category, own = min(_CATEGORY[dtype.kind], 2), _CATEGORY[of_constant.kind]
    if own > category:
        return of_constant
    if own == category == 1 and not dtype.range[0] <= value <= dtype.range[1]:
        raise violation(
            "types", f"the constant {value} beside {dtype}", expected=f"{dtype.range[0]} to {dtype.range[1]}"
        )
    return dtype


def converts_silently(source: DType, target: DType) -> bool:
    """Whether a store or an accumulator takes `source` for `target` without an astype."""
    if source is target:
        return True
    if "restricted" in (source.kind, target.kind):
        return False
    if source.is_integral and target.is_integral and source.kind != target.kind:
        return False
    if source.is_float and target.is_float and source.bits == target.bits:
        return False
    return promote(source, target) is target


def constant_converts_silently(value: bool | int | float, target: DType) -> bool:
    """Whether a store takes a constant without a type for `target`."""
    source = dtype_of_constant(value)
    if target is bool_:
        return not source.is_float and value in (0, 1)
    if source.is_integral and target.is_integral:
        return target.range[0] <= value <= target.range[1]
    return _CATEGORY[source.kind] <= _CATEGORY[target.kind]


def convert(values: torch.Tensor, source: DType, target: DType) -> torch.Tensor:
    """`values` of `source` as `target` holds them: floats to nearest even, integers cut to the target's bits."""
    if source is target:
        return values
    if target is bool_:
        return values.to(torch.float32).ne(0) if source.kind == "restricted" else values.ne(0)
    if target is tfloat32:
        return to_tfloat32(_to_narrower(values))
    if source.is_float and target.is_integral:
        return _to_integer(values.to(torch.float64), target)
    if target.is_float and target.bits < 32:
        values = _to_narrower(values)
    elif source.kind == "restricted":
        values = values.to(torch.float32)
    return values.to(target.holds)


def _to_narrower(values: torch.Tensor) -> torch.Tensor:
    """As float32, from which a narrower type is rounded to as if at once: what is not exact becomes odd."""
    near = values.to(torch.float32)
    if values.dtype not in (torch.float64, torch.int32, torch.uint32, torch.int64, torch.uint64):
        return near
    exact, back = values.to(torch.float64), near.to(torch.float64)
    bits = near.contiguous().view(torch.int32)
    towards = torch.where((exact > back) == (exact > 0), 1, -1).to(torch.int32)
    odd = torch.where((exact != back) & ((bits & 1) == 0) & torch.isfinite(near), bits + towards, bits)
    return odd.view(torch.float32)


def _to_integer(values: torch.Tensor, target: DType) -> torch.Tensor:
    low, high = target.range
    # PTX cvt.rzi: towards zero, clamped to the range, NaN to 0
    cut = torch.nan_to_num(values, nan=0.0, posinf=math.inf, neginf=-math.inf).trunc()
    if target.bits < 64:
        return cut.clamp(low, high).to(torch.int64).to(target.holds)
    inside = (cut > float(low)) & (cut < float(high))
    exact = torch.where(inside, cut, torch.zeros_like(cut)).to(target.holds)
    limits = [torch.full_like(exact, bound) for bound in (low, high)]
    return torch.where(inside, exact, torch.where(cut < 0, *limits))


def to_tfloat32(values: torch.Tensor) -> torch.Tensor:
    """float32 values with the 10 mantissa bits that a tfloat32 product reads, to nearest even."""
    bits = values.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isfinite(values), rounded.view(torch.float32), values)


def integer_tensor(value: int, dtype: DType) -> torch.Tensor:
    """An integer or boolean that `dtype` holds, as a tensor of no dimensions."""
    if value > int64.range[1]:
        return torch.tensor(value - (1 << 64)).view(torch.uint64)
    return torch.tensor(value, dtype=dtype.holds)


def constant(value: bool | int | float, dtype: DType) -> torch.Tensor:
    """A constant as a tensor of no dimensions, cut or rounded to `dtype`; a float is a float32 before that."""
    # 0.0 and -0.0 are equal, and so are 1 and True
    return _constant(value, math.copysign(1.0, value) if isinstance(value, float) else 0.0, dtype)


@lru_cache(maxsize=4096)
def _constant(value: Any, sign: float, dtype: DType) -> torch.Tensor:
    if dtype.is_integral:
        if sign and not math.isfinite(value):
            raise violation("types", f"{value} as {dtype}", expected="a finite number")
        low, high = dtype.range
        return integer_tensor((int(value) - low) % (high - low + 1) + low, dtype)
    if sign:
        return convert(torch.tensor(value, dtype=torch.float32), float32, dtype)
    return convert(torch.tensor(int(value)), int64, dtype)
