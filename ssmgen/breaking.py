"""Calls and signatures of generated host code, broken over lines as `ruff format` breaks them; tuples.

It knows nothing of what is called; nothing formats generated code afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LINE = 120

Item = str | tuple[str, ...]
"""An expression, or a tuple of more than one."""


def tuple_of(items: Iterable[str]) -> str:
    """Python's text of a tuple."""
    items = tuple(items)
    return f"({', '.join(items)})" if len(items) > 1 else f"({items[0]},)"


def call(head: str, items: Sequence[Item], tail: str = ")", *, indent: int = 0, after: int = 0) -> str:
    """`head`, `items` and `tail`, such as `f(`, `a, b` and `)`, on as few lines as fit behind `indent` spaces.

    `after` characters follow on the last line. The first line is returned without its indent.
    """
    flat = ", ".join(_flat(item) for item in items)
    if indent + len(head + flat + tail) + after <= LINE:
        return head + flat + tail
    inner, outer = " " * (indent + 4), " " * indent
    if len(inner + flat) <= LINE:
        return f"{head}\n{inner}{flat}\n{outer}{tail}"
    lines = [inner + _item(item, indent + 4) + "," for item in items]
    return "\n".join([head, *lines, outer + tail])


def _flat(item: Item) -> str:
    return item if isinstance(item, str) else f"({', '.join(item)})"


def _item(item: Item, indent: int) -> str:
    return item if isinstance(item, str) else call("(", item, indent=indent, after=1)
