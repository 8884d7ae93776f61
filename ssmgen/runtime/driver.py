"""The few CUDA driver calls that a compiled kernel needs, over cuda-bindings, one object a process.

Contexts are torch's: each device's primary one. It knows no archive, no promise and no tensor.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from .chain import Chain, Chains
from .errors import LaunchError

# cuTile kernels count in tile blocks; the compiler alone decides how many threads work on one
BLOCK = (1, 1, 1)
MAX_GRID = 2**24 - 1
# CU_STREAM_LEGACY and CU_STREAM_PER_THREAD; these and 0 belong to whatever context is current
LAST_CONTEXTLESS_STREAM = 2
# asked for by somebody who wants to know which kernel fails
_IS_BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"


@dataclass(frozen=True)
class Device:
    """A device by torch's ordinal: its primary context, also as an integer, and its target, such as sm_90."""

    ordinal: int
    context: Any
    handle: int
    target: str


class Ready(Protocol):
    """What a launch needs: a handle from `load`, a grid, the address of its arguments' addresses, a name."""

    function: Any
    grid: tuple[int, int, int]
    parameters: int
    name: str


class Together:
    """Launches that are made together, again and again; what a graph is told of them is made on first use."""

    __slots__ = ("_nodes", "device", "launches", "name")

    def __init__(self, device: Device, launches: Sequence[Ready]) -> None:
        self.device = device
        self.launches = tuple(launches)
        self.name = ", ".join(ready.name for ready in launches)
        self._nodes: list[Any] | None = None

    def nodes(self, cu: Any) -> list[Any]:
        """CUDA_KERNEL_NODE_PARAMS of each."""
        if self._nodes is None:
            self._nodes = [self._node(cu, ready) for ready in self.launches]
        return self._nodes

    def _node(self, cu: Any, ready: Ready) -> Any:
        node = cu.CUDA_KERNEL_NODE_PARAMS()
        node.kern = cu.CUkernel(int(ready.function))
        node.ctx = self.device.context
        node.gridDimX, node.gridDimY, node.gridDimZ = ready.grid
        node.blockDimX, node.blockDimY, node.blockDimZ = BLOCK
        node.kernelParams = ready.parameters
        return node


