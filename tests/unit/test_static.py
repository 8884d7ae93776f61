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
        "import torch as math\ndef forward(x): return math.exp(x)\n", "imports torch as another name than torch"),
    "a module of the package above": (
        "from .. import anything\n", "imports from .. what is not for it: anything"),
    "what lies beneath a function of the language": (
        "import cuda.tile as ct\ndef forward(x): ct.launch.__globals__['__builtins__']['exec']('')\n",
        "ct.launch.__globals__: not a part of the language"),
    "what lies beneath a class of torch": (
        "import torch\ndef forward(x): torch.Tensor.split.__globals__\n", "torch.Tensor.split.__globals__: work that"),
    "a method by its class": (
        "import torch\ndef forward(x): torch.Tensor.mul_(x, 2)\n", "torch.Tensor.mul_: work that is not a kernel's"),
    "the builtins of another file": (
        "from ._arguments import __builtins__ as b\n", "imports from ._arguments what is not for it: __builtins__"),
    "a module of another file": (
        "from ._arguments import torch as th\n", "imports from ._arguments what is not for it: torch"),
    "a whole shared file": (
        "from . import _arguments as a\n", "imports from . what is not for it: _arguments"),
    "a dict of another file": (
        "from ._arguments import _BITS as kept\n", "imports from ._arguments what is not for it: _BITS"),
    "a list within a default": (
        "def forward(x, kept=([0],)): return kept\n", "a default that is kept from call to call"),
    "an import within a function": (
        "def forward(x):\n    from .describe import ONE\n", "an import that is not made once"),
    "an element of something": (
        "def forward(x):\n    x[0] = 1\n", "writes to an element"),
    "attributes by a pattern": (
        "import torch\ndef forward(x):\n    match x:\n        case torch.Tensor(mul_=m): m(1.0)\n", "match"),
    "an input that is put back": (
        "import torch\ndef forward(x):\n    kept = torch.empty_like(x)\n    x.zero_()\n    kept.zero_()\n",
        ".zero_: of what was not allocated here"),
    "memory that was an input before": (
        "import torch\ndef forward(x):\n    y = torch.empty_like(x)\n    y = x\n    y.zero_()\n",
        ".zero_: of what was not allocated here"),
    "a part of the language under another name": (
        "import cuda.tile as ct\n@ct.kernel\ndef k(x):\n    m = ct.mma\n", "ct.mma: under another name"),
    "the language under another name": (
        "import cuda.tile as tile\n", "imports cuda.tile as another name than ct"),
    "parts of the language without their module": (
        "from cuda.tile import mma\n", "imports from cuda.tile what is not for it: mma"),
    "the name of a module": (
        "import cuda.tile as ct\ndef forward(ct): ct.mma\n", "ct: takes the name of something else"),
    "as deep as no reader goes": ("X = " + "-" * 5000 + "1\n", "is nested more deeply than can be read"),
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


def test_honest_host_code_is_allowed(package):
    """Of every kind that the rules look at, what they let pass."""
    (package / "stages").mkdir()
    (package / "stages" / "state.py").write_text(
        "import cuda.tile as ct\nROWS = 4\n@ct.kernel\ndef state(x, n: int, kind: ct.Constant[int]):\n"
        "    y = ct.scan(ct.load(x, (0,), (4,), padding_mode=ct.PaddingMode.ZERO), 0, ct.maximum, -1)\n"
        "    ct.store(x, (0,), y.astype(ct.float32))\n"
    )
    (package / "_forward.py").write_text(
        "import math\nimport cuda.tile as ct\nimport torch\nfrom ._arguments import allocate, current_stream\n"
        "from .stages import state as the_stage\nfrom .stages.state import ROWS, state as kernel\n"
        "def forward(x):\n    out = allocate(x.shape, x.dtype, x.device)\n    out.zero_()\n"
        "    ct.launch(current_stream(x.device), (math.ceil(x.numel()), the_stage.ROWS), the_stage.state, (x, 1, 2))\n"
        "    return out, kernel, ROWS\n"
    )
    assert static.check(package) == ()


def test_a_forward_of_other_arguments(package, tmp_path_factory):
    before = tmp_path_factory.mktemp("incumbent")
    (before / "_forward.py").write_text("def forward(x, B, C): pass\n")
    for arguments in ("x, C, B", "x, B, C, fast=True", "*x", "x, B, C, **more"):
        (package / "_forward.py").write_text(f"def forward({arguments}): pass\n")
        assert "takes other arguments than the incumbent's: x, B, C" in static.check(package, before)[0].what
    (package / "_forward.py").write_text("def forward(x, B, C): pass\ndef forward(x, B, C): pass\n")
    assert static.check(package, before) != ()


def test_another_models_name_in_a_docstring_is_no_difference(package, tmp_path_factory):
    before = tmp_path_factory.mktemp("incumbent")
    (before / "_values.py").write_text('"""Of one."""\ndef f():\n    "Of one."\n    return 1\n')
    (package / "_values.py").write_text('"""Of another."""\ndef f():\n    return 1\n')
    assert static.check(package, before) == ()
    (package / "_values.py").write_text('"""Of another."""\ndef f():\n    return 2\n')
    assert static.check(package, before) != ()


def test_what_an_import_leaves_is_passed_over(package):
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "_forward.cpython-311.pyc").write_bytes(b"")
    assert static.check(package) == ()
