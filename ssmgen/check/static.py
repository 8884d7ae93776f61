"""The stage that reads: what a candidate's files may import, name, call and keep. A list of what is allowed.

It is no proof: whoever gets past it meets the stages that run the candidate where it can do no harm. It keeps out what
has no place in a kernel package, and says where it stands. Nothing of the candidate is run.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

from ssmgen.check import rules
from ssmgen.check.precision import low_precision
from ssmgen.check.verdict import Finding, Stage
from ssmgen.signatures import VARIANTS, symbol

HOST_FILES = ("__init__.py", "_arguments.py", "_library.py", "_values.py")
"""Of a generated package, those that no schedule changes but in `_FREE`: a candidate's are its incumbent's."""
# constants that follow from routes and schedules, and what each may be
_FREE = dict.fromkeys(("CHUNK", "MAX_ROWS", "MAX_TOKENS"), r"[0-9]+") | {"NAMESPACE": r"'ssmgen_\w+'"}
_FORWARD = "_forward.py"
_NEEDED = ("MANIFEST.json", "__init__.py", _FORWARD)


def check(folder: Path, incumbent: Path | None = None) -> tuple[Finding, ...]:
    """Everything in a candidate's folder that is not allowed, by file and line; empty where nothing is.

    Host files that are the incumbent's, but for headers and constants that a schedule decides, are taken as they are.
    Raises nothing for a file that is no Python: that is a finding.
    """
    found = [_finding(name, 0, "is missing") for name in _NEEDED if not (folder / name).is_file()]
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if "__pycache__" in path.relative_to(folder).parts:
            # what an import leaves behind, which is not what is run: `compare` copies the rest
            continue
        if path.is_symlink():
            found.append(_finding(name, 0, "a link: a candidate is what is in its folder"))
        elif path.is_file() and path.suffix == ".py":
            try:
                found += _file(path, folder, incumbent)
            except (RecursionError, MemoryError):
                found.append(_finding(name, 0, "is nested more deeply than can be read"))
        elif path.is_file() and path.name != "MANIFEST.json":
            found.append(_finding(name, 0, "a file that is neither Python nor a manifest"))
    return tuple(found)


def symbols(folder: Path) -> set[str]:
    """The names that a candidate's kernels have on the GPU."""
    trees = [ast.parse(path.read_bytes()) for path in folder.rglob("*.py") if path.is_file()]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    kernels = [each.name for each in functions if any("ct.kernel" in ast.unparse(d) for d in each.decorator_list)]
    return {symbol(name, variant) for name in kernels for variant in VARIANTS}


def _file(path: Path, folder: Path, incumbent: Path | None) -> Iterator[Finding]:
    name = path.relative_to(folder).as_posix()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as e:
        yield _finding(name, getattr(e, "lineno", 0) or 0, f"is no Python: {e}")
        return
    if incumbent is not None and name in HOST_FILES and (incumbent / name).is_file():
        if not same_program(tree, ast.parse((incumbent / name).read_bytes())):
            yield _finding(name, 0, "differs from the incumbent's: kernels and _forward.py are what may differ")
        return
    if name == _FORWARD and incumbent is not None and (incumbent / name).is_file():
        expected = rules.arguments_of_forward(ast.parse((incumbent / name).read_bytes()))
        if rules.arguments_of_forward(tree) != expected:
            yield _finding(name, 0, f"forward takes other arguments than the incumbent's: {', '.join(expected)}")
    for node, what in (*rules.broken(tree, path, folder), *low_precision(tree)):
        yield _finding(name, getattr(node, "lineno", 0), what)


def same_program(a: ast.Module, b: ast.Module) -> bool:
    """Whether two host files differ in nothing but comments, headers and the constants that a schedule decides."""
    return _without_constants(a) == _without_constants(b)


def _without_constants(tree: ast.Module) -> str:
    """The program, as text that comments, docstrings and the values of these constants do not change."""
    tree = copy.deepcopy(tree)
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_free(node):
            node.value = ast.Constant(None)
    for each in ast.walk(tree):
        if isinstance(each, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each, False) is not None:
            del each.body[0]
    return ast.dump(tree)


def _is_free(node: ast.stmt) -> bool:
    name, _, value = ast.unparse(node).partition(" = ")
    return name in _FREE and re.fullmatch(_FREE[name], value) is not None


def _finding(name: str, line: int, what: str) -> Finding:
    return Finding(Stage.STATIC, what, f"{name}:{line}" if line else name)