class Driver:
    """Loads cubins and launches what is in them. `cu` is cuda.bindings.driver, or a fake of it."""

    def __init__(self, cu: Any) -> None:
        self._cu = cu
        self._devices: dict[int, Device] = {}
        self._libraries: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._chains = Chains()
        self._ok = cu.CUresult.CUDA_SUCCESS

    def targets(self) -> tuple[str, ...]:
        """The targets of this machine's GPUs, sorted; no context is made. LaunchError where there is no CUDA driver."""
        cu = self._cu
        try:
            self._call("cuInit", cu.cuInit(0))
        except RuntimeError as e:
            # cuda-bindings finds no libcuda
            raise LaunchError("no CUDA driver is installed here", found=e, next="run where there is a GPU") from None
        count = self._call("cuDeviceGetCount", cu.cuDeviceGetCount())
        return tuple(sorted({self._target(self._get(ordinal)) for ordinal in range(count)}))

    def device(self, ordinal: int) -> Device:
        """The device; its primary context is retained for the life of the process, as torch does."""
        found = self._devices.get(ordinal)
        if found is None:
            cu = self._cu
            self._call("cuInit", cu.cuInit(0))
            device = self._get(ordinal)
            context = self._call("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(device))
            found = Device(ordinal, context, int(context), self._target(device))
            found = self._devices.setdefault(ordinal, found)
        return found

    def _get(self, ordinal: int) -> Any:
        return self._call("cuDeviceGet", self._cu.cuDeviceGet(ordinal))

    def _target(self, device: Any) -> str:
        cu, attribute = self._cu, self._cu.CUdevice_attribute
        major, minor = (
            self._call("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(which, device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        return f"sm_{major}{minor}"

    def load(self, device: Device, cubin: bytes, key: str, symbol: str) -> Any:
        """A launchable handle of `symbol` in `cubin`, ready on `device`; `key` names the cubin's content.

        All loading is done here, in relaxed capture mode, so that a first call may stand inside a graph capture.
        """
        cu = self._cu
        with self._relaxed(), self._current(device), self._lock:
            library = self._libraries.get(key)
            if library is None:
                loaded = cu.cuLibraryLoadData(cubin, None, None, 0, None, None, 0)
                library = self._call(f"loading {symbol} on {device.target}: cuLibraryLoadData", loaded)
                self._libraries[key] = library
            kernel = self._call(f"{symbol}: cuLibraryGetKernel", cu.cuLibraryGetKernel(library, symbol.encode()))
            self._call(f"{symbol} on {device.target}: cuKernelGetFunction", cu.cuKernelGetFunction(kernel))
        # a kernel, unlike a function, is good in every context: the launch takes its stream's
        return cu.CUfunction(int(kernel))

    def launch(self, device: Device, launches: Iterable[Ready], stream: int) -> None:
        """cuLaunchKernel of each on `stream`, whose context must be the device's; nothing here waits for anything."""
        if stream <= LAST_CONTEXTLESS_STREAM and not self._is_current(device):
            with self._current(device):
                self._launch(launches, stream)
        else:
            self._launch(launches, stream)

    def launch_together(self, together: Together, stream: int) -> None:
        """The same, as one graph where that can be. A stream that is being captured takes no graph: `launch` there."""
        device = together.device
        if _IS_BLOCKING or (stream <= LAST_CONTEXTLESS_STREAM and not self._is_current(device)):
            self.launch(device, together.launches, stream)
            return
        key = (device.ordinal, stream, len(together.launches))
        chain = self._chains.get(key, lambda: self._chain(together, stream))
        if chain is None:
            self._launch(together.launches, stream)
        else:
            chain.launch(together.nodes(self._cu), stream, together.name)

    def _chain(self, together: Together, stream: int) -> Chain:
        """A chain for `stream`; LaunchError where the stream's context, such as a green one, is not the device's."""
        cu, device = self._cu, together.device
        if stream > LAST_CONTEXTLESS_STREAM:
            context = self._call("cuStreamGetCtx", cu.cuStreamGetCtx(stream))
            if int(context) != device.handle:
                raise LaunchError("the stream is of another context than the primary one", found=int(context))
        with self._relaxed():
            return Chain(cu, together.nodes(cu), self._call)

    def _is_current(self, device: Device) -> bool:
        result, context = self._cu.cuCtxGetCurrent()
        return result is self._ok and int(context) == device.handle

    def _launch(self, launches: Iterable[Ready], stream: int) -> None:
        launch, ok = self._cu.cuLaunchKernel, self._ok
        for ready in launches:
            (result,) = launch(ready.function, *ready.grid, *BLOCK, 0, stream, ready.parameters, 0)
            if result is not ok:
                self._call(f"{ready.name}: cuLaunchKernel with grid {ready.grid}", (result,))

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Lets this thread do what a capture elsewhere would not otherwise stand."""
        cu = self._cu
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        mode = self._call("cuThreadExchangeStreamCaptureMode", cu.cuThreadExchangeStreamCaptureMode(relaxed))
        try:
            yield
        finally:
            cu.cuThreadExchangeStreamCaptureMode(mode)

    @contextmanager
    def _current(self, device: Device) -> Iterator[None]:
        cu = self._cu
        self._call("cuCtxPushCurrent", cu.cuCtxPushCurrent(device.context))
        try:
            yield
        finally:
            cu.cuCtxPopCurrent()

    def _call(self, what: str, answer: tuple[Any, ...]) -> Any:
        result, *values = answer
        if result != self._ok:
            raise LaunchError(
                f"{what} failed",
                found=getattr(result, "name", result),
                next="if an earlier kernel failed it shows here: run again with CUDA_LAUNCH_BLOCKING=1",
            )
        return values[0] if values else None


@functools.cache
def driver() -> Driver:
    """The process's driver; LaunchError where cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver as cu
    except ImportError as e:
        raise LaunchError(
            "cuda-bindings is needed to launch compiled kernels", found=e, next='pip install "cuda-bindings>=13"'
        ) from None
    return Driver(cu)
