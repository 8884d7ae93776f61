"""Files and packages of kernels, imported so that their launches run in the interpreter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ssmgen.interpreter.launching import Launcher
from ssmgen.interpreter.module import TileModule, own_builtins
from ssmgen.runtime import standin


def load_file(path: str | Path) -> ModuleType:
    """The module in `path`, for CPU tensors: its own `ct.launch` runs its kernels block by block.

    `module.ct_launcher.counts` holds what its launches asked for, by kernel.
    """
    file = Path(path)
    launcher = Launcher()
    label = re.sub(r"\W", "_", file.stem)
    module = standin.import_file(file, label, TileModule(launcher), own_builtins())
    vars(module)["ct_launcher"] = launcher
    return module


def load_package(source: Path | Mapping[str, str], label: str, launcher: Launcher) -> ModuleType:
    """The package in a folder, or of texts by path inside it, likewise; its launches go through `launcher`."""
    return standin.import_package(source, label, TileModule(launcher), own_builtins())
