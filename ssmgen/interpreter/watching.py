"""What torch does to memory around launches: what it hands out unwritten, and what it writes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ssmgen.interpreter.memory import Memory

_EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Notes what torch allocates without writing, and what it writes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under it: keeps torch from importing its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _EMPTY:
            fill(result)
            self.memory.allocate(result)
            return result
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else (kwargs or {}).get(argument.name)
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        self.memory.write(tensor)
        return result


def fill(tensor: torch.Tensor) -> None:
    """Values that no result should ever hold: NaN, or the largest integer."""
    if tensor.is_floating_point():
        tensor.fill_(math.nan)
    elif tensor.dtype is not torch.bool and not tensor.is_complex():
        tensor.fill_(torch.iinfo(tensor.dtype).max)


class _State(threading.local):
    memory: Memory | None = None


_state = _State()


@contextmanager
def watch() -> Iterator[Memory]:
    """Within it, what torch.empty gives is unwritten until something writes it; a watch within a watch adds nothing."""
    if _state.memory is not None:
        yield _state.memory
        return
    _state.memory = memory = Memory()
    try:
        with _Watch(memory):
            yield memory
    finally:
        _state.memory = None


def watched() -> Memory:
    """The memory being watched, or an empty one for a launch outside of any watch."""
    return _state.memory or Memory()
