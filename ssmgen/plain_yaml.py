"""The YAML that ssmgen itself writes, read ten times faster than a full parser does: block mappings of plain scalars.

It refuses nothing: whatever it is not sure of is None, and left to a full parser, which also words the errors. It must
agree with that parser on everything else; a property test says so.
"""

from __future__ import annotations

import re
from typing import Any

_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_BLANK = re.compile(r" *(#.*)?")
_LINE = re.compile(rf"( *)({_WORD}):(?: +(\S.*?))? *(?: #.*)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?")
_QUOTED = re.compile(r'"([ !#-\[\]-~]*)"')
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# 64 hex digits are a number only if they are all digits but for one e
_DIGEST = re.compile(r"(?=[0-9e]*[a-df])[0-9a-f]{64}")
_PAIR = re.compile(rf' *({_WORD}): +("[^"\\]*"|[^\s"{{}}\[\],:#]+) *')
_ITEM = re.compile(r' *("[^"\\]*"|[^\s"{}\[\],:#]+) *')
_CONSTANTS: dict[str, Any] = {"true": True, "false": False}
# words that one or another version of YAML takes for something else
_DOUBTFUL = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


class _UnsureError(Exception):
    """Not surely what a full parser would make of it."""


Key = tuple[str | int, ...]


def parse(text: str) -> tuple[dict[str, Any], dict[Key, int]] | None:
    """The mapping in `text` and the 1-based line of every key path, or None for YAML that is not this plain."""
    if not text.isascii() or not text.replace("\n", "").isprintable():
        return None
    try:
        return _parse(text.split("\n"))
    except _UnsureError:
        return None


def _parse(lines: list[str]) -> tuple[dict[str, Any], dict[Key, int]]:
    root: dict[str, Any] = {}
    places: dict[Key, int] = {}
    # (indent, mapping, path) of every mapping that is open; a new one's indent is known at its first key
    open_mappings: list[tuple[int, dict[str, Any], Key]] = [(0, root, ())]
    opened: tuple[dict[str, Any], Key] | None = None
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if _BLANK.fullmatch(line):
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise _UnsureError
        indent, name, value = len(match[1]), match[2], match[3]
        if opened:
            if indent <= open_mappings[-1][0]:
                raise _UnsureError
            open_mappings.append((indent, *opened))
            opened = None
        while open_mappings and indent < open_mappings[-1][0]:
            open_mappings.pop()
        if not open_mappings or indent != open_mappings[-1][0]:
            raise _UnsureError
        _, mapping, path = open_mappings[-1]
        key = (*path, name)
        _place(places, key, at)
        if value is None:
            mapping[name] = {}
            opened = mapping[name], key
        elif value[0] in "{[":
            mapping[name], at = _flow(lines, at, value, key, places)
        else:
            mapping[name] = _scalar(value)
    if opened or not root:
        raise _UnsureError
    places[()] = min(places.values())
    return root, places


def _place(places: dict[Key, int], key: Key, line: int) -> None:
    if key in places:
        raise _UnsureError
    places[key] = line


def _flow(lines: list[str], at: int, text: str, key: Key, places: dict[Key, int]) -> tuple[Any, int]:
    """A flow mapping or list of scalars that begins on line `at` with `text`; mappings may span lines."""
    mapping: dict[str, Any] = {}
    items: list[Any] = []
    is_mapping = text[0] == "{"
    close, pattern = ("}", _PAIR) if is_mapping else ("]", _ITEM)
    rest = text[1:]
    while True:
        ended = rest.endswith(close)
        parts = (rest[:-1] if ended else rest).rstrip(" ")
        if not ended and not parts.endswith(","):
            raise _UnsureError
        for part in parts.removesuffix("" if ended else ",").split(","):
            match = pattern.fullmatch(part)
            if not match:
                raise _UnsureError
            if is_mapping:
                _place(places, (*key, match[1]), at)
                mapping[match[1]] = _scalar(match[2])
            else:
                _place(places, (*key, len(items)), at)
                items.append(_scalar(match[1]))
        if ended:
            return mapping if is_mapping else items, at
        if at == len(lines) or not lines[at].startswith(" "):
            raise _UnsureError
        rest = lines[at].strip(" ")
        at += 1


def _scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= 40 and (match := _NUMBER.fullmatch(text)):
        return float(text) if match[1] else int(text)
    if match := _QUOTED.fullmatch(text):
        return match[1]
    if (_PLAIN.fullmatch(text) and text.lower() not in _DOUBTFUL) or _DIGEST.fullmatch(text):
        return text
    raise _UnsureError
