"""What a candidate's text may not say, in the ways in which it could be said all the same."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ssmgen.check import static

HOLES = {
    "an argument elsewhere has a builtin's name": (
        "def unused(eval): pass\ndef forward(x): return eval('x')\n", "eval: a builtin that no kernel needs"),
    "an argument elsewhere has an importer's name": (
        "def unused(__import__): pass\ndef forward(x): return __import__('os')\n", "__import__: a builtin that no"),
    "a variable elsewhere has a builtin's name": (
        "def unused(): getattr = 1\ndef forward(x): return getattr(x, 'data_ptr')()\n", "getattr: "),
    "the module of builtins": (
        "def unused(__builtins__): pass\ndef forward(x): return __builtins__\n", "__builtins__: is not defined here"),
    "a function that is called like a builtin": (
        "def open(): pass\ndef forward(x): return open('/proc/self/maps')\n", "open: a builtin that no kernel needs"),
    "an attribute of an attribute": (
        "def forward(x): return x.shape.__class__\n", ".__class__: not what a tensor is asked for"),
    "another name of a module": (
        "import torch as math\ndef forward(x): return math.exp(x)\n", "torch.exp: work that is not a kernel's"),
    "a module of the package above": (
        "from .. import anything\n", "imports from .."),
}  # fmt: skip


@pytest.fixture
def package(tmp_path):
    """All that there must be, with nothing in it."""
    for name in ("MANIFEST.json", "__init__.py", "_forward.py"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_nothing_is_missing_but_is_said_to_be(package):
    assert static.check(package) == ()
    (package / "MANIFEST.json").unlink()
    assert [str(f) for f in static.check(package)] == ["static: MANIFEST.json: is missing"]
    assert {f.where for f in static.check(package / "nowhere")} == {"MANIFEST.json", "__init__.py", "_forward.py"}


def test_a_host_file_of_ones_own_is_one_finding(package, tmp_path_factory):
    before = tmp_path_factory.mktemp("incumbent")
    (before / "_library.py").write_text("A = 1\n")
    (package / "_library.py").write_text("import os\nos.abort()\n")
    (found,) = static.check(package, before)
    assert str(found).startswith("static: _library.py: differs from the incumbent's")


@pytest.mark.parametrize(("text", "said"), HOLES.values(), ids=HOLES)
def test_a_hole_is_closed(text, said, package):
    (package / "_forward.py").write_text(text)
    assert any(said in f.what for f in static.check(package)), static.check(package)


@pytest.mark.parametrize("name", ["native.so", "_forward.pyc", "_forward.pyx", "sitecustomize.pth"])
def test_what_is_no_source_has_no_place(name, package):
    (package / name).write_bytes(b"")
    assert [f.where for f in static.check(package)] == [name]


def test_arguments_of_kernels_have_the_names_they_like(package):
    text = "import cuda.tile as ct\n@ct.kernel\ndef state(x, out, max: int):\n    ct.store(out, (0,), x)\n"
    (package / "state.py").write_text(text)
    assert static.check(package) == ()
