"""specs/M.yaml -> Spec: strictly typed, closed, versioned; every error names the file and the line.

It knows no schedule (`lock` does) and no template.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, ValidationError

from ssmgen import located_yaml, paths
from ssmgen.errors import Location, SpecError, SsmgenError, ViolationError, then_run
from ssmgen.located_yaml import Document, Key
from ssmgen.ops import gated_delta_rule_packed_decode as gdn
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Closed, named
from ssmgen.targets import TARGETS

SCHEMA = 1
M = TypeVar("M", bound=Closed)
_NOT_HERE = {
    "chunk": "remove it: the chunk is the schedule's and never changes the result; it is in the lock, under plan",
    "chunk_size": "remove it: the chunk is the schedule's and never changes the result; it is in the lock, under plan",
}

_CONSTANTS = {"True": True, "False": False, "None": None}


def _target(value: str) -> str:
    if value not in TARGETS:
        raise ViolationError("unknown target", found=repr(value), expected=f"one of {', '.join(TARGETS)}")
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
    if not path.exists():
        raise SpecError(
            "no such file",
            where=path,
            found=paths.beside(path),
            expected="a spec",
            next=f"give another path, or make it: ssmgen new CONFIG.json -o {shlex.quote(str(path))}",
        )
    with _then_generate(path):
        return _checked(located_yaml.read(path), path)


def _then_generate(path: Path) -> AbstractContextManager[None]:
    return then_run(f"ssmgen generate {shlex.quote(str(path))}")


def loads(text: str, path: Path) -> Spec:
    """The spec in `text`, which is or will be the file `path`; SpecError as `load`."""
    with _then_generate(path):
        return _checked(located_yaml.parse(text, str(path)), path)


def _checked(document: Document, path: Path) -> Spec:
    if document.data is None:
        raise SpecError(
            "an empty file",
            where=Location(str(path), 1),
            found="no key",
            expected=f"the keys {', '.join(_keys(Spec, ()))}",
            next=f"have it written: ssmgen new CONFIG.json --force -o {shlex.quote(str(path))}",
        )
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
        raise SpecError(
            "operators: none given",
            where=document.where(("operators",)),
            found="no operator",
            expected=f"at least one of {', '.join(_keys(Operators, ()))}",
            next="add the operator of the model's layers",
        )
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
        names = [part for part in key if isinstance(part, str)]
        violation = _violation(first, model, key)
        raise error(
            f"{'.'.join(map(str, key)) or 'the file'}: {violation}",
            where=document.where((*key, *violation.key)),
            found=violation.found,
            expected=violation.expected,
            next=violation.next or f"change {names[-1] if names else 'the file'}",
        ) from None


def _violation(first: Any, model: type[Closed], key: Key) -> ViolationError:
    """pydantic's account of the first thing wrong, in the words of a spec."""
    match first["type"]:
        case "value_error":
            error: ViolationError = first["ctx"]["error"]
            return error
        case "extra_forbidden":
            known = _keys(model, first["loc"][:-1])
            near = difflib.get_close_matches(str(key[-1]), known, n=1)
            expected = f"{near[0]}, the nearest known key" if near else f"one of {', '.join(known)}"
            mend = f"write {near[0]} instead of {key[-1]}" if near else f"remove {key[-1]}"
            mend = _NOT_HERE.get(str(key[-1]), mend)
            return ViolationError(
                "unknown key", found=f"{key[-1]}: {_yaml(first['input'])}", expected=expected, next=mend
            )
        case "missing":
            found = ", ".join(map(str, first["input"])) or "no key"
            expected = f"the keys {', '.join(_keys(model, first['loc'][:-1]))}"
            return ViolationError("missing", found=found, expected=expected, next=f"add {key[-1]}")
        case _:
            why = _why(model, first["loc"])
            expected = re.sub(r"\b(True|False|None)\b", lambda m: _yaml(_CONSTANTS[m[0]]), first["msg"])
            expected = re.sub(r"^Input should be |^a valid (?=dictionary)", "", expected)
            return ViolationError(f"not valid{why and f': {why}'}", found=_yaml(first["input"]), expected=expected)


def _yaml(value: Any) -> str:
    """A value as a spec spells it, if it is a scalar."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return repr(value) if isinstance(value, str) else json.dumps(value, default=str)


def _why(model: type[Closed], loc: tuple[str | int, ...]) -> str:
    """Why the key at `loc` is restricted as it is, where that is not plain."""
    fields = _model_at(model, loc[:-1]).model_fields
    return (fields[str(loc[-1])].description or "") if loc and loc[-1] in fields else ""


def _keys(model: type[Closed], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the part of `model` at `loc` knows."""
    return [field.alias or name for name, field in _model_at(model, loc).model_fields.items()]


def _model_at(model: type[Closed], loc: tuple[str | int, ...]) -> type[Closed]:
    """The part of `model` at `loc`."""
    for part in loc:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        # anything else is a key of a mapping, or an item of a list, of one model
        inner = _closed(field.annotation) if field else None
        model = inner or model
    return model


def _closed(annotation: Any) -> type[Closed] | None:
    """The model in an annotation such as `dict[str, Route] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Closed):
        return annotation
    return next((found for part in get_args(annotation) if (found := _closed(part))), None)
