"""The report of `explain` as text and tables: locked targets in full, the others in a line a route.

It computes nothing but sums of what the report holds.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ssmgen.explain import Count, Report, RouteReport, StageReport, TargetReport

LEGEND = """\
bytes: what a stage moves if it reads and writes each of its arrays once; FLOPs: of its matrix products.
floor: every input that is as long as the prompt read once, out written once, and the vectors; states: initial and final
states, where a call has them; workspace: allocated between the stages. N: packed sequences, of all rows together.
"""


def view(report: Report) -> Group:
    """Everything of `report` that a person reads."""
    sizes = ", ".join(f"{name} {size}" for name, size in report.shape.items())
    parts: list[RenderableType] = [Text(f"{report.model} ({report.source}): {report.operator}", "bold"), Text(sizes)]
    if report.note:
        return Group(*parts, Text(report.note))
    parts += [Text(), _served(report.served, "Route of a call: the first that serves it")]
    if report.packed:
        counted = "; N: sequences in a single row" if any("N=" in point for point in report.packed) else ""
        parts += [Text(), _served(report.packed, f"Route with seq_idx or cu_seqlens{counted}")]
    parts += [Text(), Text("As generated:"), Text(report.dispatcher), Text(), Text(LEGEND.rstrip())]
    for target in report.targets:
        if target.locked:
            for route in target.routes:
                parts += _route(target, route)
    rest = [target for target in report.targets if not target.locked]
    if rest:
        parts += [Text(), _others(rest)]
    return Group(*parts)


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _served(served: dict[str, str | None], title: str) -> Table:
    tokens = sorted({_sizes(point)["T"] for point in served})
    table = _table("", *(f"T={t}" for t in tokens), title=title)
    # rows that are one sequence each, then a single row of several
    rows = {point.rpartition(", ")[0]: _sizes(point) for point in served}
    for row in sorted(rows, key=lambda name: (rows[name].get("N", 0), rows[name]["B"])):
        cells = [(f"{row}, T={t}" in served, served.get(f"{row}, T={t}")) for t in tokens]
        table.add_row(row, *((route or "none: refused") if known else "" for known, route in cells))
    return table


def _sizes(point: str) -> dict[str, int]:
    """`B=1, N=8, T=512` by name."""
    parts = (part.split("=") for part in point.split(", "))
    return {name: int(size) for name, size in parts}


def _route(target: TargetReport, route: RouteReport) -> list[RenderableType]:
    head = f"{target.name} ({target.gpu}), route {route.name}: when {route.when}"
    if route.refused:
        return [Text(), Text(head, "bold"), Text(f"refused: {route.refused}")]
    how = f"plan {route.plan}, chunk {route.chunk}, segments {route.segments}, evidence: {route.evidence}"
    schedules = _table("stage", "grid", "schedule")
    for stage in route.stages:
        schedule = ", ".join(f"{name} {value}" for name, value in stage.schedule.items())
        schedules.add_row(stage.name, " x ".join(stage.grid), schedule)
    forms = _table("stage", "count", "closed form")
    for stage in route.stages:
        for label, count in _counts(stage):
            if count.formula != "0":
                forms.add_row(stage.name, label, count.formula)
    for label, count in (("floor", route.floor), ("states", route.states), ("workspace", route.workspace)):
        forms.add_row("call", f"{label} bytes", count.formula)
    how += f"\n{route.counted}" if route.counted else ""
    parts = [Text(), Text(head, "bold"), Text(how), schedules, Text(), forms, Text(), _values(route)]
    return parts + _refusals(route)


def _counts(stage: StageReport) -> tuple[tuple[str, Count], ...]:
    return (("bytes", stage.bytes), ("FLOPs", stage.flops), ("exponentials", stage.exponentials))


def _values(route: RouteReport) -> RenderableType:
    if not route.floor.at:
        return Text("serves none of the shapes asked for")
    table = _table("shape", "stage", "MB", "/ floor", "GFLOP", "FLOP/byte", "M exponentials")
    for column in table.columns[2:]:
        column.justify = "right"
    for point, floor in route.floor.at.items():
        table.add_row(point, "floor", f"{floor / 1e6:.2f}", "1.00", "", "", "")
        counts = [(s.name, s.bytes.at[point], s.flops.at[point], s.exponentials.at[point]) for s in route.stages]
        total = ("all", sum(c[1] for c in counts), sum(c[2] for c in counts), sum(c[3] for c in counts))
        for name, moved, flops, exponentials in (*counts, total):
            figures = (f"{moved / 1e6:.2f}", f"{moved / max(floor, 1):.2f}", f"{flops / 1e9:.3f}")
            table.add_row("", name, *figures, f"{flops / max(moved, 1):.1f}", f"{exponentials / 1e6:.2f}")
    return table


def _refusals(route: RouteReport) -> list[RenderableType]:
    table = _table("stage", "change", "refused because", title="Nearest refused schedules")
    for name, refusals in (("plan", route.refusals), *((stage.name, stage.refusals) for stage in route.stages)):
        for refusal in refusals:
            table.add_row(name, refusal.change, refusal.reason)
    return [Text(), table] if table.row_count else [Text("no neighbouring schedule is refused")]


def _others(targets: list[TargetReport]) -> Table:
    title = "Targets that the lock does not hold: derived, compiled on demand, never committed"
    table = _table("target", "route", "plan", "schedule or refusal", title=title)
    for target in targets:
        for route in target.routes:
            stages = "; ".join(
                f"{stage.name} {' '.join(str(value) for value in stage.schedule.values())}" for stage in route.stages
            )
            plan = f"{route.plan}, chunk {route.chunk}, segments {route.segments}"
            table.add_row(target.name, route.name, plan, f"refused: {route.refused}" if route.refused else stages)
    return table
