"""What the checker asks of the CUDA driver itself: memory that processes share, L2 without persisting lines, a version.

It launches nothing and sets no clock.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from ssmgen.errors import LaunchError

if TYPE_CHECKING:
    from torch import Tensor

# cuMemAlloc hands out smaller allocations from one block, all of which a handle would open
_BLOCK = 2 << 20
# cuIpcOpenMemHandle's flag: let the driver see to peer access
_LAZY_PEER_ACCESS = 1


class _Bytes:
    """What torch takes for an array on the GPU."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 2}


def shared(size: int) -> tuple[int, bytes, Tensor]:
    """Memory of an allocation of its own: its address, a handle that another process opens it by, and (size,) uint8."""
    import torch
    from cuda.bindings import driver

    # makes the device's primary context current
    torch.zeros(1, device="cuda")
    size = -(-size // _BLOCK) * _BLOCK
    (pointer,) = _ask("cuMemAlloc", *driver.cuMemAlloc(size))
    (handle,) = _ask("cuIpcGetMemHandle", *driver.cuIpcGetMemHandle(pointer))
    return int(pointer), bytes(handle.reserved), torch.as_tensor(_Bytes(int(pointer), size), device="cuda")


def opened(handle: bytes, size: int) -> Tensor:
    """What another process shared, (size,) uint8; stays mapped until this process ends."""
    import torch
    from cuda.bindings import driver

    torch.zeros(1, device="cuda")
    value = driver.CUipcMemHandle()
    value.reserved = handle
    (pointer,) = _ask("cuIpcOpenMemHandle", *driver.cuIpcOpenMemHandle(value, _LAZY_PEER_ACCESS))
    return torch.as_tensor(_Bytes(int(pointer), size), device="cuda")


def free(pointer: int) -> None:
    """Give memory of `shared` back."""
    from cuda.bindings import driver

    _ask("cuMemFree", *driver.cuMemFree(pointer))


def forget_persisting_lines() -> None:
    """Turn every persisting line of L2 into an ordinary one, and admit no more."""
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    _ask("cuCtxSetLimit", *driver.cuCtxSetLimit(limit, 0))
    _ask("cuCtxResetPersistingL2Cache", *driver.cuCtxResetPersistingL2Cache())


def persisting_bytes() -> int:
    """How much of L2 this context may keep lines in for good."""
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    return int(_ask("cuCtxGetLimit", *driver.cuCtxGetLimit(limit))[0])


def driver_version() -> str:
    """As nvidia-smi says; "unknown" where there is none."""
    shown = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _ask(name: str, status: Any, *answers: Any) -> tuple[Any, ...]:
    if int(status) != 0:
        raise LaunchError(f"{name}: {getattr(status, 'name', status)}", next="see nvidia-smi, and the driver's log")
    return answers
