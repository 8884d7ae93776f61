"""The stage that reads: what a candidate's files may import, name, call and keep. A list of what is allowed.

It is no proof: whoever gets past it meets the stages that run the candidate where it can do no harm. It keeps out what
has no place in a kernel package, and says where it stands. Nothing of the candidate is run.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

from ssmgen.check.precision import low_precision
from ssmgen.check.verdict import Finding, Stage
from ssmgen.signatures import VARIANTS, symbol

HOST_FILES = ("__init__.py", "_arguments.py", "_library.py", "_values.py")
"""Of a generated package, those that no schedule changes but in `_FREE`: a candidate's are its incumbent's."""
# constants that follow from routes and schedules, and what each may be
_FREE = dict.fromkeys(("CHUNK", "MAX_ROWS", "MAX_TOKENS"), r"[0-9]+") | {"NAMESPACE": r"'ssmgen_\w+'"}
_NEEDED = ("MANIFEST.json", "__init__.py", "_forward.py")
_MODULES = ("torch", "cuda.tile", "math")
# what a host function needs of torch: places to put results, and where they are to be
_TORCH = {
    *("Tensor", "empty", "empty_like", "dtype", "device", "cuda.current_stream", "bool", "uint8", "int8", "int16"),
    *("int32", "int64", "float16", "bfloat16", "float32", "float64"),
}
# zero_ and copy_ are for calls without tokens, which have results and no kernels
_METHODS = {
    *("shape", "dtype", "device", "type", "index", "ndim", "dim", "numel", "size", "stride", "element_size"),
    *("view", "reshape", "flatten", "unflatten", "transpose", "permute", "expand", "unsqueeze", "squeeze", "narrow"),
    *("T", "mT", "contiguous", "is_contiguous", "new_empty", "astype", "item_size", "copy_", "zero_"),
}
_BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max"),
    *("min", "pow", "range", "reversed", "round", "str", "sum", "tuple", "zip", "map"),
    *("ValueError", "TypeError", "RuntimeError", "True", "False", "None"),
}
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.Lambda)
_STATEMENTS = {
    ast.Try: "try: a launch that fails must be seen to fail",
    ast.TryStar: "try: a launch that fails must be seen to fail",
    ast.With: "with",
    ast.ClassDef: "a class",
    ast.Global: "global: what a call leaves behind reaches the next one",
    ast.Nonlocal: "nonlocal: what a call leaves behind reaches the next one",
    ast.Delete: "del",
    ast.AsyncFunctionDef: "async",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
}


def check(folder: Path, incumbent: Path | None = None) -> tuple[Finding, ...]:
    """Everything in a candidate's folder that is not allowed, by file and line; empty where nothing is.

    Host files that are the incumbent's, but for headers and constants that a schedule decides, are taken as they are.
    Raises nothing for a file that is no Python: that is a finding.
    """
    found = [_finding(name, 0, "is missing") for name in _NEEDED if not (folder / name).is_file()]
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found.append(_finding(name, 0, "a link: a candidate is what is in its folder"))
        elif path.is_file() and path.suffix == ".py":
            found += _file(path, name, incumbent)
        elif path.is_file() and path.name != "MANIFEST.json":
            found.append(_finding(name, 0, "a file that is neither Python nor a manifest"))
    return tuple(found)


def symbols(folder: Path) -> set[str]:
    """The names that a candidate's kernels have on the GPU."""
    trees = [ast.parse(path.read_bytes()) for path in folder.rglob("*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    kernels = [each.name for each in functions if any("ct.kernel" in ast.unparse(d) for d in each.decorator_list)]
    return {symbol(name, variant) for name in kernels for variant in VARIANTS}


def _file(path: Path, name: str, incumbent: Path | None) -> Iterator[Finding]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as e:
        yield _finding(name, getattr(e, "lineno", 0) or 0, f"is no Python: {e}")
        return
    if incumbent is not None and name in HOST_FILES and (incumbent / name).is_file():
        if not same_program(tree, ast.parse((incumbent / name).read_bytes())):
            yield _finding(name, 0, "differs from the incumbent's: kernels and _forward.py are what may differ")
        return
    for node, what in (*_module(tree), *_Rules(tree).findings(), *low_precision(tree)):
        yield _finding(name, getattr(node, "lineno", 0), what)


def same_program(a: ast.Module, b: ast.Module) -> bool:
    """Whether two host files differ in nothing but comments, headers and the constants that a schedule decides."""
    return _without_constants(a) == _without_constants(b)


def _without_constants(tree: ast.Module) -> str:
    """The program, as text that comments, headers and these constants do not change."""
    kept = [node for node in tree.body if not _is_free(node)]
    return ast.dump(ast.Module(kept, []))


def _is_free(node: ast.stmt) -> bool:
    name, _, value = ast.unparse(node).partition(" = ")
    return name in _FREE and re.fullmatch(_FREE[name], value) is not None


def _module(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """What a module may do while it is imported: import, define, and name constants."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            held = [part for part in ast.walk(node.value) if isinstance(part, (*_CONTAINERS, ast.Call))]
            if held and ast.unparse(node).partition(" ")[0] != "__all__":
                yield held[0], "a module that holds more than constants: what a call leaves there reaches the next one"
            continue
        yield node, "a statement that runs at import"


class _Rules:
    """Names, attributes and statements of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._modules: dict[str, str] = {}
        self._known: set[str] = set(_BUILTINS)
        self._own: set[str] = set()
        for node in ast.walk(tree):
            self._learn(node)
        # what is an argument here is still Python's own there
        self._known = {n for n in self._known if n in _BUILTINS or not (n in vars(builtins) or n.startswith("__"))}

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self._modules |= {a.asname or a.name.partition(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {a.asname or a.name for a in node.names}
            self._known |= names
            self._own |= names if node.level else set()
        elif isinstance(node, ast.FunctionDef):
            self._known.add(node.name)
        elif isinstance(node, ast.arg):
            self._known.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._known.add(node.id)

    def findings(self) -> Iterator[tuple[ast.AST, str]]:
        """Everything that is not allowed."""
        inside = {id(part) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute) for part in [node.value]}
        for node in ast.walk(self._tree):
            if type(node) in _STATEMENTS:
                yield node, _STATEMENTS[type(node)]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._import(node)
            elif isinstance(node, ast.Name):
                yield from self._name(node)
            elif isinstance(node, ast.Attribute) and id(node) not in inside:
                yield from self._attribute(node)
            elif isinstance(node, ast.FunctionDef):
                yield from self._function(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.AST, str]]:
        if isinstance(node, ast.Import):
            yield from ((node, f"imports {a.name}") for a in node.names if a.name not in _MODULES)
        elif node.level != 1 and not (node.level == 0 and node.module in ("cuda.tile", "math")):
            yield node, f"imports from {'.' * node.level}{node.module or ''}"
        elif any(a.name == "*" for a in node.names):
            yield node, "imports *"

    def _name(self, node: ast.Name) -> Iterator[tuple[ast.AST, str]]:
        name = node.id
        if name in self._known or name in self._modules:
            if isinstance(node.ctx, ast.Store) and name in vars(builtins):
                yield node, f"{name}: takes the name of a builtin"
            return
        yield node, f"{name}: {'a builtin that no kernel needs' if name in vars(builtins) else 'is not defined here'}"

    def _attribute(self, node: ast.Attribute) -> Iterator[tuple[ast.AST, str]]:
        parts = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            if isinstance(at.ctx, ast.Store):
                yield at, f"{ast.unparse(at)}: sets an attribute: what a call leaves there reaches the next one"
                return
            parts.append(at.attr)
            at = at.value
        path = ".".join(reversed(parts))
        module = self._modules.get(at.id) if isinstance(at, ast.Name) else None
        if module == "torch":
            if not any(path == known or path.startswith(f"{known}.") for known in _TORCH):
                yield node, f"torch.{path}: work that is not a kernel's, or not a place to put results"
        elif module in ("cuda.tile", "math"):
            yield from self._tile(node, path, module)
        elif isinstance(at, ast.Name) and at.id in self._own and len(parts) == 1 and not parts[0].startswith("_"):
            return
        else:
            yield from ((node, f".{part}: not what a tensor is asked for") for part in parts if part not in _METHODS)

    def _tile(self, node: ast.AST, path: str, module: str) -> Iterator[tuple[ast.AST, str]]:
        first = path.partition(".")[0]
        if first.startswith("_") or (module == "cuda.tile" and first not in _tile_names()):
            yield node, f"{module}.{path}: not a part of the language that kernels are written in"

    def _function(self, node: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            if isinstance(default, (*_CONTAINERS, ast.Call)):
                yield default, "a default that is kept from call to call"
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called) not in ("ct.kernel", "ct.function"):
                yield decorator, f"@{ast.unparse(called)}: nothing but kernels is decorated"


def _tile_names() -> set[str]:
    """What the interpreter knows of cuda.tile, launching included."""
    from ssmgen.interpreter.launching import Launcher
    from ssmgen.interpreter.module import TileModule

    return set(vars(TileModule(Launcher()))) - {"tune", "submodules", "launcher"}


def _finding(name: str, line: int, what: str) -> Finding:
    return Finding(Stage.STATIC, what, f"{name}:{line}" if line else name)
