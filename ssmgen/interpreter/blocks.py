"""The block that runs, and what a launch counts. Blocks run one after another, each to its end, in one thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class Counts:
    """What the blocks of launches asked for: elements inside arrays only, and every tile wherever it lies."""

    read_bytes: int = 0
    written_bytes: int = 0
    flops: int = 0
    """Two for each multiply-add of a matrix product."""
    exponentials: int = 0
    """Elements of exp and exp2."""
    touched: dict[tuple[str, str], torch.Tensor] | None = None
    """Where kept: which elements of each array were "read" or "written", by that and the array's name."""

    item_bytes: dict[str, int] = field(default_factory=dict)

    def distinct_bytes(self, left_out: frozenset[str] = frozenset()) -> int:
        """Bytes of all arrays but `left_out`, each element read or written counted once for each."""
        marks = (self.touched or {}).items()
        return sum(int(mask.sum()) * self.item_bytes[name] for (_, name), mask in marks if name not in left_out)


@dataclass
class Block:
    """One block of a launch: its `number` so far, and in `sees` those whose writes it may rely on."""

    kernel: str
    index: tuple[int, int, int]
    grid: tuple[int, int, int]
    number: int
    counts: Counts
    sees: set[int] = field(default_factory=set)
    spins: dict[tuple[int, int], int] = field(default_factory=dict)


class _State(threading.local):
    block: Block | None = None


_state = _State()


def running() -> Block | None:
    """The block that this thread runs, None outside a kernel."""
    return _state.block


def current(what: str) -> Block:
    """The block that this thread runs; `what` may only be called inside one."""
    from ssmgen.interpreter.faults import unsupported

    if _state.block is None:
        raise unsupported(f"ct.{what}() outside a kernel")
    return _state.block


def enter(block: Block | None) -> None:
    """Make `block` the one that this thread runs, None at the end of a launch."""
    _state.block = block
