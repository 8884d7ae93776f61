"""Opens a generated package over an archive of cubins: imported with a stand-in `cuda.tile`, its calls repeated.

It finds no packages and no archives; `ssmgen.load` does, and a bundle knows where it has its own.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from .archive import Archive
from .driver import Driver
from .launch import Launcher
from .seal import is_edited
from .standin import import_package


def open_package(directory: Path, label: str, archive: Archive, driver: Driver) -> ModuleType:
    """The package in `directory`, imported anew under a private name that holds `label`."""
    launcher = Launcher(directory, archive, driver)
    package = import_package(directory, label, launcher.tile())
    if is_repeatable(package):
        from .replay import Replay

        vars(package)["forward"] = Replay(package.forward, launcher).forward
    return package


def is_repeatable(package: ModuleType) -> bool:
    """Whether the package's `forward` is as it was generated: of another, nobody knows what else it depends on."""
    own = [vars(package).get(name) for name in ("_forward", "_arguments", "_values")]
    files = [Path(module.__file__) for module in own if isinstance(module, ModuleType) and module.__file__]
    return len(files) == len(own) and not any(is_edited(file.read_text(encoding="utf-8")) for file in files)
