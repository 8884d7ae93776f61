"""Several launches as one: a CUDA graph of kernels one behind the other, whose nodes are set anew for every call.

Four kernels cost the host a third of four launches. A launch takes a copy of what the nodes say, so that the next call
may set them while this one still waits for the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from .errors import LaunchError


class Chain:
    """An executable graph of as many kernels as `nodes`, one thread's own. `nodes` are CUDA_KERNEL_NODE_PARAMS.

    Launches of it wait for each other, wherever they are made: each stream wants its own. `check` takes what was called
    and its answer, and raises LaunchError.
    """

    def __init__(self, cu: Any, nodes: Sequence[Any], check: Callable[[str, tuple[Any, ...]], Any]) -> None:
        self._cu = cu
        self._check = check
        self._ok = cu.CUresult.CUDA_SUCCESS
        self._exec = None
        # its nodes have to stay for as long as they are set
        self._graph = check("cuGraphCreate", cu.cuGraphCreate(0))
        self._nodes: list[Any] = []
        for node in nodes:
            before = self._nodes[-1:]
            added = cu.cuGraphAddKernelNode(self._graph, before or None, len(before), node)
            self._nodes.append(check("cuGraphAddKernelNode", added))
        self._exec = check("cuGraphInstantiate", cu.cuGraphInstantiate(self._graph, 0))
        # between setting and launching a finalizer may run, and want this too
        self.busy = False

    def launch(self, nodes: Sequence[Any], stream: Any, name: str) -> None:
        """Launch these kernels on `stream`; `name` is for errors."""
        set_node, executable, ok = self._cu.cuGraphExecKernelNodeSetParams, self._exec, self._ok
        self.busy = True
        try:
            for own, node in zip(self._nodes, nodes, strict=True):
                (result,) = set_node(executable, own, node)
                if result is not ok:
                    self._check(f"{name}: cuGraphExecKernelNodeSetParams", (result,))
            (result,) = self._cu.cuGraphLaunch(executable, stream)
            if result is not ok:
                self._check(f"{name}: cuGraphLaunch", (result,))
        finally:
            self.busy = False

    def __del__(self) -> None:
        # what still runs is freed when it has run; at exit there may be nothing left to call
        try:
            if self._exec is not None:
                self._cu.cuGraphExecDestroy(self._exec)
            self._cu.cuGraphDestroy(self._graph)
        except Exception:
            return


class Chains(threading.local):
    """A thread's chains, by device, stream and length; what could not be made has None in its place."""

    # each takes some 100 kB of the GPU's memory
    KEPT = 32

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], Chain | None] = {}

    def get(self, key: tuple[int, int, int], make: Callable[[], Chain]) -> Chain | None:
        """The chain, made on first use; None where that failed or where it is being launched."""
        try:
            chain = self._made[key]
        except KeyError:
            if len(self._made) >= self.KEPT:
                self._made.clear()
            try:
                chain = make()
            except LaunchError:
                chain = None
            self._made[key] = chain
        return None if chain is None or chain.busy else chain
