"""The cubin backend: a stand-in `cuda.tile` whose kernels come from an archive, and whose launch checks every promise.

A cubin was compiled under promises (alignment, strides); launching it against one of them is undefined behaviour, so an
argument that breaks all variants is refused by name. It compiles nothing, copies no tensor and never synchronises.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .archive import ALIGNMENT, INT32_MAX, Archive, ArrayParameter, Parameter, ScalarParameter, target_of
from .arguments import Ready
from .driver import MAX_GRID, Device, Driver
from .errors import LaunchError
from .standin import TileModule

# how many distinct sets of shapes and strides a kernel keeps ready in each thread
KEPT = 256


class _PerThread(threading.local):
    """Laid-out arguments by geometry: a thread's own, because a launch writes into them."""

    def __init__(self) -> None:
        self.ready: dict[tuple[object, ...], Ready] = {}


class Kernel:
    """A kernel of a package as `ct.kernel` returns it: not callable, only ever handed to `ct.launch`."""

    def __init__(self, function: FunctionType, launcher: Launcher) -> None:
        self.__name__ = function.__name__
        # resolved while it is surely there
        self._source = Path(function.__code__.co_filename).resolve()
        self._launcher = launcher
        self._threads = _PerThread()

    def __repr__(self) -> str:
        return f"<cubin kernel {self._source}>"

    @functools.cached_property
    def name(self) -> str:
        return self._launcher.name_of(self._source)

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        archive = self._launcher.archive
        archive.check_source(self.name, self._source)
        return archive.kernel(self.name).parameters

    @functools.cached_property
    def _split(self) -> Callable[[tuple[Any, ...]], tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Arguments -> (arrays, scalars); TypeError where there are too many or too few."""
        count = len(self.parameters)
        arrays = [i for i, p in enumerate(self.parameters) if isinstance(p, ArrayParameter)]
        scalars = [i for i, p in enumerate(self.parameters) if isinstance(p, ScalarParameter)]

        def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            if len(args) != count:
                raise TypeError
            return tuple([args[i] for i in arrays]), tuple([args[i] for i in scalars])

        return split

    def launch(self, stream: Any, grid: tuple[int, ...], args: tuple[Any, ...]) -> tuple[Ready, int]:
        """One launch: how it was done, on which stream. What recurs from call to call comes from the thread's table."""
        try:
            arrays, scalars = self._split(args)
            pointers = [a.data_ptr() for a in arrays]
            key: list[Any] = [(a.shape, a.stride(), a.dtype, a.get_device()) for a in arrays]
        except (AttributeError, IndexError, TypeError):
            raise self._wrong_arguments(args) from None
        if functools.reduce(operator.or_, pointers) % ALIGNMENT:
            key += [pointer % ALIGNMENT for pointer in pointers]
        ready = self._threads.ready.get(tuple(key)) or self._prepare(tuple(key), args)
        if ready.busy:
            ready = self._make_ready(args)
        if type(stream) is not int:
            stream = _handle(stream, ready)
        x, y, z = (*grid, 1, 1)[:3]
        if not (0 < x <= MAX_GRID and 0 < y <= MAX_GRID and 0 < z <= MAX_GRID and len(grid) <= 3):
            raise LaunchError(f"bad grid for {self.name}", found=grid, expected=f"1 to 3 sizes from 1 to {MAX_GRID}")
        ready.busy = True
        try:
            try:
                ready.fill(*pointers, *scalars)
            except (struct.error, OverflowError):
                ready.fill(*pointers, *self.scalars(scalars))
            ready.grid = (x, y, z)
            self._launcher.driver.launch(ready.device, (ready,), stream)
        finally:
            ready.busy = False
        return ready, stream

    def _prepare(self, key: tuple[object, ...], args: tuple[Any, ...]) -> Ready:
        ready = self._threads.ready
        if len(ready) >= KEPT:
            ready.clear()
        ready[key] = made = self._make_ready(args)
        return made

    def _make_ready(self, args: tuple[Any, ...]) -> Ready:
        pairs = [(p, a) for p, a in zip(self.parameters, args, strict=True) if isinstance(p, ArrayParameter)]
        device = self._launcher.driver.device(self._ordinal(pairs))
        for parameter, argument in pairs:
            self._check_array(parameter, argument)
        refusals = []
        for variant in self._launcher.archive.kernel(self.name).variants:
            laid_out: list[int] = []
            for parameter, argument in pairs:
                promise = parameter.promises[variant]
                strides = promise.settle(argument.shape, argument.stride())
                broken = promise.why_not(argument.data_ptr(), argument.shape, strides)
                if broken:
                    refusals.append((variant, parameter.name, *broken))
                    break
                laid_out += (*argument.shape, *strides)
            else:
                return Ready(self, self._launcher.function(self.name, variant, device), device, laid_out)
        variant, name, found, expected = refusals[-1]
        raise LaunchError(
            f"argument {name} of {self.name} breaks what the {variant} variant was compiled for",
            found=found,
            expected=expected,
            next=f"pass {name}.clone(memory_format=torch.contiguous_format)",
        )

    def _ordinal(self, pairs: Sequence[tuple[ArrayParameter, Any]]) -> int:
        """The one device of all arrays."""
        (first, one), *_ = pairs
        for parameter, argument in pairs:
            if argument.get_device() < 0 or argument.get_device() != one.get_device():
                raise LaunchError(
                    f"argument {parameter.name} of {self.name} is on the wrong device",
                    found=argument.device,
                    expected="a CUDA device" if one.get_device() < 0 else f"{one.device}, where {first.name} is",
                )
        ordinal: int = one.get_device()
        return ordinal

    def _check_array(self, parameter: ArrayParameter, argument: Any) -> None:
        """Dtype, rank, and lengths and strides that an int32 holds; offsets made of them are 64 bits wide."""
        where = f"argument {parameter.name} of {self.name}"
        dtype = str(argument.dtype).removeprefix("torch.")
        if dtype != parameter.dtype or len(argument.shape) != parameter.ndim:
            raise LaunchError(
                f"{where} has the wrong dtype or rank",
                found=f"{dtype} of rank {len(argument.shape)}",
                expected=f"{parameter.dtype} of rank {parameter.ndim}",
            )
        shape, strides = tuple(argument.shape), argument.stride()
        # an axis of one element steps nowhere, whatever its stride
        if max(*shape, *(s for n, s in zip(shape, strides, strict=True) if n > 1), 0) > INT32_MAX:
            raise LaunchError(
                f"{where} is too large for the kernel's 32-bit lengths and strides",
                found=f"shape {shape}, strides {strides}",
                expected=f"each at most {INT32_MAX}",
                next="split the call over the batch, or over the tokens by way of the states",
            )

    def scalars(self, scalars: Sequence[Any]) -> list[Any]:
        """The scalars as their parameters want them; a float beyond float32 is infinite, as it is for the compiler."""
        names = [p for p in self.parameters if isinstance(p, ScalarParameter)]
        return [_scalar(p, value, self.name) for p, value in zip(names, scalars, strict=True)]

    def _wrong_arguments(self, args: tuple[Any, ...]) -> LaunchError:
        names = ", ".join(p.name for p in self.parameters)
        if len(args) != len(self.parameters):
            return LaunchError(
                f"wrong number of arguments to {self.name}",
                found=len(args),
                expected=f"{len(self.parameters)}: {names}",
            )
        for parameter, argument in zip(self.parameters, args, strict=True):
            if isinstance(parameter, ArrayParameter) and not hasattr(argument, "data_ptr"):
                return LaunchError(
                    f"argument {parameter.name} of {self.name} is no tensor", found=repr(argument), expected="a tensor"
                )
        return LaunchError(f"the arguments of {self.name} cannot be read", expected=f"tensors and scalars: {names}")


class _Watching(threading.local):
    """Who makes this thread's launches, in the place of the kernel itself."""

    by: Callable[[Kernel, Any, tuple[int, ...], tuple[Any, ...]], None] | None = None


class Launcher:
    """The cubin backend of the package in `directory`."""

    def __init__(self, directory: Path, archive: Archive, driver: Driver) -> None:
        self.directory = directory.resolve()
        self.archive = archive
        self.driver = driver
        self.watched = _Watching()

    def tile(self) -> ModuleType:
        """The stand-in `cuda.tile` that the package is imported with."""
        return TileModule({"kernel": self.kernel, "launch": self.launch})

    def kernel(self, function: FunctionType | None = None, /, **hints: object) -> Any:
        """`ct.kernel`, with or without compiler hints, which are in the cubin already."""
        return Kernel(function, self) if function is not None else lambda function: Kernel(function, self)

    def launch(
        self,
        stream: Any,
        grid: tuple[int, ...],
        kernel: Kernel,
        kernel_args: tuple[Any, ...],
        /,
        *,
        programmatic_dependent_launch: bool = False,
    ) -> None:
        """`ct.launch`: `stream` a torch stream or a handle."""
        if type(kernel) is not Kernel:
            raise LaunchError("ct.launch wants a kernel of the package", found=repr(kernel))
        if programmatic_dependent_launch:
            raise LaunchError(f"{kernel.name}: programmatic dependent launch is not supported from cubins yet")
        if self.watched.by is None:
            kernel.launch(stream, grid, kernel_args)
        else:
            self.watched.by(kernel, stream, grid, kernel_args)

    def name_of(self, source: Path) -> str:
        """The name of the kernel in a resolved file: the package's own name and the path inside it."""
        inside = source.relative_to(self.directory).with_suffix("")
        return "/".join((self.directory.name, *inside.parts))

    def function(self, name: str, variant: str, device: Device) -> Any:
        """The loaded function of a kernel's variant on `device`; LaunchError where the archive cannot serve it."""
        entry = self.archive.kernel(name)
        if target_of(name) != device.target:
            raise LaunchError(
                f"{name} cannot run on this GPU",
                found=device.target,
                expected=f"the archive {self.archive.path} holds " + ", ".join(self.archive.targets),
                next=f"add {device.target} to the spec's targets, then ssmgen generate and {self.archive.made_by}",
            )
        cubin = self.archive.cubin(entry)
        return self.driver.load(device, cubin, entry.cubin, entry.symbols[variant])


def _scalar(parameter: ScalarParameter, value: Any, kernel: str) -> float:
    """`value` for its parameter; a float beyond float32 becomes infinite, as a C cast makes it."""
    if parameter.dtype == "float32" and isinstance(value, (int, float)):
        return ctypes.c_float(value).value
    if parameter.dtype == "int32" and isinstance(value, int) and -INT32_MAX - 1 <= value <= INT32_MAX:
        return value
    raise LaunchError(
        f"argument {parameter.name} of {kernel} is no {parameter.dtype}",
        found=repr(value),
        expected="a number" if parameter.dtype == "float32" else f"an int of at most {INT32_MAX}",
    )


def _handle(stream: Any, ready: Ready) -> int:
    """The handle of a torch stream, which must be of the device the arguments are on."""
    handle, device = getattr(stream, "cuda_stream", None), getattr(stream, "device_index", None)
    if type(handle) is not int or device not in (None, ready.device.ordinal):
        raise LaunchError(
            f"wrong stream for {ready.name}",
            found=repr(stream),
            expected=f"a stream of cuda:{ready.device.ordinal}, where the arguments are, or its handle",
        )
    return handle
