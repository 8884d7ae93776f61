"""What a person sees: tables on stdout, progress on stderr and only where somebody watches it.

It decides no content and is imported only when something is about to be shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# rich takes 80 columns for a pipe, and would fold a table that a log has room for
PIPE_WIDTH = 160


class Step(Protocol):
    """Told after each finished piece of work, with a word on what it was."""

    def __call__(self, what: str) -> None: ...


def console() -> Console:
    """Stdout, unwrapped where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table on stdout; a column of numbers is right-aligned."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        numbers = all(row[i].replace(".", "", 1).removesuffix(" s").strip().isdigit() for row in rows)
        table.add_column(column, justify="right" if rows and numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


@contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """A progress bar on stderr while the block runs; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, last="")

        def step(what: str) -> None:
            bar.update(task, advance=1, last=what)

        yield step
