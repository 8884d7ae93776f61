"""`ssmgen.load`: a model's operators as a module; its kernels compiled ahead, from cubins, or interpreted.

It keeps no module: whoever calls it keeps what it returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from ssmgen.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from ssmgen.interpreter.launching import Promises
    from ssmgen.lock import Lock
    from ssmgen.runtime.archive import Archive
    from ssmgen.spec import Spec

BACKENDS = ("compile", "cubin")


def load(
    model: str | Path,
    *,
    backend: Literal["compile", "cubin"] = "compile",
    archive: str | Path | None = None,
    interpret: bool = False,
    progress: bool = False,
) -> ModuleType:
    """A model's generated package, imported anew: call it once and keep the module.

    `model` is the name of a model of this project or of ssmgen's own, the path of a spec, or the folder of a generated
    package. `backend` "compile" compiles the package's kernels, as they lie there, for this machine's GPUs: in some
    ten seconds the first time, from the cache later, and never in a call. `progress` shows it on stderr. "cubin"
    launches what `ssmgen compile` left in `archive`, a folder or .tar.xz, and needs neither cuda-tile nor a compiler.
    Either asks the CUDA driver what is here, so that a process may not be forked afterwards.

    With `interpret`, the operators take CPU tensors and ssmgen's interpreter runs the kernels, slowly and strictly:
    those of the spec's first target. Of a spec without a generated package they are generated in memory; `model` is
    then the path of the spec, or the name of a committed one. They raise SanitizerError where a kernel breaks a rule.

    Raises UsageError where there is no such package, LaunchError where it cannot run here, CompilerError for a kernel
    that cuTile refuses; what the package itself raises at a call is in its own docstring, with LaunchError for an
    argument that no compiled variant can take.
    """
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", expected="one of " + ", ".join(BACKENDS))
    if (archive is not None) != (backend == "cubin"):
        raise UsageError(
            f'backend="{backend}" {"takes no" if archive is not None else "needs an"} archive',
            next='load(MODEL, backend="cubin", archive=PATH)',
        )
    if interpret:
        if backend != "compile":
            raise UsageError(f'interpret=True beside backend="{backend}"', expected="one of them")
        return _interpreted(model)
    directory = package_directory(model)
    label = f"{backend}_{_label(directory.name)}"
    need("torch", "pip install torch")
    from ssmgen.runtime import driver, serving
    from ssmgen.runtime.archive import Archive

    here = driver.driver()
    cubins = _compiled(directory, here.targets(), progress) if archive is None else Archive(Path(archive))
    return serving.open_package(directory, label, cubins, here)


def _compiled(directory: Path, targets: Sequence[str], progress: bool) -> Archive:
    from ssmgen import ahead, table
    from ssmgen.build import Settings

    return ahead.archive(directory, targets, Settings(progress=table.progress) if progress else None)


def package_directory(model: str | Path) -> Path:
    """The folder of a generated package, from the folder itself, a spec's path, or a model's name."""
    from ssmgen import paths

    path = Path(model)
    if (path / "__init__.py").is_file():
        return path.resolve()
    if path.suffix in (".yaml", ".yml"):
        folders = [paths.project(path.parent).generated]
        name = path.stem
    else:
        # ssmgen's own models are generated beside its specs, in a checkout
        folders = [paths.project().generated, paths.committed_specs().parent / "generated"]
        name = str(model)
    for folder in folders:
        if (folder / name / "__init__.py").is_file():
            return (folder / name).resolve()
    raise UsageError(
        f"no generated package {name!r}",
        expected="a folder in " + " or ".join(dict.fromkeys(map(str, folders))) + ", or the folder of one",
        next=f"ssmgen generate {model}",
    )


def _interpreted(model: str | Path) -> ModuleType:
    """The package in a folder as it is, or that of a spec."""
    from ssmgen import lock, paths, spec

    need("torch", "pip install torch")
    path = Path(model)
    if (path / "__init__.py").is_file():
        return _interpreted_package(path.resolve(), path.resolve().name, {})
    at = paths.find_spec(str(model), paths.project(path.parent if path.suffix else None))
    value = spec.load(at)
    beside = paths.lock_path(at)
    known = lock.load(beside, value) if beside.exists() else lock.derive(value, value.targets)
    return interpreted_spec(model, value, known)


def interpreted_spec(model: str | Path, spec: Spec, known: Lock) -> ModuleType:
    """The operators of `spec` for CPU tensors: its committed package, as `load` finds it, or generated in memory."""
    try:
        return interpreted(spec, known, package_directory(model))
    except UsageError:
        return interpreted(spec, known)


def interpreted(spec: Spec, known: Lock, directory: Path | None = None) -> ModuleType:
    """The operators of `spec` for CPU tensors, from the package in `directory` or generated in memory.

    The kernels are held to the promises that the spec's are compiled under. `module.launcher.counts` holds what they
    asked for since it was loaded, by kernel.
    """
    from ssmgen import generate, signatures

    operator = spec.operators.mamba_chunk_scan_combined
    name = spec.model.name
    if operator is None:
        raise UsageError(f"{name}: its operators have no kernels yet", next="load a Mamba-2 model")
    made = generate.kernels(spec, known, spec.targets)
    promises = {
        f"{kernel.id.format()}.py".removeprefix(f"{name}/"): [
            signatures.as_json(parameter, operator.shape) for parameter in kernel.parameters
        ]
        for kernel in made
    }
    if directory is not None:
        return _interpreted_package(directory, name, promises)
    texts = generate.around(spec, known, made)
    return _interpreted_package({path.removeprefix(f"{name}/"): text for path, text in texts.items()}, name, promises)


def _interpreted_package(source: Path | Mapping[str, str], name: str, promises: Promises) -> ModuleType:
    from ssmgen.interpreter.files import load_package
    from ssmgen.interpreter.launching import Launcher
    from ssmgen.interpreter.operators import watched_package

    launcher = Launcher(promises)
    return watched_package(load_package(source, f"interpreted_{_label(name)}", launcher), launcher)


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", name)


def need(module: str, install: str) -> None:
    """LaunchError with the command `install` where `module` is not installed."""
    from importlib.util import find_spec

    try:
        found = find_spec(module)
    except (ModuleNotFoundError, ValueError):
        found = None
    if found is None:
        raise LaunchError(f"{module} is needed to run generated kernels", next=install)
