"""What one file of a candidate may say: imports, names, attributes and statements, each by a list of what is allowed.

It knows nothing of packages but where a file's own modules are; `static` asks it of every file.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path

# each under the one name that it is known by everywhere
_MODULES = {"torch": "torch", "cuda.tile": "ct", "math": "math"}
# what host code asks of the files that every package of an operator shares
_SHARED = {
    "_arguments": {"allocate", "check_sizes", "current_stream", "device", "floats", "integers", "rows"},
    "_values": {"check_decay", "check_sequences"},
}
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
_WRITING = ("copy_", "zero_")
_ALLOCATING = ("allocate", "torch.empty", "torch.empty_like")
_BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max"),
    *("min", "pow", "range", "reversed", "round", "str", "sum", "tuple", "zip", "map"),
    *("ValueError", "TypeError", "RuntimeError", "True", "False", "None"),
}
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.Lambda)
_STATEMENTS: dict[type[ast.AST], str] = {
    ast.Try: "try: a launch that fails must be seen to fail",
    ast.TryStar: "try: a launch that fails must be seen to fail",
    ast.With: "with",
    ast.Match: "match",
    ast.ClassDef: "a class",
    ast.Global: "global: what a call leaves behind reaches the next one",
    ast.Nonlocal: "nonlocal: what a call leaves behind reaches the next one",
    ast.Delete: "del",
    ast.AsyncFunctionDef: "async",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
}
# of the language of kernels, what is a value and not a function
_VALUES = re.compile(r"[A-Z]\w*|(u?int|b?float|tfloat)\d\w*|bool_")
_MEMBER = re.compile(r"[A-Z][A-Z0-9_]*")
# functions that take a function
_FOLDING = ("ct.scan", "ct.reduce")

Found = Iterator[tuple[ast.AST, str]]


def broken(tree: ast.Module, path: Path, package: Path) -> Found:
    """Everything in the file at `path` that is not allowed, by where it stands."""
    yield from _at_import(tree)
    yield from _Rules(tree, path, package).findings()


def _at_import(tree: ast.Module) -> Found:
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
    """One file."""

    def __init__(self, tree: ast.Module, path: Path, package: Path) -> None:
        self._tree, self._folder, self._package = tree, path.parent, package
        self._known: set[str] = {*_BUILTINS, *_MODULES.values()}
        self._own: dict[str, frozenset[str]] = {}
        """What was imported from files of the candidate's own, and which attributes it has."""
        for node in ast.walk(tree):
            self._learn(node)
        # what is an argument here is still Python's own there
        self._known = {n for n in self._known if n in _BUILTINS or not (n in vars(builtins) or n.startswith("__"))}

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom):
            self._own |= {
                each.asname or each.name: self._offered(node, each.name) or frozenset() for each in node.names
            }
            self._known |= self._own.keys()
        elif isinstance(node, ast.FunctionDef):
            self._known.add(node.name)
        elif isinstance(node, ast.arg):
            self._known.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._known.add(node.id)

    def _offered(self, node: ast.ImportFrom, name: str) -> frozenset[str] | None:
        """The attributes of what an import gets from a file of the candidate's own; None if there is no such thing."""
        module = node.module or ""
        if node.level != 1 or name.startswith("_"):
            return None
        if self._folder == self._package and module in _SHARED:
            return frozenset() if name in _SHARED[module] else None
        at = self._folder.joinpath(*module.split(".")) if module else self._folder
        if any(part.startswith("_") for part in module.split(".") if part):
            return None
        if (at / f"{name}.py").is_file():
            return _public(at / f"{name}.py")
        file = at.with_suffix(".py")
        return frozenset() if module and file.is_file() and name in _public(file) else None

    def findings(self) -> Found:
        """Everything that is not allowed."""
        inside = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        called = {id(each) for node in ast.walk(self._tree) for each in _called(node)}
        for node in ast.walk(self._tree):
            if type(node) in _STATEMENTS:
                yield node, _STATEMENTS[type(node)]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._import(node)
            elif isinstance(node, ast.Name):
                yield from self._name(node)
            elif isinstance(node, ast.Attribute) and id(node) not in inside:
                yield from self._attribute(node, id(node) in called)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                yield node, "writes to an element: kernels write"
            elif isinstance(node, ast.FunctionDef):
                yield from self._function(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Found:
        if node not in self._tree.body:
            yield node, "an import that is not made once, at the top"
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name not in _MODULES:
                    yield node, f"imports {each.name}"
                elif (each.asname or each.name) != _MODULES[each.name]:
                    yield node, f"imports {each.name} as another name than {_MODULES[each.name]}"
            return
        for each in node.names:
            if self._offered(node, each.name) is None:
                yield node, f"imports from {'.' * node.level}{node.module or ''} what is not for it: {each.name}"

    def _name(self, node: ast.Name) -> Found:
        name = node.id
        if isinstance(node.ctx, ast.Store) and (name in vars(builtins) or name in (*_MODULES.values(), *self._own)):
            yield node, f"{name}: takes the name of something else"
        elif name not in self._known:
            yield (
                node,
                f"{name}: {'a builtin that no kernel needs' if name in vars(builtins) else 'is not defined here'}",
            )

    def _attribute(self, node: ast.Attribute, called: bool) -> Found:
        parts = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            if isinstance(at.ctx, ast.Store):
                yield at, f"{ast.unparse(at)}: sets an attribute: what a call leaves there reaches the next one"
                return
            parts.append(at.attr)
            at = at.value
        path = ".".join(reversed(parts))
        root = at.id if isinstance(at, ast.Name) else ""
        if root == "torch":
            if path not in _TORCH:
                yield node, f"torch.{path}: work that is not a kernel's, or not a place to put results"
        elif root == "math":
            if path not in vars(math) or path.startswith("_"):
                yield node, f"math.{path}: not a part of it"
        elif root == "ct":
            yield from _tile(node, [*reversed(parts)], called)
        elif root in self._own:
            if path not in self._own[root]:
                yield node, f"{root}.{path}: nothing that its file defines"
        else:
            yield from ((node, f".{part}: not what a tensor is asked for") for part in parts if part not in _METHODS)

    def _function(self, node: ast.FunctionDef) -> Found:
        for name in (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)):
            if name in _MODULES.values():
                yield node, f"{name}: takes the name of something else"
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            if any(isinstance(part, (*_CONTAINERS, ast.Call)) for part in ast.walk(default)):
                yield default, "a default that is kept from call to call"
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called) not in ("ct.kernel", "ct.function"):
                yield decorator, f"@{ast.unparse(called)}: nothing but kernels is decorated"
        fresh = _allocated(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and each.attr in _WRITING and ast.unparse(each.value) not in fresh:
                yield each, f".{each.attr}: of what was not allocated here"


def _called(node: ast.AST) -> Iterator[ast.AST]:
    """What a node calls, decorates with or folds with: the places of functions."""
    if isinstance(node, ast.Call):
        yield node.func
        if ast.unparse(node.func) in _FOLDING:
            yield from node.args
    elif isinstance(node, ast.FunctionDef):
        yield from node.decorator_list


def _tile(node: ast.AST, parts: list[str], called: bool) -> Found:
    name, *members = parts
    allowed = name in _tile_names() and len(members) <= 1 and all(map(_MEMBER.fullmatch, members))
    if not allowed:
        yield node, f"ct.{'.'.join(parts)}: not a part of the language that kernels are written in"
    elif not called and not _VALUES.fullmatch(name):
        yield node, f"ct.{name}: under another name, or as a value"


@functools.cache
def _tile_names() -> frozenset[str]:
    """What the interpreter knows of cuda.tile, launching included."""
    from ssmgen.interpreter.launching import Launcher
    from ssmgen.interpreter.module import TileModule

    hidden = {"tune", "submodules", "launcher"}
    return frozenset(name for name in vars(TileModule(Launcher())) if not name.startswith("_") and name not in hidden)


def _public(file: Path) -> frozenset[str]:
    """Functions and constants that a file defines for others; what it is itself is found out when it is read."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    names |= {t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}
    return frozenset(name for name in names if not name.startswith("_"))


def _allocated(function: ast.FunctionDef) -> set[str]:
    """Names that in this function are never anything but new memory."""
    new = [
        node.targets[0].id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) in _ALLOCATING
    ]
    stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    arguments = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    return {name for name in new if new.count(name) == stored.count(name)} - arguments


def arguments_of_forward(tree: ast.Module) -> list[str]:
    """Those of the function that other files call, as text: one entry, unless it is missing or defined again."""
    return [ast.unparse(n.args) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "forward"]
