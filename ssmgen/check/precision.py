"""In which precision a kernel accumulates and carries: what it keeps from one step of a loop to the next, and sums.

A walk over the syntax tree that follows dtypes as far as they are written down. What it cannot know, such as the dtype
of an array that it loads from, it leaves to the stages that look at results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_LOW = {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tfloat32"}
_FULL = {"float32", "float64"}
_NUMBER = "number"
# whose result has the dtype of what they are given first
_KEEPING = {
    *("reshape", "transpose", "permute", "extract", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos"),
    *("tanh", "negative", "floor", "ceil", "broadcast_to", "expand_dims", "sum", "max", "min", "prod", "cumsum"),
    "cumprod",
}
_ARITHMETIC = {"where", "maximum", "minimum", "add", "sub", "mul", "truediv", "pow", "mod"}
_SUMMING = {"sum", "cumsum", "prod", "cumprod", "scan", "reduce"}


def low_precision(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Accumulators, sums and carried values that are known to have less than float32's digits.

    Kernels call functions, and dtypes have other names: both are followed within the file.
    """
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= _named(node.targets[0], node.value, names)
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: each.name for each in node.names if each.name in _LOW | _FULL}
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    returned: dict[str, str | None] = {}
    for last in (False, True):
        # once to know what functions give to one another
        for each in functions:
            walk = _Walk(names, returned)
            walk.block(each.body)
            returned[each.name] = walk.returned
            if last:
                yield from walk.found


class _Walk:
    """One function, in the order in which it runs."""

    def __init__(self, names: Mapping[str, str], functions: Mapping[str, str | None]) -> None:
        self._names, self._functions = dict(names), functions
        self.returned: str | None = None
        self._dtypes: dict[str, str | None] = {}
        self.found: list[tuple[ast.AST, str]] = []

    def block(self, body: list[ast.stmt]) -> None:
        """Some statements."""
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            dtype = self._dtype(node.value)
            self._dtypes[node.target.id] = _promoted(self._dtypes.get(node.target.id), dtype)
        elif isinstance(node, ast.For | ast.While):
            self._loop(node)
        elif isinstance(node, ast.If):
            self._dtype(node.test)
            self.block(node.body)
            self.block(node.orelse)
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returned = self._dtype(node.value)
        elif isinstance(node, ast.Expr):
            self._dtype(node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            dtypes = [self._dtype(each) for each in value.elts]
            for each, dtype in zip(target.elts, dtypes, strict=True):
                if isinstance(each, ast.Name):
                    self._dtypes[each.id] = dtype
            return
        self._names |= _named(target, value, self._names)
        dtype = self._dtype(value)
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Name):
                self._dtypes[each.id] = dtype

    def _loop(self, node: ast.For | ast.While) -> None:
        # what is only read a step later than it was made sums nothing up
        carried = {n: at for n, at in _read_before_written(node.body).items() if n in _sources(node.body, n)}
        before = {name: self._dtypes.get(name) for name in carried}
        self.block(node.body)
        for name, at in carried.items():
            for dtype in (before[name], self._dtypes.get(name)):
                if dtype in _LOW:
                    self.found.append((at, f"{name}: carried from step to step in {dtype}, not in float32"))
                    break

    def _dtype(self, node: ast.expr) -> str | None:
        """Of a value, where it is written down; finds sums and accumulators on the way."""
        if isinstance(node, ast.Name):
            return self._dtypes.get(node.id)
        if isinstance(node, ast.Constant):
            return _NUMBER
        return self._call(node) if isinstance(node, ast.Call) else self._composed(node)

    def _composed(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.BinOp):
            return _promoted(self._dtype(node.left), self._dtype(node.right))
        if isinstance(node, ast.UnaryOp | ast.Subscript):
            return self._dtype(node.operand if isinstance(node, ast.UnaryOp) else node.value)
        if isinstance(node, ast.IfExp):
            either = [self._dtype(each) for each in (node.body, node.orelse)]
            return next((each for each in either if each in _LOW), either[0])
        if isinstance(node, ast.NamedExpr):
            self._assign(node.target, node.value)
            return self._dtype(node.target)
        return None

    def _call(self, node: ast.Call) -> str | None:
        operands = [self._dtype(each) for each in node.args]
        named = {k.arg: k.value for k in node.keywords if k.arg}
        if not isinstance(node.func, ast.Attribute):
            return self._functions.get(ast.unparse(node.func))
        name = node.func.attr
        of_method = None if _is_module(node.func.value) else self._dtype(node.func.value)
        if name == "astype":
            asked = [*node.args[_is_module(node.func.value) :], named.get("dtype")]
            return _written(asked[0], self._names)
        if name in ("zeros", "full", "ones", "arange", "load", "gather"):
            given = named.get("dtype") or (node.args[-1] if name in ("zeros", "full", "ones") and node.args else None)
            return _written(given, self._names)
        if name == "mma":
            accumulator = operands[2] if len(operands) > 2 else self._dtype(named["acc"]) if "acc" in named else None
            if accumulator in _LOW:
                self.found.append((node, f"ct.mma accumulates in {accumulator}, not in float32"))
            return accumulator
        first = of_method or (operands[0] if operands else None)
        if name in _SUMMING and first in _LOW:
            self.found.append((node, f"ct.{name} sums in {first}, not in float32"))
        if name in _ARITHMETIC:
            return _promoted(*(operands[-2:] if len(operands) > 1 else (None, None)))
        return first if name in _KEEPING else None


