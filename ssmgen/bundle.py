"""Makes a bundle: kernels, cubins and launcher as one Python package, for hosts without a compiler.

A folder, or a wheel of one; the same kernels always make the same bytes. What launches in it is `ssmgen.runtime`,
copied as it is. It is made from specs, as `ssmgen compile` is, never from what lies in generated/.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import keyword
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssmgen import build, cache, generate, lock, pack, wheel
from ssmgen.build import Settings
from ssmgen.compiler import check_compiler
from ssmgen.errors import OutputError, UsageError
from ssmgen.lock import Lock
from ssmgen.paths import PACKAGE
from ssmgen.runtime.bundled import CONTENTS, CUBINS, NEXT, PACKAGES, SCHEMA
from ssmgen.spec import Spec
from ssmgen.writing import uninterrupted

DEFAULT = Path("ssmgen_kernels")
RUNTIME = "_runtime"
NEEDED = ("ssmgen", "torch", "cuda")
REQUIRES = ("torch>=2.9", "cuda-bindings>=13")
_ANOTHER = "give another path with -o"


@dataclass(frozen=True)
class Summary:
    """What was made: `name` is what it is imported as, `bytes` the size of its files, unpacked."""

    path: str
    name: str
    models: tuple[str, ...]
    targets: tuple[str, ...]
    kernels: int
    bytes: int

    def __str__(self) -> str:
        made = f"{self.path}: {self.kernels} kernels for {', '.join(self.targets)}, {self.bytes / 2**20:.1f} MiB"
        return f"{made}\nfrom {self.name}.{self.models[0]} import mamba_chunk_scan_combined"


def run(specs: Sequence[tuple[Spec, Lock]], targets: Sequence[str], output: Path, settings: Settings) -> Summary:
    """Compile the kernels of `specs` for `targets`, or for each spec's own, and write the bundle to `output`.

    Raises UsageError for a name that cannot be imported or is taken, ScheduleError where a target cannot serve a spec,
    CompilerError for a missing compiler or a kernel that it refuses, OutputError where `output` cannot be written.
    """
    name, version = _name(output)
    _check_free(name, output)
    _check_writable(output)
    known = [_of_targets(spec, schedules, targets or spec.targets) for spec, schedules in specs]
    jobs = [job for spec, schedules in known for t in spec.targets for job in build.jobs_of(spec, schedules, t)]
    models = tuple(sorted({job.kernel.id.model for job in jobs}))
    if not models:
        raise UsageError("nothing to bundle: no spec has an operator with kernels", next="ssmgen new CONFIG.json")
    compiler = check_compiler()
    entries = [build.entry(compiled) for compiled in build.compile_jobs(jobs, compiler, settings)]
    files = {f"{CUBINS}/{name}": data for name, data in pack.archive_files(str(compiler), entries).items()}
    for path, text in generate.collect(known).files.items():
        files[f"{PACKAGES}/{path}"] = text.encode()
    for module in sorted((PACKAGE / "runtime").glob("*.py")):
        files[f"{RUNTIME}/{module.name}"] = module.read_bytes()
    served = tuple(sorted({job.kernel.id.target for job in jobs}))
    files |= {f"{model}.py": _MODEL.format(model=model).encode() for model in models}
    files["__init__.py"] = _init(models, served)
    files[CONTENTS] = _contents(files)
    if version is None:
        _write_folder(output, files)
    else:
        summary = f"Mamba-2 kernels of {', '.join(models)} for {', '.join(served)}"
        _write(output, wheel.pack(wheel.About(name, version, summary, REQUIRES), files))
    return Summary(str(output), name, models, served, len(jobs), sum(map(len, files.values())))


def _name(output: Path) -> tuple[str, str | None]:
    """What the bundle is imported as, and the version of a wheel, None of a folder."""
    if output.suffix == ".whl":
        return wheel.parse(output.name)
    name = output.resolve().name
    # names with two underscores are Python's own
    if not re.fullmatch(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(
            f"a bundle cannot be imported as {name!r}",
            found=f"-o {output}",
            expected="the name of a Python package, or NAME-VERSION-py3-none-any.whl",
            next=f"-o {DEFAULT}",
        )
    return name, None


def _check_free(name: str, output: Path) -> None:
    """Raise UsageError where `import name` means something else already: the bundle would hide it, or be hidden."""
    found = "a module of Python's standard library" if name in sys.stdlib_module_names else _installed(name)
    if found:
        raise UsageError(
            f"a bundle called {name!r} would stand in the way of another module, or be hidden by it",
            found=found,
            expected="a name that nothing else is imported by",
            next=f"-o {DEFAULT}, or another name",
        )


def _installed(name: str) -> str | None:
    """What `import name` finds here, but for an older bundle, or a folder of no package."""
    if name in NEEDED:
        return f"{name}, which is imported where bundles are made or serve"
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        # a module in sys.modules that says nothing of itself
        return f"the module {name}"
    if spec is None or spec.origin is None or (Path(spec.origin).parent / CONTENTS).is_file():
        return None
    return spec.origin


def _of_targets(spec: Spec, known: Lock, targets: Sequence[str]) -> tuple[Spec, Lock]:
    """The spec as if it had these targets; schedules that are not locked are derived."""
    of = spec.model_copy(update={"targets": list(targets)})
    return of, {**lock.derive(of, of.targets), **{key: entry for key, entry in known.items() if key[0] in targets}}


def _init(models: Sequence[str], targets: Sequence[str]) -> bytes:
    version = importlib.metadata.version("ssmgen")
    names = {"contents": CONTENTS, "packages": PACKAGES, "cubins": CUBINS, "next": NEXT}
    return _INIT.format(models=models, targets=targets, version=version, **names).encode()


def _contents(files: Mapping[str, bytes]) -> bytes:
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}
    return json.dumps({"schema": SCHEMA, "files": hashes}, indent=1).encode() + b"\n"


def _check_writable(path: Path) -> None:
    """Raise OutputError where the bundle could not be written, before minutes are spent on what to write."""
    if not path.parent.is_dir():
        raise OutputError("no such folder", where=path.parent, found=f"-o {path}", next=_ANOTHER)
    if path.suffix == ".whl":
        if path.is_dir():
            raise OutputError("is a folder", where=path, expected="a .whl file, or a name for one", next=_ANOTHER)
    elif path.exists() and not path.is_dir():
        raise OutputError("is a file", where=path, expected="a folder, or a name that ends in .whl", next=_ANOTHER)
    elif path.is_symlink():
        raise OutputError("is a link", where=path, expected="a folder, or a name for one", next=_ANOTHER)
    elif Path.cwd().is_relative_to(path.resolve()):
        raise OutputError("is the folder that this runs in", where=path.resolve(), expected="another", next=_ANOTHER)
    elif path.is_dir() and (foreign := _foreign(path)):
        found = ", ".join(foreign[:3])
        raise OutputError(
            "a folder with something else in it",
            where=path,
            found=found,
            expected="a bundle, or an empty folder",
            next=_ANOTHER,
        )


def _foreign(path: Path) -> list[str]:
    """The files in a folder that no bundle put there: all of them, where it is none."""
    files = {p.relative_to(path).as_posix() for p in path.rglob("*") if not p.is_dir() and "__pycache__" not in p.parts}
    try:
        listed = set(json.loads((path / CONTENTS).read_text(encoding="utf-8"))["files"]) | {CONTENTS}
    except (OSError, ValueError, KeyError, TypeError):
        listed = set()
    return sorted(files - listed)


def _write(path: Path, data: bytes) -> None:
    try:
        cache.replace(path, data)
    except OSError as e:
        raise OutputError("the bundle cannot be written", where=path, found=e.strerror or e) from None


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the files in place of what was there, all at once; nothing of an older bundle is left."""
    path = path.resolve()
    mark = secrets.token_hex(8)
    new, old = (path.with_name(f".{path.name}.{what}.{mark}") for what in ("new", "old"))
    try:
        for name, data in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(data)
        with uninterrupted():
            try:
                if path.exists():
                    path.rename(old)
                new.rename(path)
            finally:
                if old.exists() and not path.exists():
                    old.rename(path)
    except OSError as e:
        raise OutputError("the bundle cannot be written", where=path, found=e.strerror or e) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


