"""Compiles generated kernels to cubins, in parallel, without a GPU; what was compiled before comes from the cache.

It generates nothing (`generate` does), never imports cuda.tile itself, and writes archives only through `pack`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from ssmgen import generate, lock, pack, signatures
from ssmgen.cache import Cache
from ssmgen.compiler import CompilerInfo, check_compiler
from ssmgen.errors import CompilerError, Location, ScheduleError
from ssmgen.generate import Kernel
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.mamba_chunk_scan_combined import Shape
from ssmgen.spec import Spec
from ssmgen.workers import WORKER, Failed, Pool, Request

OPTIONS = ("-O3",)
TIMEOUT = 300.0

Step = Callable[[str], None]
Progress = Callable[[str, int], AbstractContextManager[Step]]


@dataclass(frozen=True)
class Job:
    """A kernel to compile: with the sizes its promises come from, and what to do where the compiler refuses it."""

    kernel: Kernel
    shape: Shape
    mend: str
    variants: tuple[str, ...] = signatures.VARIANTS
    options: tuple[str, ...] = OPTIONS


@dataclass(frozen=True)
class Compiled:
    """A kernel's cubin, which holds both variants; `seconds` is 0 for one from the cache."""

    job: Job
    cubin: bytes
    how: Literal["cached", "compiled"]
    seconds: float


@dataclass(frozen=True)
class Settings:
    """How to compile: worker processes (None: one a CPU), where cubins are kept, seconds a kernel may take."""

    jobs: int | None = None
    cache: Cache | None = None
    timeout: float = TIMEOUT
    progress: Progress = lambda what, total: nullcontext(lambda what: None)


@dataclass(frozen=True)
class Row:
    """One line of the table: a kernel, or with route and stage `*` all that a target was refused, and why."""

    model: str
    target: str
    route: str
    stage: str
    how: Literal["cached", "compiled", "refused"]
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""


def run(
    specs: Sequence[tuple[Spec, Lock]], targets: Sequence[str], archive: Path | None, settings: Settings
) -> list[Row]:
    """Compile the kernels of `specs` on `targets`, or on each spec's own; write them to `archive` if there is one.

    A schedule that a target cannot serve is a refused row. Raises CompilerError for a missing or mismatched compiler
    and for the first kernel that it refuses, OutputError if the archive or the cache cannot be written.
    """
    if archive is not None:
        pack.check_writable(archive)
    jobs: list[Job] = []
    rows: list[Row] = []
    for spec, known in specs:
        for target in targets or spec.targets:
            try:
                jobs += jobs_of(spec, known, target)
            except ScheduleError as e:
                rows.append(Row(spec.model.name, target, "*", "*", "refused", reason=e.what))
    compiler = check_compiler()
    compiled = compile_jobs(jobs, compiler, settings)
    if archive is not None:
        pack.write_archive(archive, str(compiler), [entry(c) for c in compiled])
    for c in compiled:
        of = c.job.kernel.id
        rows.append(Row(of.model, of.target, of.route, of.stage, c.how, c.seconds, len(c.cubin)))
    return rows


def jobs_of(spec: Spec, known: Lock, target: str) -> list[Job]:
    """The kernels of `spec` on `target`; raises ScheduleError where it cannot serve a schedule, locked or derived."""
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        return []
    full = {**lock.derive(spec, [target]), **known}
    jobs = []
    for kernel in generate.kernels(spec, known, [target]):
        schedule = full[target, mamba2.NAME, kernel.id.route].schedule
        own = schedule.stage(kernel.id.stage)
        values = {f.name: getattr(part, f.name) for part in (schedule.plan, own) for f in fields(part)}
        text = ", ".join(f"{k} {v}" for k, v in values.items())
        mend = f"its schedule on {target}, route {kernel.id.route}: {text}; change it in {kernel.id.model}.lock.yaml"
        jobs.append(Job(kernel, operator.shape, mend))
    return jobs


def check(spec: Spec, known: Lock, settings: Settings | None = None) -> None:
    """Compile the kernels of `spec` for its first target, unoptimised and in one variant, to see that they compile.

    Raises CompilerError for the first that cuTile refuses.
    """
    jobs = [
        replace(job, variants=(signatures.ALIGNED,), options=("-O0",)) for job in jobs_of(spec, known, spec.targets[0])
    ]
    compile_jobs(jobs, check_compiler(), settings)


