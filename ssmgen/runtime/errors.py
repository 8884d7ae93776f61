"""The errors that launching raises, and what every error of ssmgen is made of; `ssmgen.errors` has the whole tree.

It formats; it never logs, exits or guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Location:
    """A place in a user's file: `path`, 1-based `line` (0 for the whole file)."""

    path: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class SsmgenError(Exception):
    """An error with everything a user needs to mend it.

    `what` is the key or argument and what is wrong with it; `where` the file and line; `found`, `expected` and `next`
    complete the picture. `str()` gives all of it, one fact a line.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: Location | Path | str | None = None,
        found: object = None,
        expected: str | None = None,
        next: str | None = None,
    ) -> None:
        self.what = what
        self.where = Location(str(where)) if isinstance(where, (str, Path)) else where
        self.found = None if found is None else str(found)
        self.expected = expected
        self.next = next
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        for label, text in (("found", self.found), ("expected", self.expected), ("next", self.next)):
            if text is not None:
                lines.append(f"  {label + ':':<9} {text}")
        return "\n".join(lines)


class LaunchError(SsmgenError):
    """Generated kernels cannot run here, or an argument breaks their contract."""
