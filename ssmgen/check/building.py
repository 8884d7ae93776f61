"""The stage that compiles: a candidate's kernels to cubins, from nothing that an earlier one left.

What an edit of a kernel makes the compiler refuse, or the manifest no longer describe, is a finding, not an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ssmgen import ahead, build, pack
from ssmgen.cache import Cache
from ssmgen.check.process import Lost, Package
from ssmgen.check.verdict import Finding, Stage
from ssmgen.compiler import check_compiler
from ssmgen.errors import SsmgenError


def compiled(package: Package, targets: Sequence[str], folder: Path, cache: Path | None = None) -> Package:
    """The package with its cubins, which are put into `folder`, a new one or empty, beside an empty cache.

    Raises Lost with what the compiler refuses, and CompilerError where there is no compiler. `cache` is for who
    compiles many candidates of his own at once.
    """
    compiler = check_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        jobs = ahead.jobs_of(package.folder, targets)
        made = build.compile_jobs(jobs, compiler, build.Settings(cache=Cache(cache or folder / "cache")))
    except SsmgenError as e:
        raise Lost(Finding(Stage.BUILD, str(e).replace("\n", " "))) from None
    archive = folder / "cubins"
    pack.write_archive(archive, str(compiler), [build.entry(each) for each in made])
    return replace(package, archive=archive)
