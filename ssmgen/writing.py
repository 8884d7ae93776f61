"""Files are written all or none, and each whole or not at all, whatever interrupts it.

It compares nothing and knows no mark: what may be overwritten or removed is its caller's to say.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ssmgen.errors import OutputError


def check_folder(root: Path) -> None:
    """Raise OutputError where `root` is no folder and none can be made there, since a plain file is in its place."""
    there = next(p for p in (root, *root.parents) if p.exists())
    if there.is_dir():
        return
    raise OutputError(
        "a file, not a folder",
        where=there,
        found=f"a plain file, where {root} needs a folder",
        expected="a folder, or a path where one can be made",
        next="give another folder with -o, or move the file away",
    )


def replace_all(root: Path, files: Mapping[str, str], removed: list[str]) -> None:
    """Write every file beside its place first; only when all are there, move them in, in one uninterrupted go."""
    staged: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for relative, text in files.items():
            # what was just made must be on its list before Ctrl-C can come
            with uninterrupted():
                _make_folders((root / relative).parent, made)
                staged.append((_stage(root / relative, text), root / relative))
    except BaseException:
        _discard(staged)
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        raise
    with uninterrupted():
        try:
            for temporary, path in staged:
                _move(temporary, path)
        except OSError as e:
            _discard(staged)
            raise _unwritable(path, e) from None
        for orphan in removed:
            _remove(root, root / orphan)


def _discard(staged: list[tuple[Path, Path]]) -> None:
    for temporary, _ in staged:
        temporary.unlink(missing_ok=True)


def _move(temporary: Path, path: Path) -> None:
    temporary.replace(path)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write `files`, path -> text relative to `root`, all or none; raises OutputError."""
    check_folder(root)
    replace_all(root, files, [])


def write_file(path: Path, text: str) -> None:
    """Write one file whole or not at all; raises OutputError."""
    write_files(path.parent, {path.name: text})


def _make_folders(folder: Path, made: list[Path]) -> None:
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except OSError as e:
            raise _unwritable(each, e) from None
        made.append(each)


def _stage(path: Path, text: str) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as e:
        raise _unwritable(path.parent, e) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        # mkstemp's 0600 is for secrets; a source file is readable by whom the umask allows
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
    except BaseException as e:
        temporary.unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise _unwritable(path, e) from None
        raise
    return temporary


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove(root: Path, path: Path) -> None:
    """Delete an orphan and the folders it leaves empty, but never `root`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        raise _unwritable(path, e) from None
    for folder in path.parents:
        if folder == root:
            return
        cache = folder / "__pycache__"
        with suppress(OSError):
            if cache.is_dir() and list(folder.iterdir()) == [cache]:
                for compiled in cache.iterdir():
                    compiled.unlink()
                cache.rmdir()
            folder.rmdir()


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        "cannot be written",
        where=path,
        found=error.strerror or str(error),
        expected="a folder that can be written, with room in it",
        next="make the folder writable, or give another one with -o",
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done; moving the files in takes milliseconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: Any) -> None:
        held.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
