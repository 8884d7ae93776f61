"""Strict access to the fields of one JSON object: every error names the file, the line, the field and its value.

It knows no architecture, and converts nothing: true is not 1, 64.0 and "64" are not 64.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssmgen.errors import ConfigError, Location
from ssmgen.located_yaml import Document, Key

# of what is out of scope: no change of the file makes it fit
ANOTHER_MODEL = "there are no kernels for this model; for another one run: ssmgen new CONFIG.json"


@dataclass(frozen=True)
class Number:
    """A size with its `origin`, for whoever reads the spec; `given` is false when no field of the file decided it."""

    value: int
    origin: str
    where: Location
    given: bool = True

    def remark(self, text: str) -> Number:
        """The same number, with one more fact about its origin."""
        return replace(self, origin=f"{self.origin}; {text}")


class Fields:
    """One JSON object of a config: `key` is its place in the document."""

    def __init__(self, document: Document, key: Key = ()) -> None:
        self.document = document
        self.key = key
        data: Any = document.data
        for part in key:
            data = data[part]
        self.data: dict[str, Any] = data

    def given(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def where(self, *name: str | int) -> Location:
        """The line of a field, or of the object that lacks it."""
        return self.document.where((*self.key, *name))

    def label(self, *name: str | int) -> str:
        """The field's full name: `text_config.layer_types[3]`."""
        text = ""
        for part in (*self.key, *name):
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
        return text

    def error(self, name: str, problem: str, *, expected: str, mend: str | None = None) -> ConfigError:
        """An error at a field, with its value or that it is missing; `mend` is what to do, if not to correct it."""
        given = name in self.data
        return ConfigError(
            f"{self.label(name)}: {problem}",
            where=self.where(name),
            found=show(self.data[name]) if given else "no such field",
            expected=expected,
            next=mend or f"{'correct' if given else 'add'} {self.label(name)}",
        )

    def conflict(self, first: str, second: str, *, expected: str) -> ConfigError:
        """Two fields that contradict each other, with both values and lines."""
        other = f"{self.label(second)} = {show(self.data.get(second))}"
        problem = f"contradicts {other} (line {self.where(second).line})"
        return self.error(first, problem, expected=expected, mend=f"remove {self.label(first)} or {self.label(second)}")

    def integer(self, name: str, default: int | None = None) -> Number:
        """A whole number > 0; absent, the class's `default`, and an error where the class has none."""
        if name not in self.data:
            if default is None:
                raise self.error(name, "missing", expected="a whole number > 0")
            return Number(default, f"{name} (class default)", self.where(name), given=False)
        value = self.data[name]
        if type(value) is not int or value <= 0:
            raise self.error(name, "not a size", expected="a whole number > 0")
        return Number(value, name, self.where(name))

    def either(self, names: Sequence[str], default: int | None = None) -> Number:
        """One number that goes by several names; the first is the current one. All that are given must agree."""
        found = [self.integer(name) for name in names if name in self.data]
        for other in found[1:]:
            if other.value != found[0].value:
                raise self.conflict(found[0].origin, other.origin, expected="one of the two, or both the same")
        return found[0] if found else self.integer(names[0], default)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false; absent, the class's `default`."""
        value = self.data.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "neither true nor false", expected="true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string; None where it is absent or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "not a string", expected="a string")
        return value

    def object(self, name: str) -> Fields | None:
        """An object; None where it is absent or null."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "not an object", expected="{ … }")
        return Fields(self.document, (*self.key, name))

    def indices(self, name: str, total: int | None) -> list[int]:
        """Layer numbers from 0, each below `total`; empty where absent or null."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, "not a list", expected="a list of layer numbers")
        for i, item in enumerate(value):
            if type(item) is not int or item < 0 or (total is not None and item >= total):
                raise ConfigError(
                    f"{self.label(name, i)}: not the number of a layer",
                    where=self.where(name, i),
                    found=show(item),
                    expected="a whole number from 0" + ("" if total is None else f" to {total - 1}"),
                    next=f"correct {self.label(name, i)}",
                )
            if item in value[:i]:
                raise ConfigError(
                    f"{self.label(name, i)}: given twice",
                    where=self.where(name, i),
                    found=f"{item} also at {self.label(name, value.index(item))}",
                    expected="each layer once",
                    next="remove one of the two",
                )
        return value


def show(value: object) -> str:
    """A field's value for an error text, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= 60:
        return text
    return f"a list of {len(value)}" if isinstance(value, list) else text[:57] + "..."


def derived(value: int, origin: str, *parts: Number) -> Number:
    """A number computed from `parts`; its place is that of the first."""
    return Number(value, origin, parts[0].where, any(part.given for part in parts))
