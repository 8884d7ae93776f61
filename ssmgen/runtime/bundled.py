"""Opens a model of a bundle: the folder that `ssmgen bundle` made, this file in it.

The bundle's index names every file with its hash; what a model needs is compared with it when the model is opened, a
cubin when it is first launched. It searches nowhere else, and falls back to nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from .archive import INDEX, Archive
from .driver import driver
from .errors import LaunchError
from .serving import open_package

CONTENTS = "bundle.json"
PACKAGES = "_packages"
CUBINS = "_cubins"
SCHEMA = 1
NEXT = "copy the bundle whole, or make it anew: ssmgen bundle"


def open_model(model: str) -> ModuleType:
    """The operators of `model`. Raises LaunchError where a file of it is missing or damaged, or cuda-bindings is.

    The bundle's own __init__ has checked what opens it, this file too; a damaged one may have checked nothing.
    """
    root = Path(__file__).resolve().parent.parent
    for name, digest in _files(root).items():
        if name.startswith(f"{PACKAGES}/{model}/") or name in (f"{CUBINS}/{INDEX}", "__init__.py"):
            _check(root, name, digest)
    return open_package(root / PACKAGES / model, f"{root.name}_{model}", _archive(root), driver())


@functools.cache
def _archive(root: Path) -> Archive:
    return Archive(root / CUBINS, made_by="ssmgen bundle")


@functools.cache
def _files(root: Path) -> Mapping[str, str]:
    try:
        contents = json.loads((root / CONTENTS).read_bytes())
        if contents["schema"] != SCHEMA:
            raise ValueError(f"schema {contents['schema']}")
        return {str(name): str(digest) for name, digest in contents["files"].items()}
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise LaunchError(
            f"{CONTENTS} cannot be read", where=root, found=f"{type(e).__name__}: {e}", next=NEXT
        ) from None


def _check(root: Path, name: str, digest: str) -> None:
    try:
        found = hashlib.sha256((root / name).read_bytes()).hexdigest()
    except OSError as e:
        raise LaunchError(f"{name} of the bundle cannot be read", where=root, found=e.strerror, next=NEXT) from None
    if found != digest:
        raise LaunchError(
            f"{name} of the bundle is damaged",
            where=root,
            found=f"sha256 {found}",
            expected=f"sha256 {digest}",
            next=NEXT,
        )
