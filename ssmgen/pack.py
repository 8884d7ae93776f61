"""Writes an archive of cubins, a folder or a .tar.xz of one: the same kernels always make the same bytes.

It compiles nothing; `archive` reads what it writes.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmgen import cache
from ssmgen.errors import OutputError
from ssmgen.runtime.archive import INDEX, SCHEMA

SUFFIX = ".tar.xz"
_ANOTHER = "give another path with -o"
# the one folder in a tar
_FOLDER = "cubins"


@dataclass(frozen=True)
class Entry:
    """One kernel of the index: variant -> symbol, parameters as `signatures.as_json` gives them, its source's hash."""

    name: str
    cubin: bytes
    symbols: Mapping[str, str]
    parameters: tuple[dict[str, Any], ...]
    source_sha256: str


def check_writable(path: Path) -> None:
    """Raise OutputError where `write_archive` could not write, before hours are spent on what to write."""
    if not path.parent.is_dir():
        what = "a file, not a folder" if path.parent.exists() else "no such folder"
        make = f"mkdir -p {shlex.quote(str(path.parent))}, or give another path with -o"
        raise OutputError(
            what,
            where=path.parent,
            found=f"-o {path}",
            expected="a path in a folder that is there",
            next="give another path with -o" if path.parent.exists() else make,
        )
    if path.name.endswith(SUFFIX):
        if path.is_dir():
            expected = f"a {SUFFIX} file, or a name for one"
            raise OutputError("is a folder", where=path, found="a folder", expected=expected, next=_ANOTHER)
    elif path.is_file():
        expected = f"a folder, or a name that ends in {SUFFIX}"
        raise OutputError("is a file", where=path, found="a plain file", expected=expected, next=_ANOTHER)
    elif path.is_dir() and any(path.iterdir()) and not (path / INDEX).is_file():
        raise OutputError(
            "a folder with something else in it",
            where=path,
            found=", ".join(sorted(p.name for p in path.iterdir())[:3]),
            expected="an archive, or an empty folder",
            next=_ANOTHER,
        )


def write_archive(path: Path, compiler: str, entries: Sequence[Entry]) -> None:
    """Write `entries` to `path`, in place of the archive that was there, which stays whole if OutputError is raised."""
    check_writable(path)
    files = archive_files(compiler, entries)
    try:
        if path.name.endswith(SUFFIX):
            cache.replace(path, _tar(files))
        else:
            _write_folder(path, files)
    except OSError as e:
        raise OutputError("the archive cannot be written", where=path, found=e.strerror or e) from None


def archive_files(compiler: str, entries: Sequence[Entry]) -> dict[str, bytes]:
    """An archive as it lies in a folder: name -> content, the index last."""
    cubins = {f"{hashlib.sha256(e.cubin).hexdigest()}.cubin": e.cubin for e in entries}
    kernels = {
        e.name: {
            "cubin": f"{hashlib.sha256(e.cubin).hexdigest()}.cubin",
            "symbols": dict(e.symbols),
            "parameters": list(e.parameters),
            "source_sha256": e.source_sha256,
        }
        for e in sorted(entries, key=lambda e: e.name)
    }
    index = json.dumps({"schema": SCHEMA, "compiler": compiler, "kernels": kernels}, indent=1)
    return {**dict(sorted(cubins.items())), INDEX: index.encode() + b"\n"}


def _tar(files: Mapping[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            # a TarInfo of its own names no owner and no time
            member = tarfile.TarInfo(f"{_FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return lzma.compress(plain.getvalue())


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    path.mkdir(exist_ok=True)
    # the index comes last: what it names is there
    for name, content in files.items():
        cache.replace(path / name, content)
    for old in path.glob("*.cubin"):
        if old.name not in files:
            old.unlink()
