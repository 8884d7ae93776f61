"""YAML 1.2 with the line of every key: duplicate keys are errors, and only plain data comes out.

It knows no schema; `spec` and `lock` do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmgen import paths, plain_yaml
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
    return parse(utf8(path, error), str(path), error)


def utf8(path: Path, error: type[SsmgenError]) -> str:
    """The text in `path`; raises `error` for what is not UTF-8 or not readable."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise error(
            "no such file" if isinstance(e, FileNotFoundError) else "cannot be read",
            where=path,
            found=paths.beside(path) if isinstance(e, FileNotFoundError) else e.strerror,
            expected="a file that can be read",
            next="give another path" if path.is_dir() else "check its path and permissions",
        ) from None
    return decoded(content, str(path), error)


def decoded(content: bytes, path: str, error: type[SsmgenError]) -> str:
    """`content`, which came from `path`, as text with plain line ends; raises `error` for what is not UTF-8."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as e:
        raise error(
            "not UTF-8",
            where=Location(path, content.count(b"\n", 0, e.start) + 1),
            found=f"byte 0x{content[e.start]:02x}",
            expected="UTF-8",
            next="save the file again as UTF-8",
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def parse(text: str, path: str, error: type[SsmgenError] = SpecError) -> Document:
    """The document in `text`, which came from `path`."""
    found = plain_yaml.parse(text)
    if found is None:
        # the full parser takes as long to import as forty plain files take to read
        from ssmgen import full_yaml

        found = full_yaml.parse(text, path, error)
    return Document(path, *found)


__all__ = ["Document", "Key", "decoded", "parse", "read", "utf8"]
