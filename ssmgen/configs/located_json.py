"""JSON with the line of every key: duplicate keys are errors, and Infinity is read as the field's tools write it.

It knows no architecture; `fields` gives typed access.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ssmgen.errors import ConfigError, Location
from ssmgen.located_yaml import Document, Key

_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n')


class _Token(NamedTuple):
    text: str
    line: int


def read(path: Path) -> tuple[Document, bytes]:
    """The document in `path` and its bytes; ConfigError for what is no UTF-8 JSON object, or says a key twice."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("no such file", where=path) from None
    except IsADirectoryError:
        raise ConfigError(
            "a folder, not a file", where=path, expected="a model's config.json", next=f"try {path / 'config.json'}"
        ) from None
    except OSError as e:
        raise ConfigError("cannot be read", where=path, found=e.strerror) from None
    if content.startswith(_BOM):
        raise ConfigError(
            "starts with a byte order mark",
            where=Location(str(path), 1),
            expected="UTF-8 without one",
            next="save the file again as plain UTF-8",
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        raise ConfigError(
            "not UTF-8", where=Location(str(path), line), found=f"byte 0x{content[e.start]:02x}", expected="UTF-8 JSON"
        ) from None
    return parse(text, str(path)), content


def parse(text: str, path: str) -> Document:
    """The object in `text`, which came from `path`, with the line of each key path."""
    try:
        data = json.loads(text)
        lines = _Lines(text, path).lines
    except json.JSONDecodeError as e:
        ended = e.pos >= len(text.rstrip()) or e.msg.startswith("Unterminated string")
        raise ConfigError(
            "not valid JSON",
            where=Location(path, e.lineno),
            found=e.msg + (" (the file ends here)" if ended else f" at column {e.colno}"),
            expected="a model's config.json, whole",
        ) from None
    except RecursionError:
        raise ConfigError("not valid JSON", where=path, found="brackets nested too deeply") from None
    except ValueError as e:
        raise ConfigError("not valid JSON", where=path, found=e) from None
    if not isinstance(data, dict):
        raise ConfigError(
            "not a JSON object", where=Location(path, 1), found=_kind(data), expected="a model's config.json: { … }"
        )
    return Document(path, data, lines)


def _kind(data: object) -> str:
    return "an array" if isinstance(data, list) else json.dumps(data)[:40]


class _Lines:
    """The line of every key path of `text`, which is valid JSON."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.lines: dict[Key, int] = {}
        self._tokens: list[_Token] = []
        line = 1
        for token in _TOKEN.findall(text):
            if token == "\n":
                line += 1
            else:
                self._tokens.append(_Token(token, line))
        self._next = 0
        self._value(())

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _value(self, key: Key) -> None:
        token = self._take()
        self.lines.setdefault(key, token.line)
        if token.text == "{":
            while (name := self._take()).text != "}":
                if name.text != ",":
                    self._member(key, name)
        elif token.text == "[":
            count = 0
            while self._tokens[self._next].text != "]":
                if self._tokens[self._next].text == ",":
                    self._take()
                    continue
                self._value((*key, count))
                count += 1
            self._take()

    def _member(self, key: Key, name: _Token) -> None:
        text: Any = json.loads(name.text)
        member = (*key, text)
        if member in self.lines:
            raise ConfigError(
                f"key {name.text} given twice",
                where=Location(self.path, name.line),
                found=f"first given on line {self.lines[member]}",
                next="keep one of the two",
            )
        self.lines[member] = name.line
        self._take()
        self._value(member)
