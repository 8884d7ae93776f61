"""Specs are closed and typed; what an error says is in tests/golden, what it means is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssmgen import spec
from ssmgen.errors import SpecError
from tests.conftest import SPEC

PATH = Path("specs/tiny_9b.yaml")


def _error(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        spec.loads(text, PATH)
    return caught.value


def test_layout_and_comments_do_not_change_the_digest() -> None:
    spread = SPEC.replace("{name: tiny_9b, source: table}", "\n  # why\n  name: tiny_9b\n  source: table")
    assert spec.loads(spread, PATH).digest == spec.loads(SPEC, PATH).digest
    assert spec.loads(SPEC.replace("groups: 2", "groups: 4"), PATH).digest != spec.loads(SPEC, PATH).digest


@pytest.mark.parametrize(
    ("old", "new", "line", "nearest"),
    [
        ("targets:", "targots:", 11, "targets"),
        ("schema:", "shema:", 1, "schema"),
        ("head_dim:", "headdim:", 5, "head_dim"),
        ("when:", "wen:", 9, "when"),
        ("mamba_chunk_scan_combined:", "mamba_chunk_scan_combine:", 4, "mamba_chunk_scan_combined"),
        ("source:", "sources:", 2, "source"),
    ],
)
def test_unknown_key_comes_first_with_the_nearest_known(old: str, new: str, line: int, nearest: str) -> None:
    error = _error(SPEC.replace(old, new, 1))
    assert error.what.endswith("unknown key")
    assert str(error.where) == f"{PATH}:{line}"
    assert error.expected == f"{nearest}, the nearest known key"


def test_unknown_key_with_nothing_near_lists_all() -> None:
    assert _error(SPEC + "zzz: 1\n").expected == "one of schema, model, operators, targets"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("groups: 2", "groups: 3", 5),
        ("dt: float32", "dt: float16", 6),
        ("plan: three_stage", "plan: four_stage", 10),
        ("B*T > 4096", "B*T", 10),
        ("B*T > 4096", "B.T > 1", 10),
        ("B*T > 4096", "__import__('os')", 10),
    ],
)
def test_constraints_point_at_their_line(old: str, new: str, line: int) -> None:
    assert str(_error(SPEC.replace(old, new)).where) == f"{PATH}:{line}"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"64"', "true", "null", "1e3", "[64]", "99999999999"])
def test_sizes_are_positive_whole_numbers(value: str) -> None:
    assert "head_dim" in _error(SPEC.replace("head_dim: 64", f"head_dim: {value}")).what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "an empty file"),
        ("- a\n", "the file: not valid"),
        ("{}", "missing"),
        (SPEC.replace("mamba_chunk_scan_combined:", "? [a]\n  :"), "a key that is not plain text"),
        (SPEC + "schema: 1\n", "key 'schema' given twice"),
        ("a: [\n", "not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
        (
            "schema: 1\nmodel: {name: tiny_9b, source: table}\noperators: {}\ntargets: [sm_90]\n",
            "operators: none given",
        ),
        (SPEC.replace("tiny_9b", "other_9b"), "model.name differs from the file's name"),
    ],
)
def test_not_a_spec(text: str, what: str) -> None:
    assert what in _error(text).what


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        spec.load(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        spec.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"\xe9\n")
    with pytest.raises(SpecError, match=r"latin\.yaml:1: not UTF-8"):
        spec.load(tmp_path / "latin.yaml")
