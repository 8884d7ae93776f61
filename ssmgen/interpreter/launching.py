"""Kernels and their launches: arguments become arrays and scalars, and the blocks of the grid run one after another."""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ssmgen.interpreter import dtypes, memory, watching
from ssmgen.interpreter.arrays import Array, ArrayList
from ssmgen.interpreter.blocks import Block, Counts, enter, running
from ssmgen.interpreter.dtypes import DType, float32, int32, int64
from ssmgen.interpreter.faults import unsupported, violation
from ssmgen.interpreter.values import Scalar, Tile

MAX_GRID = (2**31 - 1, 65535, 65535)


class ConstantAnnotation:
    """Metadata of a parameter whose value is a constant of the kernel."""


@dataclass(frozen=True, kw_only=True)
class ArrayAnnotation:
    """Metadata of an array parameter."""

    index_dtype: DType = int32
    static_shape_dims: tuple[int, ...] = ()
    static_stride_dims: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScalarAnnotation:
    """Metadata of a scalar parameter."""

    dtype: DType


@dataclass(frozen=True, kw_only=True)
class ListAnnotation:
    """Metadata of a list of arrays."""

    element: Any


T = typing.TypeVar("T")
Constant = Annotated[T, ConstantAnnotation()]
IndexedWithInt64 = Annotated[T, ArrayAnnotation(index_dtype=int64)]
ScalarInt64 = Annotated[T, ScalarAnnotation(dtype=int64)]

Promises = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of each kernel, by the path of its file in its package, its parameters as `signatures.as_json` gives them."""


class Kernel:
    """A function that runs once a block."""

    def __init__(self, function: Callable[..., None], hints: Mapping[str, Any]) -> None:
        self.function, self.hints = function, dict(hints)
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.parameters = list(inspect.signature(function).parameters)
        self._annotations: dict[str, tuple[Any, ...]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise unsupported(f"{self.__name__}() called like a function: kernels are launched")

    def replace_hints(self, **hints: Any) -> Kernel:
        """The kernel with other compiler hints, which change nothing here."""
        return Kernel(self.function, self.hints | hints)

    def metadata(self, parameter: str) -> tuple[Any, ...]:
        """What a parameter's annotation says of it."""
        if self._annotations is None:
            hints = typing.get_type_hints(self.function, include_extras=True)
            self._annotations = {n: getattr(h, "__metadata__", ()) for n, h in hints.items()}
        return self._annotations.get(parameter, ())


