"""YAML 1.2 with the line of every key: duplicate keys are errors, and only plain data comes out.

It knows no schema; `spec` and `lock` do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmgen import plain_yaml
from ssmgen.errors import Location, SpecError, SsmgenError
from ssmgen.plain_yaml import Key


@dataclass(frozen=True)
class Document:
    """Plain data read from `path`, with the line each key path starts on."""

    path: str
    data: Any
    lines: dict[Key, int]

    def where(self, key: Key = ()) -> Location:
        """The place of `key`, or of its nearest ancestor that the file holds."""
        while key and key not in self.lines:
            key = key[:-1]
        return Location(self.path, self.lines.get(key, 1))


def read(path: Path, error: type[SsmgenError] = SpecError) -> Document:
    """The document in `path`; raises `error` for what is not YAML, not UTF-8, not readable, or says a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error("no such file", where=path) from None
    except (OSError, UnicodeDecodeError) as e:
        raise error("cannot be read", where=path, found=e) from None
    return parse(text, str(path), error)


def parse(text: str, path: str, error: type[SsmgenError] = SpecError) -> Document:
    """The document in `text`, which came from `path`."""
    found = plain_yaml.parse(text)
    if found is None:
        # the full parser takes as long to import as forty plain files take to read
        from ssmgen import full_yaml

        found = full_yaml.parse(text, path, error)
    return Document(path, *found)


__all__ = ["Document", "Key", "parse", "read"]
