"""A CUDA driver and tensors that exist only in memory: they record what a launch hands to cuLaunchKernel.

They model what the launcher reads and calls, and no more.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import importlib.util
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

PACKAGE = '''\
"""A generated package in miniature."""

import cuda.tile as ct

from .sm_90.operator.route import stage as route_stage


def run(stream, *args, grid=(3, 2)):
    ct.launch(stream, grid, route_stage.stage, args)
'''
STAGE = """\
import cuda.tile as ct

TILE = 64
ZERO = ct.PaddingMode.ZERO
DTYPE = ct.bfloat16


@ct.kernel(occupancy=2)
def stage(x, rate, has_initial_states: int, dt_max: float):
    here = (ct.bid(0), ct.bid(1), 0, 0)
    tile = ct.load(x, index=here, shape=(1, 1, 1, TILE), padding_mode=ZERO)
    scale = min(has_initial_states * dt_max, dt_max) * ct.load(rate, index=(0,), shape=(1,))
    ct.store(x, index=here, tile=(tile * scale.reshape((1, 1, 1, 1))).astype(DTYPE))
"""


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209


OK = CUresult.CUDA_SUCCESS


@dataclass
class Launch:
    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    context: int
    parameters: list[bytes]
    # the executable graph it was part of
    graph: int | None = None


@dataclass
class FakeCuda:
    """cuda.bindings.driver in miniature: device n is an sm_90 with primary context 1000 + n, unless told otherwise."""

    # byte sizes of the kernel's arguments, in order: cuLaunchKernel itself knows them from the cubin
    sizes: list[int] = field(default_factory=list)
    capability: tuple[int, int] = (9, 0)
    current: list[int] = field(default_factory=lambda: [1000])
    launches: list[Launch] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    launch_result: CUresult = OK
    load_result: CUresult = OK
    libraries: list[bytes] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    mode: int = 0
    count: int = 1
    graphs: list[list[Launch | None]] = field(default_factory=list)
    graph_results: dict[str, CUresult] = field(default_factory=dict)
    # of a stream, where it is not device 0's
    contexts: dict[int, int] = field(default_factory=dict)
    destroyed: list[int] = field(default_factory=list)

    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def CUfunction(self, handle):  # noqa: N802
        return handle

    def __getattr__(self, name):
        raise AssertionError(f"the launcher called {name}, which it should not need")

    def cuInit(self, flags):  # noqa: N802
        return (OK,)

    def cuDeviceGetCount(self):  # noqa: N802
        return OK, self.count

    def cuDeviceGet(self, ordinal):  # noqa: N802
        return OK, ordinal

    def cuDeviceGetAttribute(self, attribute, device):  # noqa: N802
        return OK, self.capability[attribute]

    def cuDevicePrimaryCtxRetain(self, device):  # noqa: N802
        return OK, 1000 + device

    def cuCtxGetCurrent(self):  # noqa: N802
        return OK, self.current[-1]

    def cuCtxPushCurrent(self, context):  # noqa: N802
        self.current.append(context)
        return (OK,)

    def cuCtxPopCurrent(self):  # noqa: N802
        return OK, self.current.pop()

    def cuThreadExchangeStreamCaptureMode(self, mode):  # noqa: N802
        old, self.mode = self.mode, mode
        return OK, old

    def cuLibraryLoadData(self, code, *options):  # noqa: N802
        assert self.mode == 2, "loading in the middle of a capture needs relaxed mode"
        self.libraries.append(bytes(code))
        return self.load_result, len(self.libraries)

    def cuLibraryGetKernel(self, library, symbol):  # noqa: N802
        self.symbols.append(symbol.decode())
        return OK, 100 + len(self.symbols)

    def cuKernelGetFunction(self, kernel):  # noqa: N802
        return OK, kernel

    def cuLaunchKernel(self, function, *rest):  # noqa: N802
        grid, block, (shared, stream, table, extra) = rest[:3], rest[3:6], rest[6:]
        assert extra == 0
        made = Launch(function, grid, block, shared, stream, self.current[-1], self.read(function, table))
        self.launches.append(made)
        return (self.launch_result,)

    def read(self, function, table):
        """The arguments' bytes, as the driver copies them."""
        addresses = (ctypes.c_uint64 * len(self.sizes)).from_address(table)
        return [ctypes.string_at(a, n) for a, n in zip(addresses, self.sizes, strict=True)]

    def cuStreamGetCtx(self, stream):  # noqa: N802
        return OK, self.contexts.get(stream, 1000)

    def CUkernel(self, handle):  # noqa: N802
        return handle

    def CUDA_KERNEL_NODE_PARAMS(self):  # noqa: N802
        return SimpleNamespace(sharedMemBytes=0)

    def cuGraphCreate(self, flags):  # noqa: N802
        self.graphs.append([])
        return self.graph_results.get("create", OK), len(self.graphs) - 1

    def cuGraphAddKernelNode(self, graph, before, count, node):  # noqa: N802
        nodes = self.graphs[graph]
        assert list(before or []) == ([len(nodes) - 1] if nodes else []), "not one behind the other"
        assert count == len(before or [])
        nodes.append(self._of_node(node))
        return OK, len(nodes) - 1

    def cuGraphInstantiate(self, graph, flags):  # noqa: N802
        assert self.mode == 2, "instantiating in the middle of another stream's capture needs relaxed mode"
        return self.graph_results.get("instantiate", OK), graph

    def cuGraphExecKernelNodeSetParams(self, executable, node, parameters):  # noqa: N802
        assert executable not in self.destroyed
        self.graphs[executable][node] = self._of_node(parameters)
        return (self.graph_results.get("set", OK),)

    def cuGraphLaunch(self, executable, stream):  # noqa: N802
        assert executable not in self.destroyed
        self.launches += [replace(each, stream=stream, graph=executable) for each in self.graphs[executable]]
        return (self.graph_results.get("launch", OK),)

    def cuGraphExecDestroy(self, executable):  # noqa: N802
        self.destroyed.append(executable)
        return (OK,)

    def cuGraphDestroy(self, graph):  # noqa: N802
        return (OK,)

    def _of_node(self, node):
        grid, block = (
            tuple(getattr(node, f"{kind}Dim{axis}") for axis in "XYZ") for kind in ("grid", "block")
        )  # fmt: skip
        parameters = self.read(node.kern, node.kernelParams)
        return Launch(node.kern, grid, block, node.sharedMemBytes, -1, node.ctx, parameters)


