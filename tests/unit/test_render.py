"""The strict environment: what is missing, misspelt or odd is an error with the template's file and line."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from ssmgen.errors import RenderError
from ssmgen.render import closure, closure_digest, free_names, render


def _render(folder: Path, template: str, **values: Any) -> str:
    (folder / "t.py.jinja").write_text(template)
    return render("t.py.jinja", make_dataclass("Context", list(values), frozen=True)(**values), folder)


def test_values_and_line_statements(tmp_path: Path) -> None:
    template = "A = {{ a }}\n\n# % if b\nB = {{ c }}\n\n# % endif\n\n"
    template += "    # % for i in range(2)\nx_{{ i }}\n    # % endfor\n\nend\n"
    assert _render(tmp_path, template, a=-1.5, b=True, c="x") == "A = -1.5\n\nB = x\n\n\nx_0\nx_1\n\nend\n"


def test_blank_lines_after_a_line_statement_stay(tmp_path: Path) -> None:
    assert _render(tmp_path, "# % if a\nx\n# % endif\n\n\ny\n", a=True) == "x\n\n\ny\n"


def test_a_comment_that_only_looks_like_a_statement(tmp_path: Path) -> None:
    assert _render(tmp_path, "x = 5 # % if a\n#% if a\n", a=1) == "x = 5 # % if a\n#% if a\n"


@pytest.mark.parametrize(
    ("template", "line", "found"),
    [
        ("\nA = {{ tpyo }}\n", 2, "'tpyo' is undefined"),
        ("\n\n# % if tpyo\n# % endif\n", 3, "'tpyo' is undefined"),
        ("{{ a.b }}\n", 1, "has no attribute 'b'"),
        ("\n{{ none }}\n", 2, "None (NoneType) cannot be printed"),
        ("{{ items }}", 1, "(tuple) cannot be printed"),
        ("{{ infinite }}", 1, "inf (float) cannot be printed"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, template: str, line: int, found: str) -> None:
    with pytest.raises(RenderError) as caught:
        _render(tmp_path, template, a=1, none=None, items=(1, 2), infinite=float("inf"))
    assert str(caught.value.where) == f"t.py.jinja:{line}"
    assert found in str(caught.value)


def test_a_template_that_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="not a valid template") as caught:
        _render(tmp_path, "\n# % if a\n", a=1)
    assert str(caught.value.where) == "t.py.jinja:2"


def test_missing_template(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Context:
        pass

    with pytest.raises(RenderError):
        render("none.py.jinja", Context(), tmp_path)
    with pytest.raises(RenderError, match="cannot be read"):
        closure("none.py.jinja", tmp_path)


def test_free_names_go_through_includes(tmp_path: Path) -> None:
    (tmp_path / "_part.py.jinja").write_text("{{ b }}{% set inner = 1 %}{{ inner }}")
    (tmp_path / "a.py.jinja").write_text(
        "{{ a }}\n# % for i in range(n)\n{{ i }}\n# % endfor\n{% include '_part.py.jinja' %}"
    )
    assert free_names("a.py.jinja", tmp_path) == {"a", "b", "n"}
    assert list(closure("a.py.jinja", tmp_path)) == ["_part.py.jinja", "a.py.jinja"]


def test_digest_follows_includes(tmp_path: Path) -> None:
    digests = set()
    for text in ("one", "two"):
        folder = tmp_path / text
        folder.mkdir()
        (folder / "_part.py.jinja").write_text(text)
        (folder / "a.py.jinja").write_text("{% include '_part.py.jinja' %}")
        digests.add(closure_digest("a.py.jinja", folder))
    assert len(digests) == 2
