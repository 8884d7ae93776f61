"""Verbs that write: specs, locks, kernels, cubins, bundles, a repository's files."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssmgen.cli.app import Jobs, Json, Output, Specs, Targets, app, example, print_json

if TYPE_CHECKING:
    from ssmgen.fileset import Changes
    from ssmgen.repository import Check, Work

# of one file's diff, and of all: what is stale is usually stale everywhere, and a log should stay readable
DIFF_LINES = 40
ALL_DIFF_LINES = 200


@app.command(epilog=example("ssmgen new config.json --tp 2"))
def new(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="The model's own config.json.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The spec to write: specs/NAME.yaml.")] = None,
    tp: Annotated[int, typer.Option(help="GPUs that share the model by tensor parallelism.")] = 1,
    name: Annotated[str | None, typer.Option(help="The model's name; default: from the file.")] = None,
    target: Targets = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a spec that differs.")] = False,
) -> None:
    """Write a spec and its lock, with derived schedules, from a model's config.json."""
    from ssmgen import repository

    request = repository.Request(config, output, tp, name, tuple(_targets(target or ["sm_90"])), force)
    for line in repository.new(request):
        print(line)


@app.command(epilog=example("ssmgen lock nemotron_h_8b"))
def lock(
    spec: Specs = None,
    rederive: Annotated[bool, typer.Option("--rederive", help="Derive anew what was derived; measured stays.")] = False,
) -> None:
    """Complete the locks: keep every schedule that fits, derive those that are missing."""
    from ssmgen import repository

    for line in repository.relock(spec or [], rederive):
        print(line)


@app.command(epilog=example("ssmgen generate --check"))
def generate(
    spec: Specs = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file differs.")] = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Write the kernels of every spec, or of the given ones; with --check, find what has drifted."""
    from ssmgen import repository

    work = repository.open_specs(spec or [], output)
    if check:
        report = repository.check(work)
        _report(report, as_json)
        if report.drifts:
            raise typer.Exit(1)
    else:
        _written(work, repository.write(work), as_json)
    _note(work)


def _note(work: Work) -> None:
    if work.note:
        print(f"note: {work.note}", file=sys.stderr)


def _written(work: Work, changes: Changes, as_json: bool) -> None:
    if as_json:
        print_json({"root": str(work.root), **asdict(changes)})
        return
    for path in changes.removed:
        print(f"removed {work.root / path}")
    for path in changes.left:
        print(f"note: {work.root / path} was not made by ssmgen and is left alone", file=sys.stderr)
    print(f"{work.root}: {len(changes.written)} files written, {changes.unchanged} already as generated")


def _report(report: Check, as_json: bool) -> None:
    if as_json:
        drifts = [asdict(drift) for drift in report.drifts]
        print_json({"clean": not drifts, "files": report.files, "drifts": drifts, "mend": report.mend or None})
    else:
        _print_drifts(report)


def _print_drifts(report: Check) -> None:
    left = ALL_DIFF_LINES
    for drift in report.drifts:
        print(f"{report.root / drift.path}: {drift.kind}: {drift.reason}")
        lines = drift.diff.splitlines()
        shown = min(len(lines), DIFF_LINES, left)
        left -= shown
        for line in lines[:shown]:
            print(f"  {line}")
        if len(lines) > shown > 0:
            print(f"  ... {len(lines) - shown} more lines")
    if not report.drifts:
        print(f"{report.root}: {report.files} files, all as generated")
        return
    kinds = [drift.kind for drift in report.drifts]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    print(f"{report.root}: {counts}, of {report.files} files\nmend it with: {report.mend}")


@app.command("compile", epilog=example("ssmgen compile nemotron_h_8b --target sm_90 -o cubins.tar.xz"))
def compile_(
    spec: Specs = None,
    target: Targets = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="An archive: a folder, or a .tar.xz.")] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compile kernels to cubins, without a GPU; what was compiled before comes from the cache."""
    from ssmgen import build_view, repository

    work = repository.open_specs(spec or [])
    repository.need_kernels(work)
    _ended(work, build_view.run(work, build_view.Request(tuple(_targets(target)), output, jobs, as_json)))


@app.command(epilog=example("ssmgen bundle nemotron_h_8b -o nemotron_kernels-0.1.0-py3-none-any.whl"))
def bundle(
    spec: Specs = None,
    target: Targets = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder, or NAME-VERSION-py3-none-any.whl; default: ssmgen_kernels."),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Pack cubins and their launcher as one Python package, for hosts with torch and cuda-bindings and no compiler."""
    from ssmgen import bundle as bundling
    from ssmgen import repository, table
    from ssmgen.build import Settings

    work = repository.open_specs(spec or [])
    repository.need_kernels(work)
    pairs = [(each.spec, each.lock) for each in work.loaded]
    settings = Settings(jobs=jobs, progress=table.progress)
    made = bundling.run(pairs, _targets(target), output or bundling.DEFAULT, settings)
    print_json(asdict(made)) if as_json else print(made)
    _note(work)


@app.command(epilog=example("ssmgen build nemotron_h_8b"))
def build(spec: Specs = None, target: Targets = None, jobs: Jobs = None, as_json: Json = False) -> None:
    """Do it all: generate the kernels, compile them, run one call of each model, and say in one table what was done."""
    from ssmgen import build_view, repository
    from ssmgen.compiler import check_compiler

    work = repository.open_specs(spec or [])
    # a build that cannot end writes nothing
    check_compiler()
    changes = repository.write(work)
    if not as_json:
        _written(work, changes, as_json)
    _ended(work, build_view.run(work, build_view.Request(tuple(_targets(target)), None, jobs, as_json, verify=True)))


def _ended(work: Work, well: bool) -> None:
    _note(work)
    if not well:
        raise typer.Exit(1)


def _targets(given: list[str] | None) -> list[str]:
    """The targets of a command line; none means each spec's own."""
    from ssmgen.targets import TARGETS, target

    return list(TARGETS) if given == ["all"] else [target(name).name for name in given or []]


@app.command(epilog=example("ssmgen init"))
def init() -> None:
    """Prepare a git repository: [tool.ssmgen], specs/, a pre-commit hook and a CI workflow. Overwrites nothing."""
    from ssmgen import init as initialise
    from ssmgen import table

    steps = initialise.run(Path.cwd())
    table.show("", ("file", "", ""), [(step.path, step.action, step.note) for step in steps])
    for step in steps:
        if step.text:
            print(f"\n{step.path}: {step.note}:\n\n{step.text}")
