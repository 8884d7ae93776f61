"""Verbs that prove and explain: they write nothing but what a user names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ssmgen.cli.app import Json, Specs, app, example, print_json


@app.command(epilog=example("ssmgen verify nemotron_h_8b --examples 4"))
def verify(  # noqa: PLR0913, PLR0917 - one option a parameter
    spec: Specs = None,
    device: Annotated[str, typer.Option(help="cpu: the interpreter; cuda: this GPU.")] = "cpu",
    archive: Annotated[
        Path | None, typer.Option(help="Launch the cubins of ssmgen compile; needs --device cuda.")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="Calls a model.")] = 8,
    seed: Annotated[int, typer.Option(help="Which calls are drawn.")] = 0,
    problem: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE,…", help="These, instead of drawn ones.")
    ] = None,
    compiling: Annotated[bool, typer.Option("--compile/--no-compile", help="On the CPU, also compile.")] = True,
    as_json: Json = False,
) -> None:
    """Run drawn calls and compare with the fp64 recurrence: exit 1 where one is wrong or breaks a rule of cuTile.

    A --problem that describes a model, and not only a call, needs no SPEC.
    """
    from ssmgen.verify import report

    request = report.Request(tuple(spec or ()), device, archive, examples, seed, tuple(problem or ()), compiling)
    rows = report.run(request)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        report.show(rows)
    if any(row.failure for row in rows):
        raise typer.Exit(1)


@app.command(epilog=example("ssmgen certify mamba_chunk_scan_combined"))
def certify(
    operator: Annotated[
        list[str] | None, typer.Argument(metavar="OPERATOR", help="Names of operators; default: all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder: also write a certificate an operator.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show that the checker can tell right from wrong: exit 1 where a kernel without one of its terms would pass.

    Needs torch, and no GPU.
    """
    from ssmgen.check import certificates

    made = certificates.run(operator or [], output)
    if as_json:
        print_json([each.as_json() for each in made])
    else:
        certificates.show(made)
    if not all(each.certified for each in made):
        raise typer.Exit(1)


@app.command(epilog=example("ssmgen explain nemotron_h_8b"))
def explain(spec: Annotated[str, typer.Argument(metavar="SPEC")], as_json: Json = False) -> None:
    """Print what each stage costs, which route serves which shape, and why a schedule was refused."""
    from ssmgen import explain as explaining
    from ssmgen import repository

    (loaded,) = repository.open_specs([spec]).loaded
    report = explaining.explain(loaded.spec, loaded.lock)
    if as_json:
        print_json(explaining.data(report))
    else:
        from ssmgen import explain_view, table

        table.console().print(explain_view.view(report))
