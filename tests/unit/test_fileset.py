"""Writing is all or nothing, per file and as a whole, whatever interrupts it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ssmgen import writing
from ssmgen.errors import OutputError
from ssmgen.fileset import MARK, FileSet
from ssmgen.runtime.seal import UNSEALED, is_edited, seal


def _text(body: str) -> str:
    return seal(f"# {MARK}\n# {UNSEALED}\n{body}\n")


def _set(**bodies: str) -> FileSet:
    return FileSet({f"m/{name}/{name}.py": _text(body) for name, body in bodies.items()}, ("m",))


def _tree(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_seal() -> None:
    text = _text("x = 1")
    assert not is_edited(text)
    assert is_edited(text.replace("x = 1", "x = 2"))
    assert is_edited(text + "\n")
    assert is_edited("x = 1\n")


def test_write_then_nothing_to_write(tmp_path: Path) -> None:
    files = _set(a="1", b="2")
    assert len(files.write(tmp_path / "deep/er").written) == 2
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "deep/er").rglob("*.py")}
    again = files.write(tmp_path / "deep/er")
    assert (again.written, again.unchanged) == ((), 2)
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_only_what_differs_is_written_and_orphans_go(tmp_path: Path) -> None:
    _set(a="1", b="2", c="3").write(tmp_path)
    (tmp_path / "m/c/__pycache__").mkdir()
    (tmp_path / "m/c/__pycache__/c.pyc").write_text("")
    changes = _set(a="1", b="other").write(tmp_path)
    assert changes.written == ("m/b/b.py",)
    assert changes.removed == ("m/c/c.py",)
    assert not (tmp_path / "m/c").exists()


def test_permissions_are_those_of_the_umask_or_of_the_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        _set(a="1").write(tmp_path)
    finally:
        os.umask(before)
    path = tmp_path / "m/a/a.py"
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    _set(a="2").write(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "generated").write_text("a file")
    with pytest.raises(OutputError) as caught:
        _set(a="1").write(tmp_path / "generated")
    assert caught.value.next
    assert (tmp_path / "generated").read_text() == "a file"


def test_read_only_folder(tmp_path: Path) -> None:
    _set(a="1").write(tmp_path)
    (tmp_path / "m/a").chmod(0o555)
    if os.access(tmp_path / "m/a", os.W_OK):
        pytest.skip("root may write anywhere")
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            _set(a="2", b="1").write(tmp_path)
    finally:
        (tmp_path / "m/a").chmod(0o755)
    assert list(_tree(tmp_path)) == ["m/a/a.py"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failing_while_staging_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    _set(a="1").write(tmp_path)
    before = _tree(tmp_path)
    real = writing._umask
    calls = []

    def fail() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise error
        return real()

    monkeypatch.setattr(writing, "_umask", fail)
    with pytest.raises((KeyboardInterrupt, OutputError)):
        _set(a="1", b="2", c="3", d="4").write(tmp_path)
    assert _tree(tmp_path) == before
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["a"]


def test_ctrl_c_while_moving_waits_until_all_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = writing._move

    def interrupt(temporary: Path, path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        real(temporary, path)

    monkeypatch.setattr(writing, "_move", interrupt)
    files = _set(a="1", b="2", c="3")
    # a process started in the background ignores SIGINT: whatever the handler was, it is to be there again
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        files.write(tmp_path)
    assert files.check(tmp_path) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_missing_file_and_an_orphan_are_shown_whole(tmp_path: Path) -> None:
    _set(a="1", c="3").write(tmp_path)
    (tmp_path / "m/notes.txt").write_text("mine\n")
    missing, orphan, foreign = _set(a="1", b="2").check(tmp_path)
    assert (missing.path, missing.kind, orphan.path, orphan.kind) == ("m/b/b.py", "missing", "m/c/c.py", "orphan")
    assert missing.diff.splitlines()[:2] == ["--- m/b/b.py as found", "+++ m/b/b.py as generated"]
    assert missing.diff.splitlines()[3:] == [f"+{line}" for line in _text("2").splitlines()]
    assert orphan.diff.splitlines()[3:] == [f"-{line}" for line in _text("3").splitlines()]
    assert foreign.diff.splitlines()[3:] == ["-mine"]


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    _set(a="1").write(tmp_path)
    (tmp_path / "m/a/a.py").unlink()
    (tmp_path / "m/a/a.py").mkdir()
    (tmp_path / "m/a/a.py/mine.txt").write_text("mine")
    (drift,) = _set(a="1").check(tmp_path)
    assert (drift.kind, drift.reason) == ("blocked", "a folder is where this file should be")
    with pytest.raises(OutputError, match="a folder is where this file should be") as caught:
        _set(a="1").write(tmp_path)
    assert caught.value.next == f"move it away, or remove it: rm -r {tmp_path}/m/a/a.py"
    assert (tmp_path / "m/a/a.py/mine.txt").read_text() == "mine"


def test_what_is_not_ours_is_neither_overwritten_nor_deleted(tmp_path: Path) -> None:
    _set(a="1").write(tmp_path)
    (tmp_path / "m/mine.txt").write_text("mine")
    (tmp_path / "m/b").mkdir()
    (tmp_path / "m/b/b.py").write_text("mine too")
    before = _tree(tmp_path)
    with pytest.raises(OutputError, match="not made by ssmgen"):
        _set(a="2", b="2").write(tmp_path)
    assert _tree(tmp_path) == before
    assert _set(a="2").write(tmp_path).left == ("m/b/b.py", "m/mine.txt")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    _set(a="1").write(tmp_path)
    (tmp_path / "m/a/a.py").write_bytes(f"# {MARK}\n".encode() + b"\xff\xfe\x00")
    (drift,) = _set(a="1").check(tmp_path)
    assert drift.kind == "edited"


def test_line_ends_changed_by_a_checkout_are_drift(tmp_path: Path) -> None:
    _set(a="1").write(tmp_path)
    path = tmp_path / "m/a/a.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert [d.kind for d in _set(a="1").check(tmp_path)] == ["edited"]
