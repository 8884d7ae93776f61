"""Errors with the kernel's file and line: a broken rule of cuTile, or something that the interpreter does not know.

A rule's name is in `RULES`; nothing else may be raised under another name.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ssmgen.errors import InterpreterError, Location, SanitizerError

RULES = {
    "unwritten": "memory that nobody wrote is read",
    "outside": "a tile lies wholly outside its array, or an unchecked access is outside it",
    "undetermined": "padding that no mode determines reaches a result",
    "race": "two blocks touch one element, and one of them writes it",
    "alias": "two arrays of one launch share elements",
    "tile": "a tile's size is no power of two, or no constant",
    "promise": "an argument breaks what the kernel was compiled under",
    "overflow": "a signed integer leaves its range",
    "types": "operands, or a result, of types that cuTile does not combine",
    "shapes": "shapes that do not fit",
    "order": "a block waits for another that has not run",
    "assertion": "an assertion of the kernel's own",
}
"""What the sanitizer finds, by the name that SanitizerError.rule holds."""

MARK = "__ssmgen_interpreted__"
"""A name among the builtins of interpreted modules, and of no others."""


def where() -> Location | None:
    """The line of interpreted code that is running, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if MARK in frame.f_builtins:
            return Location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def violation(rule: str, what: str, **more: Any) -> SanitizerError:
    """The error for a broken rule at the running line; `more` as SsmgenError takes it."""
    from ssmgen.interpreter.blocks import running

    assert rule in RULES, rule
    block = running()
    inside = f" (kernel {block.kernel}, block {block.index})" if block else ""
    return SanitizerError(rule, f"{what}{inside}", where=where(), **more)


def unsupported(what: str) -> InterpreterError:
    """The error for something that the interpreter does not know."""
    return InterpreterError(
        f"the interpreter does not know {what}",
        where=where(),
        next="write the kernel without it, or run it on a GPU",
    )
