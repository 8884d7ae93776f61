"""Matrix products: operands rounded to their type, products exact, sums in the accumulator's type.

A float32 operand is multiplied as it is (on a GPU: on CUDA cores). An element that is undetermined makes its row or
column of the result undetermined: not even a factor of zero helps against a NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ssmgen.interpreter import dtypes
from ssmgen.interpreter.blocks import running
from ssmgen.interpreter.dtypes import DType
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.values import Tile, Unknown, determined, merge

# operand type -> the types an accumulator may have, the first by default
_ACCUMULATORS: dict[DType, tuple[DType, ...]] = {
    dtypes.float8_e4m3fn: (dtypes.float16, dtypes.float32),
    dtypes.float8_e5m2: (dtypes.float16, dtypes.float32),
    dtypes.float16: (dtypes.float16, dtypes.float32),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float32,),
    dtypes.tfloat32: (dtypes.float32,),
    dtypes.float64: (dtypes.float64,),
    dtypes.int8: (dtypes.int32,),
    dtypes.uint8: (dtypes.int32,),
}
_INTEGERS = (dtypes.int8, dtypes.uint8)


def mma(x: Any, y: Any, /, acc: Any, *, use_fast_acc: bool = False) -> Tile:
    """x @ y + acc; batches broadcast."""
    for operand in (x, y, acc):
        if not isinstance(operand, Tile):
            raise violation("types", f"a product with {operand!r:.60}", expected="tiles")
    if use_fast_acc:
        raise unsupported("mma with use_fast_acc")
    if x.ndim < 2 or y.ndim < 2:
        raise violation("shapes", f"a product of tiles of {x.shape} and {y.shape}", expected="matrices")
    if x.dtype is not y.dtype and not (x.dtype in _INTEGERS and y.dtype in _INTEGERS):
        raise violation("types", f"a product of {x.dtype} and {y.dtype}", expected="one type")
    if acc.dtype not in _ACCUMULATORS.get(x.dtype, ()):
        raise violation("types", f"a product of {x.dtype} added to {acc.dtype}")
    return _product(x, y, acc)


def matmul(x: Any, y: Any, /) -> Tile:
    """x @ y in the operands' common type; vectors are taken as a row and a column."""
    if not (isinstance(x, Tile) and isinstance(y, Tile) and x.shape and y.shape):
        raise violation("types", f"a product of {x!r:.60} and {y!r:.60}", expected="tiles")
    common = dtypes.promote(x.dtype, y.dtype)
    if common not in _ACCUMULATORS:
        raise violation("types", f"a product of {common}")
    left, right = x.astype(common), y.astype(common)
    left = left.reshape((1, *left.shape)) if left.ndim == 1 else left
    right = right.reshape((*right.shape, 1)) if right.ndim == 1 else right
    kind = _ACCUMULATORS[common][0]
    shape = _result_shape(left, right)
    result = _product(left, right, Tile(torch.zeros(shape, dtype=kind.holds), kind)).astype(common)
    kept = [
        n
        for at, n in enumerate(shape)
        if not ((x.ndim == 1 and at == len(shape) - 2) or (y.ndim == 1 and at == len(shape) - 1))
    ]
    return result.reshape(tuple(kept))


def mma_scaled(x: Tile, x_scale: Tile, y: Tile, y_scale: Tile, /, acc: Tile) -> Tile:
    """(x * x_scale) @ (y * y_scale) + acc, a scale for each block of elements along K."""
    for operand, scale, axis in ((x, x_scale, -1), (y, y_scale, -2)):
        if operand.dtype not in (dtypes.float8_e4m3fn, dtypes.float8_e5m2) or scale.dtype is not dtypes.float8_e8m0fnu:
            raise unsupported(f"mma_scaled of {operand.dtype} with {scale.dtype}")
        blocks = [n // 32 if at == operand.ndim + axis else n for at, n in enumerate(operand.shape)]
        if operand.shape[axis] % 32 or tuple(blocks) != scale.shape:
            raise violation("shapes", f"scales of {scale.shape} for a tile of {operand.shape}", expected="one for 32")
        if scale.unknown is not None:
            determined(scale, "the scales of a product")
    if acc.dtype is not dtypes.float32 or x.dtype is not y.dtype:
        raise violation("types", f"a scaled product of {x.dtype} and {y.dtype} added to {acc.dtype}")
    left, right = (
        Tile(
            o.values.to(torch.float32) * s.values.to(torch.float32).repeat_interleave(32, axis),
            dtypes.float32,
            o.unknown,
        )
        for o, s, axis in ((x, x_scale, -1), (y, y_scale, -2))
    )
    return _product(left, right, acc)


def _product(x: Tile, y: Tile, acc: Tile) -> Tile:
    shape = _result_shape(x, y)
    if acc.shape != shape:
        raise violation("shapes", f"a product of {x.shape} and {y.shape} added to {acc.shape}", expected=str(shape))
    block = running()
    if block is not None:
        block.counts.flops += 2 * math.prod(shape) * x.shape[-1]
    if acc.dtype.is_float:
        wide = torch.float64 if acc.dtype is dtypes.float64 else torch.float32
        sums = torch.matmul(x.values.to(wide), y.values.to(wide)) + acc.values.to(wide)
        return Tile(sums.to(acc.dtype.holds), acc.dtype, _unknown(x, y, acc, shape))
    sums = torch.matmul(x.values.to(torch.int64), y.values.to(torch.int64)) + acc.values.to(torch.int64)
    low, high = acc.dtype.range
    if bool(((sums < low) | (sums > high)).any()):
        raise violation("overflow", f"a product leaves {acc.dtype}")
    return Tile(sums.to(acc.dtype.holds), acc.dtype, _unknown(x, y, acc, shape))


def _result_shape(x: Tile, y: Tile) -> tuple[int, ...]:
    if x.shape[-1] != y.shape[-2]:
        raise violation("shapes", f"a product of tiles of {x.shape} and {y.shape}")
    if x.ndim == y.ndim == 2:
        return (x.shape[0], y.shape[1])
    try:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except RuntimeError:
        raise violation("shapes", f"a product of batches {x.shape[:-2]} and {y.shape[:-2]}") from None
    return (*batch, x.shape[-2], y.shape[-1])


def _unknown(x: Tile, y: Tile, acc: Tile, shape: tuple[int, ...]) -> Unknown | None:
    result = merge(shape, acc)
    for operand, axis in ((x, -1), (y, -2)):
        if operand.unknown is not None:
            touched = operand.unknown.where.expand(operand.shape).any(dim=axis, keepdim=True).expand(shape)
            result = Unknown(touched if result is None else touched | result.where, operand.unknown.origin)
    return result


def _install() -> None:
    members: dict[str, Any] = dict(__matmul__=matmul, __rmatmul__=lambda y, x: matmul(x, y))
    for name, function in members.items():
        setattr(Tile, name, function)


_install()
