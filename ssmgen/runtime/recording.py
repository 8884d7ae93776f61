"""Watches one call of a package's `forward`, and says whether the next one can be repeated without running it.

A call is repeatable where everything it did follows from its key (see `replay`): it looked at what tensors are, copied
inputs, allocated memory and launched kernels on its inputs, those copies and that memory, in this order, and returned
what it had allocated. Whatever else was seen is named, and the call is not repeated. Nothing keeps a tensor after it.

What is seen are calls of torch's Python interface, which is all that a generated `forward` uses. A TorchDispatchMode
would see the operators below; it imports torch's compiler, five seconds of a first call.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .archive import ALIGNMENT, ArrayParameter, Parameter
from .driver import Device, Together
from .launch import Kernel

try:
    from torch._C._dynamo.guards import _empty_strided_cuda as _empty_strided  # type: ignore[attr-defined]
except ImportError:
    _empty_strided = None
# the ordinal of it
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_is_filling: Callable[[], bool] = torch.are_deterministic_algorithms_enabled

# what they answer is in the key, or follows from it
_LOOKS = frozenset(
    {
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad")),
        *(getattr(torch.Tensor, name) for name in ("dim", "size", "stride", "numel", "is_floating_point")),
    }
)
# whose result's shape, strides and type follow from those of the argument
_COPIES = frozenset(getattr(torch.Tensor, name) for name in ("float", "int", "contiguous"))
# where an allocation begins in the block that holds all workspaces of a call: as torch's own are laid out, and more
# than any promise asks
_APART = 256


@dataclass(frozen=True)
class Copy:
    """A method that copies the tensor of a number, inputs first and then copies, and what came out."""

    function: Callable[[Any], Any]
    source: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """The copy, made anew; None where it does not come out as it did."""
        made = self.function(tensors[self.source])
        return made if made.shape == self.shape and made.stride() == self.strides else None


@dataclass(frozen=True)
class _Seen:
    """A launch as it was made; the tensors among `args` are alive until the recording is over."""

    kernel: Kernel
    function: Any
    device: Device
    grid: tuple[int, int, int]
    geometry: Sequence[int]
    args: tuple[Any, ...]

    @property
    def pairs(self) -> list[tuple[Parameter, Any]]:
        """Parameters with their arguments."""
        return list(zip(self.kernel.parameters, self.args, strict=True))


class Step:
    """A launch of a program, for `Driver.launch`: its arguments lie in the program's memory."""

    __slots__ = ("_table", "function", "grid", "name", "parameters")

    def __init__(self, seen: _Seen, addresses: Sequence[int]) -> None:
        self.function, self.grid, self.name = seen.function, seen.grid, seen.kernel.name
        self._table = (ctypes.c_void_p * len(addresses))(*addresses)
        self.parameters = ctypes.addressof(self._table)


