"""JSON with the line of every key: duplicate keys are errors, and Infinity is read as the field's tools write it.

It knows no architecture; `fields` gives typed access.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ssmgen import paths
from ssmgen.errors import ConfigError, Location
from ssmgen.located_yaml import Document, Key, decoded

_CONFIG = "a model's config.json"
_PATH = "give the model's config.json: ssmgen new PATH/config.json"
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
        raise ConfigError("no such file", where=path, found=paths.beside(path), expected=_CONFIG, next=_PATH) from None
    except IsADirectoryError:
        raise ConfigError(
            "a folder, not a file",
            where=path,
            found=", ".join(sorted(p.name for p in path.iterdir())[:6]) or "an empty folder",
            expected=_CONFIG,
            next=f"ssmgen new {path / 'config.json'}" if (path / "config.json").is_file() else _PATH,
        ) from None
    except OSError as e:
        raise ConfigError(
            "cannot be read", where=path, found=e.strerror, expected=_CONFIG, next="check its permissions"
        ) from None
    if content.startswith(_BOM):
        raise ConfigError(
            "starts with a byte order mark",
            where=Location(str(path), 1),
            found="bytes ef bb bf",
            expected="UTF-8 without one",
            next="save the file again as plain UTF-8",
        )
    return parse(decoded(content, str(path), ConfigError), str(path)), content


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
            expected=f"{_CONFIG}, whole",
            next="download the file again" + ("" if ended else ", or correct that line"),
        ) from None
    # Python tells no line of these two
    except RecursionError:
        raise _not_json(path, "brackets nested too deeply", "a few levels") from None
    except ValueError as e:
        raise _not_json(path, e, "numbers that Python reads") from None
    if not isinstance(data, dict):
        raise ConfigError(
            "not a JSON object", where=Location(path, 1), found=_kind(data), expected=f"{_CONFIG}: {{ … }}", next=_PATH
        )
    return Document(path, data, lines)


def _not_json(path: str, found: object, expected: str) -> ConfigError:
    where = Location(path, 1)
    return ConfigError("not valid JSON", where=where, found=found, expected=expected, next="download the file again")


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
                expected="each key once",
                next="keep one of the two",
            )
        self.lines[member] = name.line
        self._take()
        self._value(member)
