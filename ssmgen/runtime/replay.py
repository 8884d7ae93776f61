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
from .recording import Program, Recorder, current_device

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None  # type: ignore[assignment, misc]

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_address = torch.Tensor.data_ptr
_strides = torch.Tensor.stride
_look = operator.attrgetter("shape", "dtype", "device")
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)

# programs that a thread keeps, some 20 kB each; the oldest goes first
KEPT = 512


def current_stream(ordinal: int) -> int:
    """The handle of torch's current stream of a device."""
    handle: int = torch.cuda.current_stream(ordinal).cuda_stream
    return handle


# what Triton and Inductor call for the same: it makes no Stream object
raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", current_stream)


class _Kinds:
    """Calls whose arguments are of these types: where their tensors and numbers are."""

    __slots__ = ("floats", "integers", "others", "tensors", "usable")

    def __init__(self, kinds: tuple[type, ...]) -> None:
        known = {torch.Tensor, torch.nn.Parameter, float, int, bool, type(None)}
        # what a subclass of Tensor or of a number means is its own business
        self.usable = known.issuperset(kinds) and any(kind in _TENSORS for kind in kinds)
        self.tensors = _picker([i for i, kind in enumerate(kinds) if kind in _TENSORS])
        self.others = _picker([i for i, kind in enumerate(kinds) if kind not in _TENSORS])
        self.floats = _picker([i for i, kind in enumerate(kinds) if kind is float])
        self.integers = _picker([i for i, kind in enumerate(kinds) if kind is int or kind is bool])


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return (lambda given: (given[places[0]],)) if places else (lambda given: ())


class _Latest:
    """The call that was repeated last, which the next one usually is again: telling costs less than making a key.

    `is_like` compares tensors as dynamo's guards do: type, dtype, device, requires_grad, sizes, strides and dispatch
    keys, so that what is conjugated, traced or watched is told too.
    """

    __slots__ = ("count", "is_like", "learns", "others", "pick_others", "pick_tensors", "program", "residues")

    def __init__(self, calls: _Kinds, given: tuple[Any, ...], program: Program) -> None:
        self.count = len(given)
        self.pick_tensors, self.pick_others = calls.tensors, calls.others
        tensors = calls.tensors(given)
        self.is_like = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        # compared by identity, which the same default or the same number of a config has; -0.0 is not 0.0 then either
        self.others = calls.others(given)
        self.residues = _residues(list(map(_address, tensors)))
        self.learns = _learns(tensors)
        self.program = program


class _PerThread(threading.local):
    """A thread's programs: a launch writes into them. A key that cannot be repeated has the reason in its place."""

    def __init__(self) -> None:
        self.latest: _Latest | None = None
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
        latest = self._threads.latest
        if latest is not None and len(given) == latest.count:
            tensors = latest.pick_tensors(given)
            if latest.is_like(*tensors) and all(map(operator.is_, latest.pick_others(given), latest.others)):
                pointers = list(map(_address, tensors))
                if _residues(pointers) == latest.residues:
                    if _is_watched() or (latest.learns and _is_grad_enabled()):
                        return self._forward(*given)
                    return self._repeat(latest.program, given, tensors, pointers)
        return self._find(given)

    def _find(self, given: tuple[Any, ...]) -> Any:
        """`forward`, by the key of the call."""
        kinds = tuple(map(type, given))
        threads = self._threads
        calls = threads.kinds.get(kinds) or self._kinds(kinds)
        if not calls.usable:
            return self._forward(*given)
        tensors = calls.tensors(given)
        try:
            pointers = list(map(_address, tensors))
            # -0.0 is another number than 0.0, and nan the same as itself
            key = (kinds, *map(_look, tensors), *map(_strides, tensors), *map(float.hex, calls.floats(given)))
        except RuntimeError:
            # no strides or no storage: sparse tensors, functorch's and the like
            return self._forward(*given)
        key += (calls.integers(given), *_residues(pointers))
        if _is_watched() or (_is_grad_enabled() and _learns(tensors)) or any(map(_is_symbolic, tensors)):
            return self._forward(*given)
        program = threads.programs.get(key)
        if program is None:
            return self._record(key, given)
        if type(program) is not Program:
            return self._forward(*given)
        if TensorGuards is not None:
            threads.latest = _Latest(calls, given, program)
        return self._repeat(program, given, tensors, pointers)

    def _kinds(self, kinds: tuple[type, ...]) -> _Kinds:
        known = self._threads.kinds
        if len(known) >= KEPT:
            known.clear()
        known[kinds] = made = _Kinds(kinds)
        return made

    def _repeat(self, program: Program, given: tuple[Any, ...], tensors: tuple[Any, ...], pointers: list[int]) -> Any:
        if program.busy:
            return self._forward(*given)
        count = len(pointers)
        # all that is made here lives until it is launched on
        sources = list(tensors)
        for copy in program.copies:
            copied = copy(sources)
            if copied is None:
                return self._forward(*given)
            sources.append(copied)
            pointers.append(_address(copied))
        made = program.allocate()
        pointers += map(_address, made)
        if functools.reduce(operator.or_, pointers[count:]) % ALIGNMENT:
            return self._forward(*given)
        base = pointers.pop()
        pointers += [base + offset for offset in program.offsets]
        launches = program.launches
        ordinal = launches.device.ordinal
        stream = self._stream(ordinal)
        program.busy = True
        try:
            program.fill(*pointers)
            # what is asked about capturing is asked of the current device's stream
            if current_device() != ordinal or _is_capturing():
                self._driver.launch(launches.device, launches.launches, stream)
            else:
                self._driver.launch_together(launches, stream)
        finally:
            program.busy = False
        return tuple(made[:-1])

    def _record(self, key: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        watched = self._launcher.watched
        if watched.by is not None:
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


def _residues(pointers: list[int]) -> list[int]:
    """How far each is off alignment; empty where none is."""
    if functools.reduce(operator.or_, pointers) % ALIGNMENT:
        return [pointer % ALIGNMENT for pointer in pointers]
    return []


def _learns(tensors: Sequence[Any]) -> bool:
    return any(tensor.requires_grad for tensor in tensors)


def _is_symbolic(tensor: Any) -> bool:
    """Whether its memory does not hold its values."""
    return bool(tensor.is_neg() or tensor._is_zerotensor())


def _is_watched() -> bool:
    """Whether somebody wants to see more than results: a mode that sees every operator, or forward-mode autograd."""
    return _modes() > 0 or forward_ad._current_level >= 0
