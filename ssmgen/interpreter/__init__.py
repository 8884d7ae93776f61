"""A CPU interpreter for cuTile kernels, with a sanitizer: TRITON_INTERPRET's role, which cuTile has nobody for.

    file -> module (own cuda.tile, own builtins) -> launch -> blocks, one after another -> values + shadows

A kernel's file runs as it is, as Python, block by block, with cuTile's types, promotion, rounding and indexing. What
a GPU would take in silence is an error with file and line: `faults.RULES` lists what the sanitizer finds. What the
interpreter does not know is refused by name and line. What only cuTile's compiler refuses it cannot see: compile too.
"""

from __future__ import annotations

from ssmgen.interpreter.blocks import Counts
from ssmgen.interpreter.faults import RULES
from ssmgen.interpreter.files import load_file, load_package
from ssmgen.interpreter.watching import watch

__all__ = ["RULES", "Counts", "load_file", "load_package", "watch"]
