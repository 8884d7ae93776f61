"""Route conditions: small arithmetic over run-time and model sizes, such as `B*heads < 128 and T > 512`.

Parsed with the standard library, so that loading a spec needs no sympy; only names, whole numbers, + - * // %,
comparisons, and, or, not are known.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence

RUN_TIME = ("B", "T", "N")
"""Rows, tokens of a row, and sequences: those of cu_seqlens, without it one a row."""
LONGEST = 200
# every T below is tried
DENSE = 2**13
MODEL = ("heads", "groups", "head_dim", "state")
_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.FloorDiv, ast.Mod, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Name, ast.Load,
    ast.Constant,
)  # fmt: skip


def parse(text: str) -> ast.Expression:
    """The expression in `text`; ValueError says what in it is not known."""
    if len(text) > LONGEST or not text.isascii():
        raise ValueError(f"a condition is at most {LONGEST} ASCII characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as e:
        raise ValueError(f"not an expression: {e.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ValueError(
                f"{type(node).__name__} is not allowed; "
                "use names, whole numbers, + - * // %, < <= > >= == !=, and, or, not"
            )
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            raise ValueError(f"{node.value!r} is not a whole number")
        if isinstance(node, ast.Name) and node.id not in RUN_TIME + MODEL:
            raise ValueError(f"unknown name {node.id!r}; known: {', '.join(RUN_TIME + MODEL)}")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
            divisor = node.right.value if isinstance(node.right, ast.Constant) else 0
            if not isinstance(divisor, int) or divisor < 1:
                raise ValueError("// and % take a positive number on their right")
    _compares(tree.body)
    return tree


def _compares(node: ast.expr) -> None:
    """Raise ValueError unless `node` is made of comparisons alone, joined by and, or, not."""
    if isinstance(node, ast.BoolOp):
        for part in node.values:
            _compares(part)
    elif isinstance(node, ast.UnaryOp):
        _compares(node.operand)
    elif not isinstance(node, ast.Compare):
        raise ValueError(f"{ast.unparse(node)} compares nothing; a condition is such as B*T <= 4096")


def names(text: str) -> set[str]:
    """The run-time and model sizes that the condition speaks of."""
    return {node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name)}


def python(text: str, words: Mapping[str, str]) -> str:
    """`text` as Python source, with each name replaced by `words[name]` where given."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Name(words.get(node.id, node.id), ast.Load())

    return ast.unparse(Rename().visit(parse(text)))


def ever_hold(texts: Sequence[str], values: Mapping[str, int], batch: int | None = None) -> bool:
    """Whether one of the conditions holds for some T, and some B = N, or that `batch` and some N.

    Tried are the first numbers, those around powers of two, and those around the numbers in the conditions themselves.
    """
    trees = [parse(text) for text in texts]
    codes = [compile(tree, "<condition>", "eval") for tree in trees]
    named = [n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int]
    around = {at + more for at in (*named, *(2**power for power in range(31))) for more in (-1, 0, 1)}
    sparse = sorted(n for n in around if 0 < n < 2**31)
    told = any("N" in names(text) for text in texts)
    # without cu_seqlens every row is a sequence
    rows = [(b, b) for b in sparse] if batch is None else [(batch, n) for n in (sparse if told else [1])]
    return any(
        eval(code, {"__builtins__": {}}, {**values, "B": b, "T": t, "N": n})
        for b, n in rows
        for t in itertools.chain(range(1, DENSE), sparse)
        for code in codes
    )


def evaluate(text: str, values: Mapping[str, int]) -> bool:
    """Whether the condition holds for these values of B, T, N, heads, groups, head_dim and state."""
    code = compile(parse(text), "<condition>", "eval")
    return bool(eval(code, {"__builtins__": {}}, dict(values)))