def _read_before_written(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """Names that a loop's body reads before it writes them, and writes: by where they are written."""
    read: set[str] = set()
    written: dict[str, ast.AST] = {}
    carried: dict[str, ast.AST] = {}
    for statement in body:
        for node in _in_order(statement):
            if isinstance(node.ctx, ast.Store):
                written[node.id] = node
                if node.id in read:
                    carried.setdefault(node.id, node)
            elif node.id not in written:
                read.add(node.id)
    return carried


def _sources(body: list[ast.stmt], name: str) -> set[str]:
    """Names that a loop's body makes a name's next value of, by however many steps."""
    made: dict[str, set[str]] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
                for target in (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                    more = {target.id} if isinstance(node, ast.AugAssign) else set()
                    made.setdefault(target.id, set()).update(names | more)
    found: set[str] = set()
    due = [name]
    while due:
        new = made.get(due.pop(), set()) - found
        found |= new
        due += new
    return found


def _in_order(statement: ast.stmt) -> Iterator[ast.Name]:
    """Names of a statement, what it reads before what it writes."""
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            yield ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)
        if statement.value is not None:
            yield from (n for n in ast.walk(statement.value) if isinstance(n, ast.Name))
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        return
    inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt):
            yield from (n for n in ast.walk(child) if isinstance(n, ast.Name))
    for child in inner:
        yield from _in_order(child)


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "ct"


def _named(target: ast.expr, value: ast.expr, names: Mapping[str, str]) -> dict[str, str]:
    """The name that an assignment gives to a dtype, if it does."""
    dtype = _written(value, names) if isinstance(value, ast.Name | ast.Attribute) else None
    return {target.id: dtype} if isinstance(target, ast.Name) and dtype else {}


def _written(node: ast.expr | None, names: Mapping[str, str]) -> str | None:
    """The dtype that an expression names."""
    name = ast.unparse(node).rpartition(".")[2] if node is not None else ""
    name = names.get(name, name)
    return name if name in _LOW | _FULL else None


def _promoted(a: str | None, b: str | None) -> str | None:
    """Of an arithmetic operation: a number takes the other's dtype; of what is unknown, the result is."""
    if a in _FULL or b in _FULL:
        return a if a in _FULL else b
    if _NUMBER in (a, b):
        return b if a == _NUMBER else a
    return a if a == b else None