@dataclass(frozen=True)
class FakeTensor:
    """The part of a torch tensor that a launch reads."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "torch.bfloat16"
    pointer: int = 0x7F00_0000_0000
    ordinal: int = 0

    @property
    def device(self):
        return f"cuda:{self.ordinal}" if self.ordinal >= 0 else "cpu"

    def data_ptr(self):
        return self.pointer

    def stride(self):
        return self.strides

    def get_device(self):
        return self.ordinal


def promise(ndim: int) -> dict:
    """What an archive says of an array of which only its last stride is known."""
    return {
        "base_divisible_by": 1,
        "stride_divisible_by": [1] * ndim,
        "stride_constant": [None] * (ndim - 1) + [1],
        "shape_divisible_by": [1] * ndim,
        "shape_constant": [None] * ndim,
    }


def write_package(folder: Path, model: str = "tiny") -> Path:
    """A generated package of one kernel."""
    files = {"__init__.py": PACKAGE, "sm_90/operator/route/stage.py": STAGE}
    for name, text in files.items():
        path = folder / model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / model


def import_plainly(folder: Path):
    """The package as whoever imports it without ssmgen has it."""
    spec = importlib.util.spec_from_file_location(
        f"plain_{folder.name}", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_archive(
    folder: Path, parameters: list, *, models: tuple[str, ...] = ("tiny",), target: str = "sm_90"
) -> Path:
    """An archive that holds the package's kernel for each model, as ssmgen compile writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {}
    for model in models:
        data = f"cubin of {model}".encode()
        name = f"{hashlib.sha256(data).hexdigest()}.cubin"
        (folder / name).write_bytes(data)
        kernels[f"{model}/{target}/operator/route/stage"] = {
            "cubin": name,
            "symbols": {"aligned": "stage_aligned", "general": "stage_general"},
            "parameters": parameters,
            "source_sha256": hashlib.sha256(STAGE.encode()).hexdigest(),
        }
    index = {"schema": 1, "compiler": "tileiras 13.5", "kernels": kernels}
    (folder / "index.json").write_text(json.dumps(index))
    return folder
