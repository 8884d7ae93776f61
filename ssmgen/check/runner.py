"""What a candidate's process does with a candidate: open it, call it, call it many times in a row.

It is code of the checker's in a process that is the candidate's: of what it reports, only disagreement means something.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ssmgen.check.placement import Place, Placed, Run

if TYPE_CHECKING:
    from torch import Tensor


class Runner:
    """One candidate on one device, over one block of shared memory."""

    def __init__(self, device: str, memory: Mapping[str, Any], fds: Sequence[int]) -> None:
        import torch

        self._cuda = device == "cuda"
        if self._cuda:
            from ssmgen.check import gpu

            opened = gpu.opened(bytes.fromhex(memory["handle"]), memory["size"])
            self._view: Callable[[Place], Tensor] = lambda place: place.view(opened)
            gpu.forget_persisting_lines()
            # whatever threads CUDA starts for a capture are there before the candidate is
            something = torch.zeros(1, device="cuda")
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                something.add_(0.0)
            torch.cuda.synchronize()
        else:
            self._view = _HostView(mmap.mmap(fds[0], memory["size"]))
        self._run: Run = _unopened

    def open(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Import the candidate."""
        self._run = run_of(opened(Path(order["package"]), order["archive"]))
        return {}

    def call(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """One call; what it put on the current stream has run when this returns."""
        import torch

        with torch.no_grad():
            self._run(**Placed.from_json(order["call"]).arguments(self._view))
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        return {}

    def batch(self, order: Mapping[str, Any]) -> Batch:
        """A batch, ready to start; its inputs may still change."""
        import torch

        calls = [Placed.from_json(call).arguments(self._view) for call in order["calls"]]
        batch = Batch(self._run, calls, self._cuda, order["graph"])
        if self._cuda:
            from ssmgen.check import gpu

            gpu.forget_persisting_lines()
            torch.cuda.synchronize()
        return batch

    def profile(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """A batch's span on the GPU, as CUPTI tells torch's profiler, in microseconds, and its kernels' names."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        batch = self.batch(order)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            batch.start()
        events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        if not events:
            return {"span_us": None, "kernels": []}
        span = max(e.time_range.end for e in events) - min(e.time_range.start for e in events)
        return {"span_us": float(span), "kernels": sorted({e.name for e in events})}


class _HostView:
    """Tensors of storages of their own, as a caller's are: the interpreter tells memory by its storage."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __call__(self, place: Place) -> Tensor:
        import torch

        kind = getattr(torch, place.dtype)
        if not place.span:
            return torch.empty(place.shape, dtype=kind)
        whole = torch.frombuffer(self._memory, dtype=kind, count=place.span // kind.itemsize, offset=place.start)
        return whole.as_strided(place.shape, place.strides)


class Batch:
    """Calls in a row, as one CUDA graph or one by one."""

    def __init__(self, run: Run, calls: Sequence[dict[str, Any]], cuda: bool, graph: bool) -> None:
        import torch

        self._cuda = cuda
        self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
        self._run, self._calls = run, calls
        self._graph: Any = None
        if graph and calls:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._one_by_one()
            # the first launch of a graph uploads it
            self._graph.replay()

    def wake(self) -> None:
        """Have the GPU turn to this process: it may have been another's."""
        import torch

        if self._cuda:
            self._marks[0].record()
            torch.cuda.synchronize()

    def start(self) -> None:
        """Run them, until the whole device is idle."""
        import torch

        for mark in self._marks[:1]:
            mark.record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._one_by_one()
        for mark in self._marks[1:]:
            mark.record()
        if self._cuda:
            torch.cuda.synchronize()

    def _one_by_one(self) -> None:
        import torch

        with torch.no_grad():
            for call in self._calls:
                self._run(**call)

    def reported(self) -> dict[str, Any]:
        """Microseconds between events around all of it."""
        if self._cuda:
            from ssmgen.check import gpu

            if kept := gpu.persisting_bytes():
                raise RuntimeError(f"{kept} bytes of L2 were set aside to persist")
        return {"event_us": self._marks[0].elapsed_time(self._marks[1]) * 1e3} if self._cuda else {}


def opened(package: Path, archive: str | None) -> ModuleType:
    """The package in a folder: its kernels from the archive's cubins, or without one interpreted."""
    import ssmgen

    if archive is not None:
        return ssmgen.load(package, backend="cubin", archive=archive)
    if (package / "_forward.py").exists():
        return ssmgen.load(package, interpret=True)
    from ssmgen.interpreter.files import load_package
    from ssmgen.interpreter.launching import Launcher

    return load_package(package, "candidate", Launcher())


def run_of(package: ModuleType) -> Run:
    """The function that fills the checker's buffers: the package's own `run`, or a generated package's operator."""
    own = getattr(package, "run", None)
    return own if callable(own) else _generated(package)


def _generated(package: ModuleType) -> Run:
    """`forward` of a generated package, with the checker's buffers where it allocates what it returns.

    It is the function as it stands, not one that repeats what it recorded: a recording has allocations of its own.
    """
    inner = vars(package._forward)
    allocate: Callable[..., Any] = inner["allocate"]
    code = inner["forward"].__code__
    names = code.co_varnames[: code.co_argcount]
    # of an interpreted package it is watched for what is never written
    forward = package.forward if hasattr(package, "launcher") else inner["forward"]

    def run(**given: Any) -> None:
        results = [given["out"], given["final_states"]]
        waiting = list(results)

        def next_result(shape: Any, dtype: Any, device: Any) -> Any:
            # a workspace that is a result's size may get its place; the result is then copied there
            for at, each in enumerate(waiting):
                if each.shape == tuple(shape) and each.dtype == dtype:
                    return waiting.pop(at)
            return allocate(shape, dtype, device)

        inner["allocate"] = next_result
        try:
            made = forward(**{name: given.get(name, False) for name in names})
        finally:
            inner["allocate"] = allocate
        for name, result, mine in zip(("out", "final_states"), made, results, strict=True):
            at_home = result.data_ptr() == mine.data_ptr()
            if (
                result.shape != mine.shape
                or result.dtype != mine.dtype
                or (at_home and result.stride() != mine.stride())
            ):
                found = f"{result.dtype} {tuple(result.shape)} of strides {result.stride()}"
                raise ValueError(f"{name}: found {found}, expected {mine.dtype} {tuple(mine.shape)}")
            if not at_home:
                mine.copy_(result)

    return run


def _unopened(**_: Any) -> None:
    raise RuntimeError("no candidate was opened")
