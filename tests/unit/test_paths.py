"""Where a project's folders are, and which spec an argument means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssmgen import paths
from ssmgen.errors import UsageError


def _pyproject(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_nearest_table_upwards(tmp_path: Path) -> None:
    _pyproject(tmp_path, '[tool.ssmgen]\nspecs = "kernels/specs"\n')
    inner = _pyproject(tmp_path / "src/deep", "[project]\nname = 'no-table-here'\n")
    found = paths.project(inner)
    assert (found.root, found.specs, found.generated) == (
        tmp_path,
        tmp_path / "kernels/specs",
        tmp_path / "generated",
    )


def test_no_table_at_all(tmp_path: Path) -> None:
    assert paths.project(tmp_path) == paths.Project(tmp_path, tmp_path / "specs", tmp_path / "generated")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[tool.ssmgen]\nspec = 'x'\n", "tool.ssmgen.spec: unknown key"),
        ("[tool.ssmgen]\nspecs = 1\n", "tool.ssmgen.specs: not a string"),
        ("[tool.ssmgen]\nspecs = \n", "cannot be read"),
        ("[tool.ssmgen]\nrequires = 'soon'\n", "not a version specifier"),
        ("[tool.ssmgen]\nrequires = '==99.*'\n", "belongs to another version"),
        ("[tool]\nssmgen = 5 # tool.ssmgen\n", "tool.ssmgen: not a table"),
    ],
)
def test_a_table_that_is_not_valid(tmp_path: Path, text: str, what: str) -> None:
    _pyproject(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        paths.project(tmp_path)
    assert what in str(caught.value)
    assert "pyproject.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool.ssmgen]\nspecs = 'x'\nrequires = '==99.*'\n", 3),
        ("[tool.a]\nrequires = 'x'\n[tool.ssmgen] # ours\n\nrequires='==99.*'\n[tool.b]\nrequires = 'y'\n", 5),
        ("[tool]\nssmgen = {requires = '==99.*'}\n", 0),
    ],
)
def test_another_version_has_its_line(tmp_path: Path, text: str, line: int) -> None:
    _pyproject(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        paths.project(tmp_path)
    file = tmp_path / "pyproject.toml"
    assert str(caught.value.where) == (f"{file}:{line}" if line else str(file))
    assert caught.value.found and caught.value.expected and caught.value.next


def test_a_version_that_fits(tmp_path: Path) -> None:
    _pyproject(tmp_path, "[tool.ssmgen]\nrequires = '>=0.1'\n")
    assert paths.project(tmp_path).root == tmp_path


def test_specs_are_not_locks(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    for name in ("b.yaml", "a.yaml", "a.lock.yaml", "notes.txt"):
        (tmp_path / "specs" / name).write_text("")
    assert [p.name for p in paths.project(tmp_path).spec_paths()] == ["a.yaml", "b.yaml"]
    assert paths.lock_path(tmp_path / "specs/a.yaml") == tmp_path / "specs/a.lock.yaml"


def test_find_spec(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/nemotron_h_8b.yaml").write_text("")
    here = paths.project(tmp_path)
    assert paths.find_spec("nemotron_h_8b", here) == tmp_path / "specs/nemotron_h_8b.yaml"
    assert paths.find_spec("other/x.yaml", here) == Path("other/x.yaml")
    with pytest.raises(UsageError, match="no spec") as caught:
        paths.find_spec("nemotron-h-8", here)
    assert caught.value.next == "did you mean nemotron_h_8b?"
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(UsageError, match="is no spec"):
        paths.find_spec(str(config), here)
    with pytest.raises(UsageError, match="is a lock"):
        paths.find_spec("specs/a.lock.yaml", here)


def test_templates_are_there() -> None:
    assert (paths.templates_dir() / "mamba2/state.py.jinja").is_file()


def test_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.short(tmp_path / "a/b") == Path("a/b")
    assert paths.short(Path("/elsewhere/b")) == Path("/elsewhere/b")