class Launcher:
    """ct.kernel and ct.launch, the promises that kernels were compiled under, and what the launches counted."""

    def __init__(self, promises: Promises | None = None, *, trace: bool = False) -> None:
        self.promises = promises or {}
        self.trace = trace
        """Whether counts also keep which elements were touched; arrays of one kernel must then keep their shapes."""
        self.counts: dict[str, Counts] = {}
        """By kernel's name, over all its launches so far."""

    def kernel(self, function: Any = None, /, **hints: Any) -> Any:
        """The decorator, with or without hints."""
        return Kernel(function, hints) if function is not None else lambda f: Kernel(f, hints)

    def launch(self, _stream: Any, grid: Any, kernel: Any, arguments: Any, /) -> None:
        """Run `kernel` on every block of `grid`, on CPU tensors, whatever the stream."""
        if running() is not None:
            raise unsupported("a launch inside a kernel")
        if not isinstance(kernel, Kernel):
            raise unsupported(f"the launch of {kernel!r:.60}, which is no ct.kernel of an interpreted file")
        sizes = tuple(int(n) for n in grid)
        if not 1 <= len(sizes) <= 3 or any(not 1 <= n <= most for n, most in zip(sizes, MAX_GRID, strict=False)):
            raise violation("shapes", f"{kernel.__name__}: a grid of {sizes}", expected=f"1 to {MAX_GRID}")
        sizes = (*sizes, 1, 1)[:3]
        with _disable_current_modes(), torch.no_grad(), one_thread():
            self._run(watching.watched(), kernel, sizes, arguments)

    def _run(self, of: memory.Memory, kernel: Kernel, grid: Any, arguments: Sequence[Any]) -> None:
        if len(arguments) != len(kernel.parameters):
            raise violation("types", f"{kernel.__name__}: {len(arguments)} arguments of {len(kernel.parameters)}")
        of.begin_launch()
        self._check_promises(kernel, arguments)
        values = [_argument(of, kernel, n, v) for n, v in zip(kernel.parameters, arguments, strict=True)]
        _mark_overlaps(values)
        counts = self.counts.setdefault(kernel.__name__, Counts(touched={} if self.trace else None))
        try:
            for index in itertools.product(*map(range, grid[::-1])):
                number = of.new_number(index[::-1])
                enter(Block(kernel.__name__, index[::-1], grid, number, counts))  # type: ignore[arg-type]
                kernel.function(*values)
        finally:
            enter(None)

    def _check_promises(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        file = Path(kernel.function.__code__.co_filename).as_posix()
        parameters = next((p for path, p in self.promises.items() if file.endswith(f"/{path}")), ())
        for promised, argument in zip(parameters, arguments, strict=False):
            if isinstance(argument, torch.Tensor) and "promises" in promised:
                _check_promise(promised["name"], argument, promised)


def _check_promise(name: str, tensor: torch.Tensor, promised: Mapping[str, Any]) -> None:
    """Refuse an array that breaks what the general variant was compiled under."""
    promise = promised["promises"]["general"]
    found = str(dtypes.dtype_of(tensor.dtype))
    if found != promised["dtype"] or tensor.dim() != promised["ndim"]:
        raise violation(
            "promise", f"{name}: {found} of {tensor.dim()} axes", expected=f"{promised['dtype']} of {promised['ndim']}"
        )
    if tensor.data_ptr() % promise["base_divisible_by"]:
        raise violation("promise", f"{name}: its address is no multiple of {promise['base_divisible_by']} bytes")
    for axis in range(tensor.dim()):
        length, stride = tensor.shape[axis], tensor.stride(axis)
        for what, value, kind in (("length", length, "shape"), ("stride", stride, "stride")):
            constant, divisor = promise[f"{kind}_constant"][axis], promise[f"{kind}_divisible_by"][axis]
            if kind == "stride" and length == 1:
                continue
            if (constant is not None and value != constant) or value % divisor or value < 0:
                wanted = f"{constant}" if constant is not None else f"a multiple of {divisor}"
                raise violation("promise", f"{name}: the {what} of axis {axis} is {value}", expected=wanted)


def _argument(of: memory.Memory, kernel: Kernel, name: str, value: Any) -> Any:
    metadata = kernel.metadata(name)
    if any(m is ConstantAnnotation or isinstance(m, ConstantAnnotation) for m in metadata):
        return value
    if isinstance(value, torch.Tensor):
        return _array(of, name, value, next((m for m in metadata if isinstance(m, ArrayAnnotation)), ArrayAnnotation()))
    if isinstance(value, (list, tuple)):
        element = next((m.element for m in metadata if isinstance(m, ListAnnotation)), ArrayAnnotation())
        # ct.IndexedWithInt64 and the like hold theirs in what they are annotated with
        inner = getattr(element, "__metadata__", (element,))
        element = next((m for m in inner if isinstance(m, ArrayAnnotation)), ArrayAnnotation())
        if not all(isinstance(v, torch.Tensor) for v in value):
            raise unsupported(f"{name}: a list of anything but tensors")
        return ArrayList(tuple(_array(of, f"{name}[{at}]", v, element) for at, v in enumerate(value)))
    if isinstance(value, bool):
        return Scalar(int(value), dtypes.bool_)
    if isinstance(value, int):
        kind = next((m.dtype for m in metadata if isinstance(m, ScalarAnnotation)), int32)
        if not kind.range[0] <= value <= kind.range[1]:
            raise violation("overflow", f"{name}: {value} does not fit {kind}", expected="ct.ScalarInt64")
        return Scalar(value, kind)
    if isinstance(value, float):
        return Tile(dtypes.constant(value, float32), float32)
    raise unsupported(f"{name}: {value!r:.60} as an argument of a kernel")


def _array(of: memory.Memory, name: str, tensor: torch.Tensor, annotation: ArrayAnnotation) -> Array:
    if tensor.device.type != "cpu":
        raise unsupported(f"{name}: a tensor on {tensor.device}; it runs on CPU tensors")
    dtypes.dtype_of(tensor.dtype)
    if tensor.is_neg() or tensor.is_conj():
        raise unsupported(f"{name}: a lazily negated or conjugated tensor, which a GPU would read as it lies in memory")
    ndim = tensor.dim()
    lengths, strides = (
        frozenset(at % ndim for at in dims) for dims in (annotation.static_shape_dims, annotation.static_stride_dims)
    )
    return Array(tensor.detach(), name, of, of.shadow(tensor), annotation.index_dtype, lengths, strides)


def _mark_overlaps(values: Sequence[Any]) -> None:
    """Tell each array which other one shares elements with it; only a store to it is then an error."""
    arrays = [v for v in values if isinstance(v, Array)]
    arrays += [a for v in values if isinstance(v, ArrayList) for a in v.arrays]
    by_memory: dict[int, list[Array]] = {}
    for array in arrays:
        if array.tensor.numel():
            by_memory.setdefault(id(array.shadow), []).append(array)
    for group in by_memory.values():
        for one, other in itertools.permutations(group, 2) if len(group) > 1 else ():
            if one.overlaps is None and _share(one, other):
                one.overlaps = other.name


def _share(one: Array, other: Array) -> bool:
    taken = torch.zeros(memory.elements(one.tensor), dtype=torch.bool)
    taken.as_strided(*one.view).fill_(True)
    return bool(taken.as_strided(*other.view).any())


class one_thread:  # noqa: N801 - used as a context manager
    """One thread of torch's: what is small is done before threads have met, and tests run side by side."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
