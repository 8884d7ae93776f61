"""The files of a generated package that name no kernel: checks of arguments, torch.library operators.

`host` has the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssmgen import limits
from ssmgen.breaking import tuple_of
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.spec import Spec


@dataclass(frozen=True)
class ArgumentsContext:
    """Free names of arguments.py.jinja: what a tensor has to be."""

    title: str
    targets: str
    packed: bool
    chunk: int
    max_rows: int
    max_tokens: int


@dataclass(frozen=True)
class ValuesContext:
    """Free names of values.py.jinja: what an argument has to hold."""

    title: str
    packed: bool


@dataclass(frozen=True)
class LibraryContext:
    """Free names of library.py.jinja: torch.library operators."""

    title: str
    own_namespace: str


def files(spec: Spec, operator: mamba2.Operator, lock: Lock) -> tuple[tuple[str, str, Any], ...]:
    """(path in generated/<model>/, template, context) of each."""
    name, packed = spec.model.name, operator.options.packed
    targets = tuple_of(f'"{target}"' for target in spec.targets)
    counted = limits.limits(spec, lock)
    arguments = ArgumentsContext(name, targets, packed, counted.chunk, counted.rows, counted.tokens)
    return (
        ("_arguments.py", "arguments.py.jinja", arguments),
        ("_values.py", "values.py.jinja", ValuesContext(name, packed)),
        ("_library.py", "library.py.jinja", LibraryContext(name, f"ssmgen_{name}_{spec.digest[:8]}")),
    )
