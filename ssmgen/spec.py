"""specs/M.yaml -> Spec: strictly typed, closed, versioned; every error names the file and the line.

It knows no schedule (`lock` does) and no template.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, ValidationError

from ssmgen import located_yaml
from ssmgen.errors import SpecError, SsmgenError
from ssmgen.located_yaml import Document, Key
from ssmgen.ops import gated_delta_rule_packed_decode as gdn
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Closed, named
from ssmgen.targets import TARGETS

SCHEMA = 1
M = TypeVar("M", bound=Closed)
_NOT_HERE = {
    "chunk": "the chunk is the schedule's and never changes the result: it is in the lock, under plan",
    "chunk_size": "the chunk is the schedule's and never changes the result: it is in the lock, under plan",
}


def _target(value: str) -> str:
    if value not in TARGETS:
        raise ValueError(f"unknown target {value!r}; known: {', '.join(TARGETS)}")
    return value


class Model(Closed):
    """Where the numbers come from: a config.json (`config_sha256` of its bytes) or `source: table`."""

    name: Annotated[str, named("model")]
    source: str
    config_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    tensor_parallel: Annotated[int, Field(gt=0)] = 1


class Operators(Closed):
    """The operators of the model's layers, by name."""

    mamba_chunk_scan_combined: mamba2.Operator | None = None
    gated_delta_rule_packed_decode: gdn.Operator | None = None


class Spec(Closed):
    """What a model needs. Two specs are equal if they would generate the same code."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    model: Model
    operators: Operators
    targets: Annotated[list[Annotated[str, AfterValidator(_target)]], Field(min_length=1)]

    @property
    def digest(self) -> str:
        """sha256 of the spec's values: layout and comments of the file do not count."""
        return hashlib.sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()


def load(path: Path) -> Spec:
    """The spec in `path`; SpecError with file, line, key, what was found and what is right."""
    return _checked(located_yaml.read(path), path)


def loads(text: str, path: Path) -> Spec:
    """The spec in `text`, which is or will be the file `path`; SpecError as `load`."""
    return _checked(located_yaml.parse(text, str(path)), path)


def _checked(document: Document, path: Path) -> Spec:
    spec = validate(Spec, document)
    if spec.model.name != path.stem:
        raise SpecError(
            "model.name differs from the file's name",
            where=document.where(("model", "name")),
            found=spec.model.name,
            expected=path.stem,
            next=f"rename the file to {spec.model.name}.yaml, or the model to {path.stem}",
        )
    if spec.operators.mamba_chunk_scan_combined is None and spec.operators.gated_delta_rule_packed_decode is None:
        raise SpecError("operators: none given", where=document.where(("operators",)))
    return spec


def validate(model: type[M], document: Document, error: type[SsmgenError] = SpecError, prefix: Key = ()) -> M:
    """`document`'s data, at `prefix`, as `model`; the first violation is raised as `error` with its place."""
    data: Any = document.data
    for part in prefix:
        data = data[part]
    try:
        return model.model_validate(data)
    except ValidationError as e:
        errors = e.errors(include_url=False)
        # a misspelt key is also a missing one: the former says what to do
        first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
        loc = tuple(part for part in first["loc"] if isinstance(part, (str, int)))
        key: Key = (*prefix, *loc)
        raise error(
            _what(key, first),
            where=document.where((*key, *_named(first))),
            found=_found(first),
            expected=_expected(first, model),
            next=_NOT_HERE.get(str(key[-1])) if key and first["type"] == "extra_forbidden" else None,
        ) from None


def _named(first: Any) -> list[str]:
    """The key below its own that a constraint of several keys begins with: `groups = 7 must divide heads = 128`."""
    text = str(first["ctx"]["error"]) if first["type"] == "value_error" else ""
    named = re.match(r"[\w.]+(?= = )", text)
    return named[0].split(".") if named else []


def _what(key: Key, first: Any) -> str:
    name = ".".join(str(part) for part in key) or "the file"
    match first["type"]:
        case "extra_forbidden":
            return f"{name}: unknown key"
        case "missing":
            return f"{name}: missing"
        case "value_error":
            return f"{name}: {first['ctx']['error']}"
        case _:
            return f"{name}: not valid"


def _found(first: Any) -> str | None:
    if first["type"] in ("missing", "value_error"):
        return None
    value = first["input"]
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def _expected(first: Any, model: type[Closed]) -> str | None:
    match first["type"]:
        case "missing" | "value_error":
            return None
        case "extra_forbidden":
            known = _keys(model, first["loc"][:-1])
            close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
            return f"{close[0]}, the nearest known key" if close else f"one of {', '.join(known)}"
        case _:
            text: str = first["msg"].removeprefix("Input should be ")
            return text


def _keys(model: type[Closed], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the part of `model` at `loc` knows."""
    for part in loc:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        # anything else is a key of a mapping, or an item of a list, of one model
        inner = _closed(field.annotation) if field else None
        model = inner or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _closed(annotation: Any) -> type[Closed] | None:
    """The model in an annotation such as `dict[str, Route] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Closed):
        return annotation
    return next((found for part in get_args(annotation) if (found := _closed(part))), None)