_INIT = '''\
"""Compiled kernels, one module a model; made by ssmgen {version}. Needs torch and cuda-bindings, and no compiler.

A call that breaks what the kernels were compiled for raises LaunchError, which names the argument.
"""

import hashlib
import json
from pathlib import Path


def _check(root):
    """ImportError for the first file that is not as it was made, of those that open a model; a model checks its own."""
    name = "{contents}"
    try:
        for name, digest in json.loads((root / name).read_bytes())["files"].items():
            if not name.startswith(("{packages}/", "{cubins}/")):
                found = hashlib.sha256((root / name).read_bytes()).hexdigest()
                if found != digest:
                    raise ValueError("sha256 " + found + ", expected sha256 " + digest)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        what = str(root / name) + " of the bundle is missing or damaged"
        found = "\\n  found:    " + type(e).__name__ + ": " + str(e)
        raise ImportError(what + found + "\\n  next:     {next}", path=str(root / name)) from None


# before any of them is imported
_check(Path(__file__).resolve().parent)

from ._runtime.errors import LaunchError

__all__ = ["LaunchError", "MODELS", "TARGETS"]

MODELS = {models!r}
TARGETS = {targets!r}
'''
_MODEL = '''\
"""The operators of {model}."""

import sys

from ._runtime.bundled import open_model

# who imports this module gets the package itself
sys.modules[__name__] = open_model("{model}")
'''
