"""What is accumulated or carried in few digits is seen wherever the text says so, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ssmgen.check.precision import low_precision
from ssmgen.paths import project

CARRIED, SUMMED = (
    "h: carried from step to step in bfloat16, not in float32",
    "ct.cumsum sums in bfloat16, not in float32",
)
LOOP = """
{before}
@ct.kernel
def kernel(x, out):
    h = ct.zeros((16,), dtype={dtype})
    for i in range(8):
        h = h + ct.load(x, (i,), (16,))
    ct.store(out, (0,), h)
"""
SUM = """
{before}
def total(x):
    return ct.cumsum(ct.load(x, (0,), (16,)).astype({dtype}), 0)
"""


@pytest.mark.parametrize(("text", "said"), [(LOOP, CARRIED), (SUM, SUMMED)])
@pytest.mark.parametrize(("before", "dtype"), [
    ("", "ct.bfloat16"),
    ("FEW = ct.bfloat16", "FEW"),
    ("FEW = ct.bfloat16\nFEWER = FEW", "FEWER"),
    ("from cuda.tile import bfloat16 as float32", "float32"),
])  # fmt: skip
def test_few_digits_are_seen(text, said, before, dtype):
    found = [what for _, what in low_precision(ast.parse(text.format(before=before, dtype=dtype)))]
    assert found == [said]


@pytest.mark.parametrize("text", [LOOP, SUM])
@pytest.mark.parametrize("dtype", ["ct.float32", "WIDE"])
def test_enough_digits_are_not(text, dtype):
    assert not [*low_precision(ast.parse(text.format(before="WIDE = ct.float32\nFEW = ct.bfloat16", dtype=dtype)))]


def test_a_name_of_a_functions_own():
    text = LOOP.format(before="", dtype="few").replace("    h = ct.zeros", "    few = ct.bfloat16\n    h = ct.zeros")
    assert [what for _, what in low_precision(ast.parse(text))] == [CARRIED]


def test_committed_kernels_have_enough_digits():
    files = [*project(Path(__file__)).generated.rglob("*.py")]
    assert len(files) > 100
    assert not [(f, what) for f in files for _, what in low_precision(ast.parse(f.read_text()))]


BODY = """
def low(v):
    return v.astype(ct.bfloat16)
@ct.kernel
def kernel(x, out):
    h = ct.zeros((16,), dtype=ct.float32)
    for i in range(8):
        {step}
    ct.store(out, (0,), {last})
"""


@pytest.mark.parametrize(("step", "last", "said"), [
    ("h = ct.astype(h + x, ct.bfloat16)", "h", CARRIED),
    ("h = low(h + x)", "h", CARRIED),
    ("h = (h + x).astype(ct.bfloat16) if i else h", "h", CARRIED),
    ("g = low(h)\n        h = g + g", "h", CARRIED),
    ("h = h + x", "ct.cumsum(ct.add(low(x), low(x)), 0)", SUMMED),
    ("h = h + x", "ct.cumsum((y := low(x)), 0)", SUMMED),
    ("h = h + x", "ct.cumsum(low(x) if i else x, 0)", SUMMED),
])  # fmt: skip
def test_few_digits_by_a_detour(step, last, said):
    assert said in [what for _, what in low_precision(ast.parse(BODY.format(step=step, last=last)))]


@pytest.mark.parametrize("step", [
    "now = h\n        h = ct.load(x, (i,), (16,)).astype(ct.bfloat16)",
    "ct.mma(h, h, x)\n        if i < 7:\n            h = low(ct.load(x, (i + 1,), (16,)))",
])  # fmt: skip
def test_what_is_loaded_a_step_ahead_is_not_carried(step):
    text = BODY.format(step=step, last="h").replace("dtype=ct.float32", "dtype=ct.bfloat16")
    assert not [*low_precision(ast.parse(text))]
