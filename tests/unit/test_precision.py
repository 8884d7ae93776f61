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
