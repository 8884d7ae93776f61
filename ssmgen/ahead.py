"""Compiles a generated package as it lies on disk, edited or not, into an archive in memory: before the first request.

What its kernels are promised is in the package's MANIFEST.json; the launcher checks every promise, whoever wrote it.
It generates nothing and writes nothing but the cache of compiled kernels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ssmgen import build, pack, signatures
from ssmgen.build import Job, Settings
from ssmgen.compiler import check_compiler
from ssmgen.errors import CompilerError, LaunchError, SpecError
from ssmgen.generate import Kernel
from ssmgen.naming import KernelId
from ssmgen.ops.mamba_chunk_scan_combined import Shape
from ssmgen.runtime.archive import Archive

MANIFEST = "MANIFEST.json"


def archive(directory: Path, targets: Sequence[str], settings: Settings | None = None) -> Archive:
    """The cubins of the package in `directory` for those of `targets` that it has kernels for.

    Raises LaunchError where the compiler, the manifest or a kernel's file is missing, or no target is the package's;
    CompilerError for a kernel that cuTile refuses.
    """
    jobs = jobs_of(directory, targets)
    try:
        compiler = check_compiler()
    except CompilerError as e:
        more = 'or launch what `ssmgen compile` made elsewhere: backend="cubin", archive=PATH'
        raise LaunchError(e.what, found=e.found, expected=e.expected, next=f"{e.next}, {more}") from None
    compiled = build.compile_jobs(jobs, compiler, settings)
    return Archive(directory, pack.archive_files(str(compiler), [build.entry(c) for c in compiled]))


def jobs_of(directory: Path, targets: Sequence[str]) -> list[Job]:
    """What there is to compile."""
    found = _kernels(directory)
    jobs = [job for job in found if job.kernel.id.target in targets]
    if not jobs:
        own = sorted({job.kernel.id.target for job in found})
        raise LaunchError(
            f"{directory.name} has no kernels for this machine's GPU",
            where=directory,
            found=", ".join(targets) or "no GPU",
            expected="one of " + ", ".join(own),
            next="add its target to the spec's targets, then ssmgen generate; without a GPU: interpret=True",
        )
    return jobs


def _kernels(directory: Path) -> list[Job]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        shapes = {name: Shape.model_validate(sizes) for name, sizes in manifest["shapes"].items()}
        named = [(KernelId.parse(each["id"]), each["parameters"]) for each in manifest["kernels"]]
        return [_job(directory, name, parameters, shapes[name.operator]) for name, parameters in named]
    except OSError as e:
        raise _unusable(path, "cannot be read", f"{e.strerror}: {e.filename}") from None
    except ValidationError as e:
        raise _unusable(path, "holds no shape of a model", str(e).splitlines()[0]) from None
    except (KeyError, TypeError, AttributeError, ValueError, SpecError) as e:
        raise _unusable(path, "does not say how its kernels are compiled", f"{type(e).__name__}: {e}") from None


def _job(directory: Path, name: KernelId, parameters: Sequence[str], shape: Shape) -> Job:
    file = directory.joinpath(name.target, name.operator, name.route, f"{name.stage}.py")
    text = file.read_bytes().decode("utf-8")
    # a package may lie under another name than its model's: the launcher goes by the folder
    here = replace(name, model=directory.name)
    kernel = Kernel(here, text, name.stage, tuple(signatures.from_text(line) for line in parameters))
    return Job(kernel, shape, f"mend {file}, or remake it: ssmgen generate {name.model}")


def _unusable(path: Path, what: str, found: str) -> LaunchError:
    return LaunchError(
        f"{MANIFEST} {what}",
        where=path,
        found=found,
        expected="the package as ssmgen generates it, whole",
        next=f"ssmgen generate {path.parent.name}",
    )
