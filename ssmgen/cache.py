"""Compiled cubins by the hash of all that made them, in a folder that any number of builds may share.

It knows nothing of kernels and never evicts: delete the folder to empty it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from ssmgen.errors import OutputError

_MAGIC = b"ssmgen cubin 1 "
_HEADER = len(_MAGIC) + 65


def default_folder() -> Path:
    """$SSMGEN_CACHE_DIR, $XDG_CACHE_HOME/ssmgen or ~/.cache/ssmgen."""
    if own := os.environ.get("SSMGEN_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # a relative XDG path is to be ignored, says its specification
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "ssmgen"


class Cache:
    """The entries in `folder`, which is made when the first one is written."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.cubin"

    def get(self, key: str) -> bytes | None:
        """The bytes kept under `key`; None where there are none, or they are not the ones that were written."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        content = data[_HEADER:]
        return content if data[:_HEADER] == _header(content) else None

    def put(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`, whole or not at all. Raises OutputError where it cannot be written."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, _header(content) + content)
        except OSError as e:
            raise OutputError(
                "the cache of compiled kernels cannot be written",
                where=self.folder,
                found=e.strerror or e,
                expected="a folder that can be written",
                next="set SSMGEN_CACHE_DIR to one",
            ) from None


def replace(path: Path, content: bytes) -> None:
    """Write the file at once: readers see the old bytes or the new ones, and an interruption leaves the old ones."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _header(content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n"
