"""Repeats a package's `forward` without running it: allocations, addresses, launches.

The first call with a key runs `forward` under a recorder; a later one with an equal key does what that one did. The
key is all that a generated `forward` reads: of every tensor shape, strides, dtype, device and the address modulo 16;
every number to the bit; what is absent. A tensor's values are no part of it, because what reads them is an operator of
torch, which the recorder sees and refuses. Whatever is not repeatable runs `forward` itself, every time.

It makes no decision of its own about routes, grids or promises, and keeps no tensor.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from .archive import ALIGNMENT
from .launch import Launcher
from .recording import Program, Recorder

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_address = torch.Tensor.data_ptr
_strides = torch.Tensor.stride
_look = operator.attrgetter("shape", "dtype", "device")
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled

# programs that a thread keeps, some 20 kB each; the oldest goes first
KEPT = 512


def current_stream(ordinal: int) -> int:
    """The handle of torch's current stream of a device."""
    handle: int = torch.cuda.current_stream(ordinal).cuda_stream
    return handle


# what Triton and Inductor call for the same: it makes no Stream object
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", current_stream)


class _Kinds:
    """Calls whose arguments are of these types: where their tensors and numbers are, and the last key met.

    The usual call is the last one again, and comparing is cheaper than hashing.
    """

    __slots__ = ("floats", "integers", "last", "latest", "tensors", "usable")

    def __init__(self, kinds: tuple[type, ...]) -> None:
        known = {torch.Tensor, torch.nn.Parameter, float, int, bool, type(None)}
        # what a subclass of Tensor or of a number means is its own business
        self.usable = known.issuperset(kinds) and any(kind in _TENSORS for kind in kinds)
        self.tensors = _picker([i for i, kind in enumerate(kinds) if kind in _TENSORS])
        self.floats = _picker([i for i, kind in enumerate(kinds) if kind is float])
        self.integers = _picker([i for i, kind in enumerate(kinds) if kind is int or kind is bool])
        self.last: list[Any] = []
        self.latest: Program | str = "nothing was recorded yet"


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda given: (given[places[0]],)) if places else (lambda given: ())


class _PerThread(threading.local):
    """A thread's programs: a launch writes into them. A key that cannot be repeated has the reason in its place."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[type, ...], _Kinds] = {}
        self.programs: dict[tuple[Any, ...], Program | str] = {}


class Replay:
    """`forward` of a package whose launches go through `launcher`; its own `forward` is to be put in that one's place.

    `stream` gives the handle of the current stream of a device.
    """

    def __init__(
        self, forward: Callable[..., Any], launcher: Launcher, stream: Callable[[int], int] = raw_stream
    ) -> None:
        self._forward = forward
        self._launcher = launcher
        self._driver = launcher.driver
        self._stream = stream
        self._threads = _PerThread()

    def forward(self, *given: Any) -> Any:
        """What the package's own returns and raises."""
        kinds = tuple(map(type, given))
        threads = self._threads
        calls = threads.kinds.get(kinds) or self._kinds(kinds)
        if not calls.usable:
            return self._forward(*given)
        tensors = calls.tensors(given)
        try:
            pointers = list(map(_address, tensors))
            # -0.0 is another number than 0.0, and nan the same as itself
            key = [*map(_look, tensors), *map(_strides, tensors), *map(float.hex, calls.floats(given))]
        except RuntimeError:
            # no strides or no storage: sparse tensors, functorch's and the like
            return self._forward(*given)
        key += calls.integers(given)
        if functools.reduce(operator.or_, pointers) % ALIGNMENT:
            key += [pointer % ALIGNMENT for pointer in pointers]
        if key == calls.last:
            program = calls.latest
        else:
            found = threads.programs.get((kinds, *key))
            if found is None:
                return self._record((kinds, *key), given)
            calls.last, calls.latest = key, found
            program = found
        if type(program) is not Program or program.busy or _is_watched(tensors):
            return self._forward(*given)
        return self._repeat(program, given, tensors, pointers)

    def _kinds(self, kinds: tuple[type, ...]) -> _Kinds:
        known = self._threads.kinds
        if len(known) >= KEPT:
            known.clear()
        known[kinds] = made = _Kinds(kinds)
        return made

    def _repeat(self, program: Program, given: tuple[Any, ...], tensors: tuple[Any, ...], pointers: list[int]) -> Any:
        # all that is made here lives until it is launched on
        sources = list(tensors)
        for copy in program.copies:
            copied = copy(sources)
            if copied is None:
                return self._forward(*given)
            sources.append(copied)
            pointers.append(_address(copied))
        results = tuple([allocate() for allocate in program.results])
        pointers += map(_address, results)
        if program.offsets:
            workspace = program.workspace()
            base = _address(workspace)
            pointers += [base + offset for offset in program.offsets]
        if functools.reduce(operator.or_, pointers[len(tensors) :]) % ALIGNMENT:
            return self._forward(*given)
        stream = self._stream(program.device.ordinal)
        program.busy = True
        try:
            program.fill(*pointers)
            self._driver.launch(program.device, program.steps, stream)
        finally:
            program.busy = False
        return results

    def _record(self, key: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        watched = self._launcher.watched
        if watched.by is not None or _is_watched([value for value in given if isinstance(value, torch.Tensor)]):
            return self._forward(*given)
        # an object of its own for every argument, so that one that is passed twice is not taken for one argument
        aliases = [value.detach() if isinstance(value, torch.Tensor) else value for value in given]
        recorder = Recorder([value for value in aliases if isinstance(value, torch.Tensor)], self._stream)
        watched.by = recorder.launch
        try:
            with recorder:
                answer = self._forward(*aliases)
        finally:
            watched.by = None
        programs = self._threads.programs
        while len(programs) >= KEPT:
            del programs[next(iter(programs))]
        programs[key] = recorder.program(answer)
        return answer

    def why_not(self) -> list[str]:
        """Why calls of this thread are not repeated, one reason a key that was met."""
        return [reason for reason in self._threads.programs.values() if isinstance(reason, str)]


def _is_watched(tensors: Sequence[Any]) -> bool:
    """Whether somebody wants to see more than results: a mode that sees every operator, or autograd of either mode."""
    if _modes() or forward_ad._current_level >= 0:
        return True
    return _is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
