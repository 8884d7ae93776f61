"""What a compiled kernel is promised about each argument, in two variants: aligned and general.

A promise is data: `build` hands it to the compiler, the archive carries it, and the launcher checks it, because
launching against a broken one is undefined behaviour. No cuda.tile, no tensors, and no checking here.

Lengths are promised only for arrays that the generated host allocates itself: without them the compiler stores element
by element instead of whole tiles. For a caller's array they change nothing that was worth the restriction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

from ssmgen.ops.mamba_chunk_scan_combined import Shape
from ssmgen.stages.base import ITEM_BYTES, Array, Parameter, Scalar, round_up

ALIGNED = "aligned"
GENERAL = "general"
VARIANTS = (ALIGNED, GENERAL)
"""The most special first: the first whose promises hold is launched."""

ALIGNMENT = 16
"""Bytes: what a bulk copy (TMA) wants of a base address and of every stride but the last."""

# every chunk a plan may take is a multiple of this many tokens
_MIN_CHUNK = 16
# what a launcher checks
_CHECKED = ("base_divisible_by", "stride_divisible_by", "stride_constant", "shape_divisible_by", "shape_constant")


@dataclass(frozen=True)
class ArrayPromise:
    """What holds of one array: the address in bytes; strides and lengths in elements, None where not constant.

    Strides are never negative, and strides and lengths fit int32: the kernels' index type (offsets are 64-bit).
    An axis of one element addresses nothing, so its stride may be replaced by one that fits. No array overlaps another;
    only one that is read may overlap itself, as an expanded tensor does.
    """

    dtype: str
    ndim: int
    base_divisible_by: int
    stride_divisible_by: tuple[int, ...]
    stride_constant: tuple[int | None, ...]
    shape_divisible_by: tuple[int, ...]
    shape_constant: tuple[int | None, ...]
    may_overlap_itself: bool


@dataclass(frozen=True)
class ScalarPromise:
    """A scalar is promised nothing but its dtype."""

    dtype: str


Promise = ArrayPromise | ScalarPromise


def promises(parameter: Parameter, variant: str, shape: Shape) -> Promise:
    """What `variant` promises of `parameter` in a kernel of a model of this `shape`.

    A caller's array: last stride 1, and an address that is a multiple of the element; ALIGNED adds 16 bytes to the
    address and to every other stride. Workspaces and results come from torch.empty: aligned, contiguous, in both.
    """
    if isinstance(parameter, Scalar):
        return ScalarPromise(parameter.dtype)
    ndim = len(parameter.axes)
    item = ITEM_BYTES[parameter.dtype]
    if parameter.owner == "caller":
        divisor = ALIGNMENT // item if variant == ALIGNED else 1
        return ArrayPromise(
            dtype=parameter.dtype,
            ndim=ndim,
            base_divisible_by=ALIGNMENT if variant == ALIGNED else item,
            stride_divisible_by=(*(divisor for _ in parameter.axes[1:]), 1),
            stride_constant=(*(None for _ in parameter.axes[1:]), 1),
            shape_divisible_by=(1,) * ndim,
            shape_constant=(None,) * ndim,
            may_overlap_itself=True,
        )
    return ArrayPromise(
        dtype=parameter.dtype,
        ndim=ndim,
        base_divisible_by=ALIGNMENT,
        stride_divisible_by=_contiguous(parameter.axes, ALIGNMENT // item, shape),
        stride_constant=(*(None for _ in parameter.axes[1:]), 1),
        shape_divisible_by=tuple(_MIN_CHUNK if axis == "padded" else 1 for axis in parameter.axes),
        shape_constant=tuple(_length(axis, shape) for axis in parameter.axes),
        may_overlap_itself=False,
    )


def symbol(stage: str, variant: str) -> str:
    """The name of a variant's entry point in a cubin."""
    return f"{stage}_{variant}"


def as_json(parameter: Parameter, shape: Shape) -> dict[str, Any]:
    """A parameter as an archive's index holds it: name, dtype, and of an array also ndim and promises by variant."""
    data: dict[str, Any] = {"name": parameter.name, "dtype": parameter.dtype}
    if isinstance(parameter, Array):
        data["ndim"] = len(parameter.axes)
        data["promises"] = {}
        for variant in VARIANTS:
            promise = asdict(promises(parameter, variant, shape))
            data["promises"][variant] = {key: promise[key] for key in _CHECKED}
    return data


def as_text(parameter: Parameter) -> str:
    """A parameter as a package's manifest holds it: `x bfloat16 B,T,H,P caller`, or `dt_max float32`."""
    if isinstance(parameter, Scalar):
        return f"{parameter.name} {parameter.dtype}"
    return f"{parameter.name} {parameter.dtype} {','.join(parameter.axes)} {parameter.owner}"


def from_text(text: str) -> Parameter:
    """The parameter behind a line of a manifest. Raises ValueError for anything else."""
    name, dtype, *more = text.split()
    if not more and dtype in ("int32", "float32"):
        return Scalar(name, "int32" if dtype == "int32" else "float32")
    axes, owner = more
    if dtype not in ITEM_BYTES or owner not in ("caller", "workspace", "result"):
        raise ValueError(text)
    return Array(name, dtype, tuple(axes.split(",")), cast(Any, owner))


def _contiguous(axes: tuple[str, ...], aligned: int, shape: Shape) -> tuple[int, ...]:
    """Of a contiguous array, `aligned` for each stride that the model's sizes make a multiple of it, otherwise 1."""
    divisors = [1]
    inner = 1
    for axis in reversed(axes[1:]):
        # a length known only at run time can but multiply
        inner *= _length(axis, shape) or (_MIN_CHUNK if axis == "padded" else 1)
        divisors.insert(0, aligned if inner % aligned == 0 else 1)
    return tuple(divisors)


def _length(axis: str, shape: Shape) -> int | None:
    """The length of an axis that the model fixes, None for the others; P8 is P in whole rows of 8."""
    sizes = {"H": shape.heads, "G": shape.groups, "P": shape.head_dim, "S": shape.state}
    if axis.endswith("8") and axis[:-1] in sizes:
        return round_up(sizes[axis[:-1]], 8)
    return sizes.get(axis)
