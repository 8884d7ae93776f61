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


@pytest.mark.parametrize(("text", "said"), HOLES.values(), ids=HOLES)
def test_a_hole_is_closed(text, said, tmp_path):
    (tmp_path / "_forward.py").write_text(text)
    assert any(said in f.what for f in static.check(tmp_path)), static.check(tmp_path)


@pytest.mark.parametrize("name", ["native.so", "_forward.pyc", "_forward.pyx", "sitecustomize.pth"])
def test_what_is_no_source_has_no_place(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    assert [f.where for f in static.check(tmp_path)] == [name]


def test_arguments_of_kernels_have_the_names_they_like(tmp_path):
    text = "import cuda.tile as ct\n@ct.kernel\ndef state(x, out, max: int):\n    ct.store(out, (0,), x)\n"
    (tmp_path / "state.py").write_text(text)
    assert static.check(tmp_path) == ()
