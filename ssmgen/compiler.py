"""Finds the cuTile compiler and refuses, by name and with the command that mends it, one that is not whole.

cuda-tile turns a kernel into bytecode, tileiras turns bytecode into a cubin with nvcc's ptxas and libNVVM: four
packages, of which the last three must be of one version. It imports none of them and compiles nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ssmgen.errors import CompilerError

CUDA_TILE = "cuda-tile"
TOOLKIT = ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm")
# the bounds of the extra `compile` in pyproject.toml, and the toolkit it pins
_LOW, _HIGH, _PINNED = (1, 7), (1, 8), "13.5.37"
_INSTALL = f'pip install "cuda-tile>=1.7,<1.8" {" ".join(f"{name}=={_PINNED}" for name in TOOLKIT)}'


@dataclass(frozen=True)
class CompilerInfo:
    """The compiler found: versions by package, and where the `tileiras` program is."""

    versions: Mapping[str, str]
    tileiras: Path

    def __str__(self) -> str:
        return f"cuda-tile {self.versions[CUDA_TILE]}, tileiras {self.versions[TOOLKIT[0]]}"


def check_compiler() -> CompilerInfo:
    """The compiler of this environment. Raises CompilerError if a part is missing, or of a version that will not do."""
    versions = {name: _version(name) for name in (CUDA_TILE, *TOOLKIT)}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        raise _refusal(f"the cuTile compiler is not whole: no {', '.join(missing)}", versions)
    found = {name: version or "" for name, version in versions.items()}
    if not _LOW <= _major_minor(found[CUDA_TILE]) < _HIGH:
        raise _refusal("cuda-tile is of a version that ssmgen was not tried with", versions, "cuda-tile >=1.7,<1.8")
    if len({_major_minor(found[name]) for name in TOOLKIT}) > 1:
        raise _refusal(f"{', '.join(TOOLKIT)} are not of one version", versions, "the same major.minor for all three")
    return CompilerInfo(found, _program(versions))


def _program(versions: Mapping[str, str | None]) -> Path:
    name = "tileiras.exe" if sys.platform == "win32" else "tileiras"
    for file in metadata.files(TOOLKIT[0]) or ():
        path = Path(str(file.locate()))
        if path.name == name and os.access(path, os.X_OK):
            return path
    raise _refusal(f"{TOOLKIT[0]} is installed, but its program {name} is not there", versions)


def _refusal(what: str, versions: Mapping[str, str | None], expected: str | None = None) -> CompilerError:
    found = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    force = " --force-reinstall" if "program" in what else ""
    return CompilerError(
        what,
        found=found,
        expected=expected or f"cuda-tile >=1.7,<1.8 and {', '.join(TOOLKIT)} of one version",
        next=_INSTALL + force,
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
