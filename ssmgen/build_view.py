"""What `ssmgen compile` and `build` print: one line a model and target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssmgen import table
from ssmgen.build import Row


def show(rows: Sequence[Row]) -> None:
    """The table of compiled kernels."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.target), []).append(row)
    # compiling proves nothing about the numbers, and only a device can run a cubin
    verified = "not run" if Path("/dev/nvidiactl").exists() else "no GPU here"
    lines = []
    for (model, target), group in groups.items():
        counts = [sum(row.how == how for row in group) for how in ("compiled", "cached", "refused")]
        size = sum(row.bytes for row in group) / 1024
        seconds = sum(row.seconds for row in group)
        lines.append([model, target, *map(str, counts), f"{size:.0f}", f"{seconds:.1f}", verified])
    columns = ("model", "target", "compiled", "cached", "refused", "KiB", "compiler s", "verified")
    table.show("kernels", columns, lines)