def compile_jobs(jobs: Sequence[Job], compiler: CompilerInfo, settings: Settings | None = None) -> list[Compiled]:
    """Compile `jobs`, each distinct kernel once; the result is in their order.

    Raises CompilerError for the first that fails; what was compiled until then stays in the cache.
    """
    settings = settings or Settings()
    cache = settings.cache or Cache()
    keys = [key(job, compiler) for job in jobs]
    first = dict(zip(reversed(keys), reversed(jobs), strict=True))
    kept = {k: cubin for k in first if (cubin := cache.get(k))}
    todo = {k: first[k] for k in dict.fromkeys(keys) if k not in kept}
    fresh: dict[str, Compiled] = {}
    if todo:
        with settings.progress("compiling", len(todo)) as step:
            for k, cubin, seconds in _compile(todo, compiler, settings):
                cache.put(k, cubin)
                kept[k] = cubin
                fresh[k] = Compiled(todo[k], cubin, "compiled", seconds)
                step(todo[k].kernel.id.format())
    # of kernels that differ in nothing but their comments one is compiled, and the others are cached
    return [
        fresh[k] if k in fresh and fresh[k].job is job else Compiled(job, kept[k], "cached", 0.0)
        for k, job in zip(keys, jobs, strict=True)
    ]


def _compile(todo: dict[str, Job], compiler: CompilerInfo, settings: Settings) -> Iterator[tuple[str, bytes, float]]:
    # longest first: an output kernel begun last would be waited for alone
    order = sorted(todo, key=lambda k: (not todo[k].kernel.id.stage.endswith("output"), -len(todo[k].kernel.text)))
    requests = [(k, _request(todo[k], compiler)) for k in order]
    with Pool(min(settings.jobs or os.cpu_count() or 1, len(todo)), settings.timeout) as pool:
        for k, outcome in pool.run(requests):
            if isinstance(outcome.result, Failed):
                raise _refusal(todo[k], outcome.result)
            yield k, outcome.result, outcome.seconds


def _request(job: Job, compiler: CompilerInfo) -> Request:
    return {
        "path": f"{job.kernel.id.format()}.py",
        "text": job.kernel.text,
        "kernel": job.kernel.symbol,
        "target": job.kernel.id.target,
        "signatures": _signatures(job),
        "tileiras": str(compiler.tileiras),
        "options": job.options,
    }


def _signatures(job: Job) -> list[dict[str, Any]]:
    return [
        {
            "symbol": signatures.symbol(job.kernel.symbol, variant),
            "promises": [asdict(signatures.promises(p, variant, job.shape)) for p in job.kernel.parameters],
        }
        for variant in job.variants
    ]


def key(job: Job, compiler: CompilerInfo) -> str:
    """The sha256 of all that a cubin depends on; the title, comments and layout of the source are not among it."""
    made_from = [
        _code(job.kernel.text), job.kernel.symbol, _signatures(job), job.kernel.id.target, job.options,
        sorted(compiler.versions.items()), hashlib.sha256(WORKER.read_bytes()).hexdigest(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def _code(text: str) -> str:
    """`text` as it is compiled: cubins hold no lines and no names, so that a docstring changes nothing in them."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    if ast.get_docstring(tree, clean=False) is not None:
        del tree.body[0]
    return ast.dump(tree)


def entry(compiled: Compiled) -> pack.Entry:
    """A compiled kernel as an archive's index holds it."""
    kernel = compiled.job.kernel
    return pack.Entry(
        name=kernel.id.format(),
        cubin=compiled.cubin,
        symbols={v: signatures.symbol(kernel.symbol, v) for v in signatures.VARIANTS},
        parameters=tuple(signatures.as_json(p, compiled.job.shape) for p in kernel.parameters),
        source_sha256=hashlib.sha256(kernel.text.encode()).hexdigest(),
    )


def _refusal(job: Job, failed: Failed) -> CompilerError:
    kernel = job.kernel
    lines = kernel.text.splitlines()
    found = lines[failed.line - 1].strip() if 0 < failed.line <= len(lines) else None
    return CompilerError(
        f"cuTile does not compile this: {failed.error}",
        where=Location(f"{kernel.id.format()}.py", failed.line),
        found=found,
        next=job.mend,
    )