class Program:
    """A call that can be repeated: copies, results, one block of workspaces, launches.

    `fill` takes the addresses of inputs, copies, results and the workspaces, which lie at `offsets` in the block that
    `allocate` returns last, after the results. It is one thread's own.
    """

    __slots__ = ("_arguments", "allocate", "busy", "copies", "fill", "launches", "offsets")

    def __init__(self, recorder: Recorder, results: Sequence[Any], workspaces: Sequence[Any]) -> None:
        self.copies = tuple(recorder.copies)
        self.offsets: list[int] = []
        room = 0
        for tensor in workspaces:
            self.offsets.append(room)
            room += -(-tensor.numel() * tensor.element_size() // _APART) * _APART
        made = [(tuple(tensor.shape), tensor.dtype) for tensor in results]
        self.allocate = _allocator([*made, ((room,), torch.uint8)], results[0].device)
        # between filling and launching a finalizer may run, and call this too
        self.busy = False

        tensors = [*recorder.sources, *results, *workspaces]
        slots = {id(tensor): 8 * number for number, tensor in enumerate(tensors)}
        content = bytearray(8 * len(tensors))
        places = [_lay_out(seen, slots, content) for seen in recorder.launches]
        self._arguments = (ctypes.c_uint64 * -(-len(content) // 8))()
        base = ctypes.addressof(self._arguments)
        ctypes.memmove(base, bytes(content), len(content))
        self.fill: Callable[..., None] = functools.partial(
            struct.Struct(f"<{len(tensors)}Q").pack_into, self._arguments, 0
        )
        steps = [
            Step(seen, [base + place for place in own]) for seen, own in zip(recorder.launches, places, strict=True)
        ]
        self.launches = Together(recorder.launches[0].device, steps)


class Recorder(TorchFunctionMode):  # type: ignore[misc]
    """Sees every call of torch and every launch while it is entered; `inputs` are the call's tensors in order.

    No two inputs may be one object, or a later call with two tensors could not be told from one with the same twice.
    """

    def __init__(self, inputs: Sequence[Any], stream: Callable[[int], int]) -> None:
        super().__init__()
        self.why_not: str | None = None
        self.sources = list(inputs)
        self.copies: list[Copy] = []
        self.allocated: list[Any] = []
        self.launches: list[_Seen] = []
        self._stream = stream

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function not in _LOOKS:
            self._saw(function, args, kwargs or {}, result)
        return result

    def _saw(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        if function is torch.empty and type(result) is torch.Tensor:
            if result.is_contiguous() and set(kwargs) <= {"dtype", "device"}:
                self.allocated.append(result)
                return
        elif function in _COPIES and len(args) == 1 and not kwargs and not self.launches:
            number = next((i for i, source in enumerate(self.sources) if args[0] is source), None)
            if number is not None and type(result) is torch.Tensor:
                # there may be nothing to convert
                if result is not args[0]:
                    self.copies.append(Copy(function, number, tuple(result.shape), result.stride()))
                    self.sources.append(result)
                return
        self.why_not = self.why_not or f"it calls {getattr(function, '__qualname__', function)}"

    def launch(self, kernel: Kernel, stream: Any, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        """Make a launch, and note it."""
        # what a launch looks at is the launcher's business
        with torch._C.DisableTorchFunction():
            ready, handle = kernel.launch(stream, grid, args)
        seen = _Seen(kernel, ready.function, ready.device, ready.grid, ready.geometry, args)
        # all of these are alive, so that an address of one is nobody else's
        known = {id(tensor) for tensor in (*self.sources, *self.allocated)}
        for parameter, value in seen.pairs:
            if isinstance(parameter, ArrayParameter) and id(value) not in known:
                self.why_not = self.why_not or f"{kernel.name} takes a tensor for {parameter.name} from elsewhere"
        if handle != self._stream(ready.device.ordinal):
            self.why_not = self.why_not or f"{kernel.name} is launched on another stream than the current one"
        self.launches.append(seen)

    def program(self, answer: Any) -> Program | str:
        """How to repeat the call that gave `answer`, or why that cannot be."""
        reason = next(self._reasons(answer), None)
        if reason:
            return reason
        results = list(answer)
        return Program(self, results, [t for t in self.allocated if all(t is not each for each in results)])

    def _reasons(self, answer: Any) -> Iterator[str]:
        if self.why_not:
            yield self.why_not
        if not self.launches:
            yield "it launches nothing"
        if type(answer) is not tuple or not answer or len({id(each) for each in answer}) != len(answer):
            yield "it does not return a tuple of tensors"
        elif any(all(each is not tensor for tensor in self.allocated) for each in answer):
            yield "it returns something else than memory it allocated"
        made = [*self.sources[len(self.sources) - len(self.copies) :], *self.allocated]
        if len({(seen.device.ordinal, t.device) for seen in self.launches for t in [*self.sources, *made]}) > 1:
            yield "it works on several devices"
        if any(tensor.data_ptr() % ALIGNMENT for tensor in made):
            yield f"memory that it allocates is not aligned to {ALIGNMENT} bytes"


def _allocator(made: Sequence[tuple[tuple[int, ...], Any]], device: Any) -> Callable[[], list[Any]]:
    """`torch.empty` of these shapes and dtypes, by what Inductor's code allocates with where that does the same: it
    takes a third of the time.
    """

    def usual() -> list[Any]:
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in made]

    if _empty_strided is None or device.type != "cuda":
        return usual
    laid_out = [(shape, _contiguous_strides(shape), dtype) for shape, dtype in made]

    def allocate() -> list[Any]:
        # it knows only the current device, and does not fill memory where torch was asked to
        if current_device() != device.index or _is_filling():
            return usual()
        return [_empty_strided(*each) for each in laid_out]

    return allocate


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _lay_out(seen: _Seen, slots: Mapping[int, int], content: bytearray) -> list[int]:
    """Append a launch's sizes and scalars to `content`; where its arguments lie in there, in the kernel's order."""
    places: list[int] = []
    values = iter(seen.kernel.scalars([a for p, a in seen.pairs if not isinstance(p, ArrayParameter)]))
    begun = 0
    for parameter, argument in seen.pairs:
        if isinstance(parameter, ArrayParameter):
            sizes = seen.geometry[begun : begun + 2 * parameter.ndim]
            begun += len(sizes)
            places.append(slots[id(argument)])
            places += range(len(content), len(content) + 4 * len(sizes), 4)
            content += struct.pack(f"<{len(sizes)}i", *sizes)
        else:
            places.append(len(content))
            content += struct.pack("<i" if parameter.dtype == "int32" else "<f", next(values))
    return places
