"""Import a generated package once more, with a stand-in where its own import statements say `cuda.tile`.

A package's modules get an `__import__` of their own, so `sys.modules["cuda.tile"]` is never touched: real cuTile code
in the same process, in any thread, sees nothing of it. It decides neither what the stand-in does nor where packages
lie.
"""

from __future__ import annotations

import builtins
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ssmgen.errors import LaunchError

TILE = "cuda.tile"
_numbers = itertools.count()


class Inert:
    """A name of `cuda.tile` that only means something inside a kernel: it may be looked at, never called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self._name}.{name}")

    def __getitem__(self, key: object) -> Inert:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise LaunchError(
            f"{self._name}() is called outside a kernel",
            expected="host code that uses only ct.launch, ct.kernel and ct.cdiv",
            next='load the package with backend="jit"',
        )

    def __repr__(self) -> str:
        return self._name


class TileModule(ModuleType):
    """A stand-in for `cuda.tile`: what it was given, and Inert for every other public name."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__(TILE, "Stands in for cuda.tile in one generated package.")
        self.__path__: list[str] = []
        self.cdiv = lambda a, b: -(-a // b)
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"ct.{name}")


def import_package(directory: Path, label: str, tile: ModuleType | None) -> ModuleType:
    """The package in `directory`, imported anew under a private name that holds `label`; None leaves `cuda.tile` real.

    Its modules stay in sys.modules under that name, as relative imports need; after a failure none is left there.
    """
    name = f"_ssmgen_{label}_{next(_numbers)}"
    initial = directory / "__init__.py"
    if tile is None:
        loader = SourceFileLoader(name, str(initial))
    else:
        _finder.own[name] = vars(builtins) | {"__import__": _importer(tile)}
        loader = _Loader(name, str(initial))
    spec = importlib.util.spec_from_file_location(
        name, initial, loader=loader, submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        for key in [key for key in tuple(sys.modules) if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]
        _finder.own.pop(name, None)
        raise
    return module


def _importer(tile: ModuleType) -> Any:
    """An `__import__` that answers for `cuda.tile` and leaves every other name to the interpreter's own."""
    cuda = ModuleType("cuda")
    vars(cuda)["tile"] = tile

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0 and name == TILE:
            return tile if fromlist else cuda
        if level == 0 and name == "cuda" and fromlist and tuple(fromlist) == ("tile",):
            return cuda
        if level == 0 and name.startswith(f"{TILE}."):
            raise LaunchError(f"a generated package imports {name}", expected=f"only {TILE}")
        # looked up on every call: whoever wraps the interpreter's __import__ is obeyed here too
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return import_


class _Loader(SourceFileLoader):
    """Runs a module with its package's own builtins."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _finder.own[self.name.partition(".")[0]]
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the submodules of the packages in `own`, and nothing else."""

    def __init__(self) -> None:
        self.own: dict[str, dict[str, Any]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, _ = fullname.partition(".")
        if not dot or root not in self.own:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, str(spec.loader.path))
        return spec


_finder = _Finder()
sys.meta_path.insert(0, _finder)
