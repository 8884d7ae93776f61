"""Import a generated package, or one file of kernels, once more, with a stand-in where it says `import cuda.tile`.

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
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .errors import LaunchError

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
            next="import the package itself, with cuda-tile, for what it does on the host",
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


def import_package(
    source: Path | Mapping[str, str], label: str, tile: ModuleType, own: Mapping[str, Any] | None = None
) -> ModuleType:
    """The package in the folder `source`, imported anew under a private name that holds `label`.

    `source` may also be the package's texts, by path inside it. `own` replaces builtins of its modules. They stay in
    sys.modules under that name, as relative imports need; after a failure none is left there.
    """
    if isinstance(source, Path):
        return _import(label, source / "__init__.py", tile, own, [str(source)])
    name = _new_name(label)
    _finder.own[name] = _builtins(tile, own)
    _finder.texts[name] = source
    return _execute(_TextLoader.spec(name, "__init__.py", [label]))


def import_file(path: Path, label: str, tile: ModuleType, own: Mapping[str, Any] | None = None) -> ModuleType:
    """The module in the file `path`, likewise."""
    return _import(label, path, tile, own, None)


def _import(
    label: str, path: Path, tile: ModuleType, own: Mapping[str, Any] | None, locations: list[str] | None
) -> ModuleType:
    name = _new_name(label)
    _finder.own[name] = _builtins(tile, own)
    loader = _Loader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=locations)
    assert spec is not None
    return _execute(spec)


def _new_name(label: str) -> str:
    names = (f"_ssmgen_{label}_{number}" for number in _numbers)
    # a bundle has a copy of this module, which counts for itself
    return next(name for name in names if name not in sys.modules)


def _builtins(tile: ModuleType, own: Mapping[str, Any] | None) -> dict[str, Any]:
    return vars(builtins) | dict(own or {}) | {"__import__": _importer(tile)}


def _execute(spec: ModuleSpec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    name = spec.name
    sys.modules[name] = module
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except BaseException:
        for key in [key for key in tuple(sys.modules) if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]
        _finder.own.pop(name, None)
        _finder.texts.pop(name, None)
        raise
    return module


def _importer(tile: ModuleType) -> Any:
    """An `__import__` that answers for `cuda.tile` and leaves every other name to the interpreter's own."""
    cuda = ModuleType("cuda")
    vars(cuda)["tile"] = tile
    submodules: Mapping[str, Any] = vars(tile).get("submodules", {})

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
            if fromlist and name.removeprefix(f"{TILE}.") in submodules:
                module: ModuleType = submodules[name.removeprefix(f"{TILE}.")]
                return module
            raise LaunchError(f"a generated package imports {name}", expected=f"only {TILE}")
        # looked up on every call: whoever wraps the interpreter's __import__ is obeyed here too
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return import_


class _Loader(SourceFileLoader):
    """Runs a module with its package's own builtins."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _finder.own[self.name.partition(".")[0]]
        super().exec_module(module)


class _TextLoader(InspectLoader):
    """Runs a module of a package that is held in memory."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def spec(cls, name: str, path: str, locations: list[str] | None) -> ModuleSpec:
        spec = ModuleSpec(name, cls(path), origin=path, is_package=locations is not None)
        if locations is not None:
            spec.submodule_search_locations = locations
        return spec

    def get_source(self, fullname: str) -> str:
        return _finder.texts[fullname.partition(".")[0]][self.path]

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), self.get_filename(fullname), "exec", dont_inherit=True)

    def get_filename(self, fullname: str) -> str:
        """A name under which tracebacks and errors show the file: there is none on disk."""
        return f"<{fullname.partition('.')[0]}>/{self.path}"

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _finder.own[module.__name__.partition(".")[0]]
        vars(module)["__file__"] = self.get_filename(module.__name__)
        exec(self.get_code(module.__name__), vars(module))


class _Finder(MetaPathFinder):
    """Finds the submodules of the packages in `own`, on disk or in `texts`, and nothing else."""

    def __init__(self) -> None:
        self.own: dict[str, dict[str, Any]] = {}
        self.texts: dict[str, Mapping[str, str]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = fullname.partition(".")
        if not dot or root not in self.own:
            return None
        if root in self.texts:
            return self._in_memory(fullname, rest.replace(".", "/"), self.texts[root])
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, str(spec.loader.path))
        return spec

    def _in_memory(self, fullname: str, path: str, texts: Mapping[str, str]) -> ModuleSpec | None:
        if f"{path}.py" in texts:
            return _TextLoader.spec(fullname, f"{path}.py", None)
        if any(other.startswith(f"{path}/") for other in texts):
            # a folder without __init__.py, as on disk
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [path]
            return spec
        return None


_finder = _Finder()
sys.meta_path.insert(0, _finder)
