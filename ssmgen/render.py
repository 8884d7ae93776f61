"""Templates to text: the one strict Jinja environment, in which a missing or odd value is an error.

A context is a frozen dataclass; nothing here knows what is in it.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, meta
from jinja2.ext import Extension

from ssmgen import paths
from ssmgen.errors import Location, RenderError

# a comment to Python, a statement to Jinja, so that a template is itself valid Python
_LINE_STATEMENT = re.compile(r"^[ \t]*# %[ \t]+(.*?)[ \t]*$", re.MULTILINE)


class _LineStatements(Extension):
    """`# % if x` as a whole-line statement; Jinja's own line statements swallow the blank lines that follow them."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return _LINE_STATEMENT.sub(r"{% \1 %}", source)


def _printable(value: Any) -> Any:
    """What may be printed into a kernel: int, bool, finite float, str."""
    if isinstance(value, Undefined):
        return str(value)
    if type(value) in (int, bool, str) or (type(value) is float and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be printed: only int, bool, finite float and str")


@cache
def environment(folder: Path | None = None) -> Environment:
    """The environment over `folder`, by default ssmgen's own templates."""
    return Environment(
        loader=FileSystemLoader(folder or paths.templates_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_printable,
        extensions=[_LineStatements],
        auto_reload=False,
    )


def render(template: str, context: Any, folder: Path | None = None) -> str:
    """The text of `template` with the fields of the dataclass `context` as its names.

    Raises RenderError with the template's file and line for a name the context lacks or a value that cannot be printed.
    """
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    try:
        return environment(folder).get_template(template).render(values)
    except TemplateSyntaxError as e:
        where = Location(e.name or template, e.lineno)
        raise RenderError("not a valid template", where=where, found=e.message) from None
    except (TemplateError, TypeError, AttributeError) as e:
        raise RenderError(f"{type(context).__name__} does not fit", where=_line(template, e), found=e) from e


def _line(template: str, error: BaseException) -> Location:
    """The innermost template line on the way to `error`; Jinja rewrites the traceback to its own files."""
    place = Location(template)
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.suffix == ".jinja":
            place = Location(file.name if file.name.startswith("_") else template, trace.tb_lineno)
        trace = trace.tb_next
    return place


@cache
def closure(template: str, folder: Path | None = None) -> dict[str, str]:
    """`template` and every template it includes or imports: name -> source, sorted by name."""
    env = environment(folder)
    found: dict[str, str] = {}
    waiting = [template]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            source = env.loader.get_source(env, name)[0] if env.loader else ""
            found[name] = source
            waiting += [n for n in meta.find_referenced_templates(env.parse(source, name)) if n]
        except TemplateError as e:
            raise RenderError("cannot be read", where=name, found=e) from None
    return dict(sorted(found.items()))


@cache
def closure_digest(template: str, folder: Path | None = None) -> str:
    """sha256 over the names and texts of the closure."""
    digest = hashlib.sha256()
    for name, source in closure(template, folder).items():
        digest.update(f"{name}\0{source}\0".encode())
    return digest.hexdigest()


def free_names(template: str, folder: Path | None = None) -> set[str]:
    """The names that `template` and its includes take from the context.

    An imported file holds macros, which see only their arguments: a free name of one is an error when it is called.
    """
    env = environment(folder)
    return {
        name
        for source_name, source in closure(template, folder).items()
        for name in meta.find_undeclared_variables(env.parse(source, source_name))
    }
