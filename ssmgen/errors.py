"""Every error a user can meet, as one tree; no module raises anything else for a user's mistake.

    SsmgenError                exit 2
    ├── UsageError             a command line that cannot be obeyed
    ├── ConfigError            a config.json that is broken, unknown or out of scope
    ├── SpecError              a spec that breaks its schema or its constraints
    ├── LockError              a lock that breaks its schema or does not fit its spec
    ├── ScheduleError          a schedule that a target cannot serve
    ├── RenderError            a template and its context disagree
    ├── OutputError            a folder that cannot be written
    ├── CompilerError          the cuTile compiler is missing, mismatched, or refuses a kernel
    ├── LaunchError            generated kernels cannot run here, or an argument breaks their contract
    ├── IntegrationError       a model of another library that the kernels cannot serve
    ├── Interrupted            Ctrl-C
    ├── InterpreterError       a kernel asks for what the interpreter does not know
    └── SanitizerError         a kernel breaks a rule of cuTile, named by `rule`

It formats; it never logs, exits or guesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ssmgen.runtime.errors import LaunchError, Location, SsmgenError

__all__ = ["LaunchError", "Location", "SsmgenError"]


@contextmanager
def then_run(command: str) -> Iterator[None]:
    """Complete the `next` of every error that leaves the block: what to mend, then `command`.

    A `next` that names a command of ssmgen is complete as it is.
    """
    try:
        yield
    except SsmgenError as e:
        if e.next is None or "ssmgen " not in e.next:
            e.next = f"{e.next or f'correct {e.where}'}, then run: {command}"
        raise


class ViolationError(ValueError):
    """What a validator finds wrong: `key` is the part of its own value that is; the rest as in `SsmgenError`."""

    def __init__(
        self, what: str, *, found: object, expected: str, next: str | None = None, key: tuple[str, ...] = ()
    ) -> None:
        self.found = str(found)
        self.expected = expected
        self.next = next
        self.key = key
        super().__init__(what)


class UsageError(SsmgenError):
    """A command line that cannot be obeyed."""


class ConfigError(SsmgenError):
    """A config.json that is broken, of an unknown architecture, or out of scope."""


class SpecError(SsmgenError):
    """A spec that breaks its schema or one of its constraints."""


class LockError(SsmgenError):
    """A lock that breaks its schema or does not fit its spec."""


class ScheduleError(SsmgenError):
    """A schedule that a target cannot serve, with the reason."""


class RenderError(SsmgenError):
    """A template and its context disagree: an error of ssmgen's own."""


class OutputError(SsmgenError):
    """A folder or file that cannot be written."""


class CompilerError(SsmgenError):
    """The cuTile compiler is missing, mismatched, or refuses a kernel."""


class IntegrationError(SsmgenError):
    """A model of another library that the kernels cannot serve, or a patched one used as it must not be."""


class Interrupted(SsmgenError):  # noqa: N818 - not an error of anybody's
    """Ctrl-C: what was there is whole, since files are moved in all at once."""

    def __init__(self) -> None:
        super().__init__("interrupted by Ctrl-C; no file was left half-written", next="run it again")


class InterpreterError(SsmgenError):
    """A kernel asks for what the interpreter does not know; `where` is its file and line."""


class SanitizerError(SsmgenError):
    """A kernel breaks a rule of cuTile that a GPU would not check: `rule`, at the file and line in `where`."""

    def __init__(self, rule: str, what: str, **more: Any) -> None:
        self.rule = rule
        super().__init__(f"[{rule}] {what}", **more)
