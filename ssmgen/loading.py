"""`ssmgen.load`: the generated package of a model as a module, its kernels from cuTile's compiler or from cubins.

It generates and compiles nothing, and keeps no module: whoever calls it keeps what it returns.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Literal

from ssmgen.errors import LaunchError, UsageError
from ssmgen.standin import import_package

BACKENDS = ("jit", "cubin")
_INSTALL = "pip install 'ssmgen[compile,gpu]'"


def load(
    model: str | Path, *, backend: Literal["jit", "cubin"] = "jit", archive: str | Path | None = None
) -> ModuleType:
    """A model's generated package, imported anew: call it once and keep the module.

    `model` is the name of a model of this project or of ssmgen's own, the path of a spec, or the folder of a generated
    package. `backend` "jit" compiles at the first launch, as importing the package does; "cubin" launches what
    `ssmgen compile` left in `archive`, a folder or .tar.xz, and needs neither cuda-tile nor a compiler.

    Raises UsageError where there is no such package, LaunchError where it cannot run here; what the package itself
    raises at a call is in its own docstring, with LaunchError for an argument that no compiled variant can take.
    """
    if backend not in BACKENDS:
        raise UsageError(f"unknown backend {backend!r}", expected="one of " + ", ".join(BACKENDS))
    if (archive is not None) != (backend == "cubin"):
        raise UsageError(
            f'backend="{backend}" {"takes no" if archive is not None else "needs an"} archive',
            next='load(MODEL, backend="cubin", archive=PATH)',
        )
    directory = package_directory(model)
    label = f"{backend}_{re.sub(r'[^A-Za-z0-9]', '_', directory.name)}"
    _need("torch", "pip install torch")
    if archive is None:
        _need_compiler()
        return import_package(directory, label, None)
    from ssmgen.archive import Archive
    from ssmgen.driver import driver
    from ssmgen.launch import Launcher

    return import_package(directory, label, Launcher(directory, Archive(Path(archive)), driver()).tile())


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


def _need(module: str, install: str) -> None:
    from importlib.util import find_spec

    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise LaunchError(f"{module} is needed to run generated kernels", next=install)


def _need_compiler() -> None:
    """cuTile says so only at the first launch, in the middle of a request."""
    _need("cuda.tile", _INSTALL + ', or use backend="cubin", which needs no compiler')
    from cuda.tile._compile import _find_compiler_bin

    try:
        _find_compiler_bin()
    except FileNotFoundError as e:
        raise LaunchError(
            'cuTile\'s compiler, tileiras, is needed for backend="jit"',
            found=e,
            next=_INSTALL + ', or use backend="cubin"',
        ) from None
