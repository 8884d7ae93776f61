"""A generated package whose operators run on CPU tensors: every call watched, its results wholly written.

It puts its own in the place of the package's `forward`, which launches; what the public function does with the results
is torch's business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ssmgen.errors import SanitizerError
from ssmgen.interpreter.launching import Launcher
from ssmgen.interpreter.memory import Memory
from ssmgen.interpreter.watching import watch

MULTIPROCESSORS = 3
"""Of the GPU that a generated package is told of: few, so that a persistent grid takes several items a block."""


def watched_package(package: ModuleType, launcher: Launcher) -> ModuleType:
    """`package`, imported for the interpreter, told that CPU tensors are on a GPU of its first target."""
    target = package._arguments.TARGETS[0]
    vars(package._forward).update(
        device=lambda _where: (target, MULTIPROCESSORS),
        current_stream=lambda _where: None,
    )
    vars(package).update(forward=_watched(package.forward), launcher=launcher)
    return package


def _watched(operator: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        with watch() as memory:
            result = operator(*args, **kwargs)
            for value in result:
                _check_written(value, memory, operator.__name__)
            return result

    return call


def _check_written(value: Any, memory: Memory, name: str) -> None:
    import torch

    if isinstance(value, torch.Tensor) and (missing := memory.unwritten(value)):
        raise SanitizerError(
            "unwritten",
            f"{name}: {missing} of {value.numel()} elements of a {tuple(value.shape)} result were never written",
        )
