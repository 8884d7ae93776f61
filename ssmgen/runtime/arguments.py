"""A kernel's arguments as cuLaunchKernel wants them: every pointer, size, stride and scalar at an address of its own.

It checks nothing; `launch` does, before anything is laid out.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .archive import ArrayParameter, Parameter, ScalarParameter
from .driver import Device


class Described(Protocol):
    """A kernel, as far as its arguments are concerned."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...


class Ready:
    """One kernel's arguments laid out for cuLaunchKernel: shapes and strides filled in, pointers and scalars open."""

    __slots__ = ("_arguments", "_table", "busy", "device", "fill", "function", "geometry", "grid", "name", "parameters")

    def __init__(self, kernel: Described, function: Any, device: Device, geometry: Sequence[int]) -> None:
        arrays = [p for p in kernel.parameters if isinstance(p, ArrayParameter)]
        scalars = [p for p in kernel.parameters if isinstance(p, ScalarParameter)]
        codes = "".join("i" if p.dtype == "int32" else "f" for p in scalars)
        # all that changes from call to call stands first, so that one pack writes it
        head = struct.Struct(f"<{len(arrays)}Q{codes}")
        words = (head.size + 4 * len(geometry) + 7) // 8
        self._arguments = (ctypes.c_uint64 * words)()
        base = ctypes.addressof(self._arguments)
        struct.pack_into(f"<{len(geometry)}i", self._arguments, head.size, *geometry)

        addresses: list[int] = []
        pointer, scalar, size = base, base + 8 * len(arrays), base + head.size
        for parameter in kernel.parameters:
            if isinstance(parameter, ArrayParameter):
                count = 2 * parameter.ndim
                addresses += [pointer, *range(size, size + 4 * count, 4)]
                pointer, size = pointer + 8, size + 4 * count
            else:
                addresses.append(scalar)
                scalar += 4
        self._table = (ctypes.c_void_p * len(addresses))(*addresses)
        self.parameters = ctypes.addressof(self._table)
        self.fill: Callable[..., None] = functools.partial(head.pack_into, self._arguments, 0)
        self.device, self.function, self.name = device, function, kernel.name
        self.geometry = geometry
        self.grid = (1, 1, 1)
        # between filling and launching a finalizer may run, and launch too
        self.busy = False
