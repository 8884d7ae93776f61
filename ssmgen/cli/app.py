"""The command itself: how errors end it, and the options that verbs share; the verbs are beside it.

Each verb calls one function of the module that does the work; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ssmgen.errors import Interrupted, SsmgenError


class _Group(TyperGroup):
    """Turns ssmgen's errors into one message and an exit code; a traceback means a defect of ssmgen's own."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _told():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        with _told():
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except SsmgenError as e:
        sys.stdout.flush()
        print(f"error: {e}", file=sys.stderr)
        raise typer.Exit(e.exit_code) from None
    except KeyboardInterrupt:
        print(f"\nerror: {Interrupted()}", file=sys.stderr)
        raise typer.Exit(Interrupted.exit_code) from None


app = typer.Typer(
    cls=_Group,
    help="From a state-space model's config.json to specialised, committed, verified cuTile GPU kernels.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Specs = Annotated[list[str] | None, typer.Argument(metavar="SPEC", help="Names of specs, or paths; default: all.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Instead of the project's generated folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Targets = Annotated[list[str] | None, typer.Option("--target", help="Such as sm_90, or all; may be repeated.")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Compilers at a time; default: one a CPU.")]


def example(text: str) -> str:
    """What a verb's help ends with."""
    return f"Example: {text}"


def print_json(data: Any) -> None:
    """For scripts, on stdout."""
    import json

    print(json.dumps(data, indent=2))
