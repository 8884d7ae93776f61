"""The design as assertions: who imports whom, how large things may be, and that names agree.

Budgets are judgement, set from the sizes of files that read well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssmgen.naming import KernelId
from ssmgen.plans import PLANS
from ssmgen.stages import STAGES
from tests.test_golden import CASES, GOLDEN

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ssmgen"
MODULES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted((ROOT / "templates").rglob("*.jinja"))
# what generates: no tensors, no compiler, no GPU, nothing that makes output differ from one machine to the next
PURE = (
    *("errors", "paths", "naming", "targets", "located_yaml", "conditions", "spec", "lock", "plans", "host"),
    *("host_checks", "limits", "routing", "render", "writing", "fileset", "generate", "repository", "new", "init"),
    *("cli", "configs", "ops", "stages"),
)
NEVER_AT_IMPORT = ("torch", "cuda", "sympy", "numpy", "triton")
# functions that take an operator's own arguments, in the order that mamba_ssm gives them
DROP_IN = (
    *("mamba_chunk_scan_combined", "selective_state_update", "gated_delta_rule_packed_decode", "honest_evaluation"),
    "evaluate",
)
# functions of cuda.tile that the interpreter has under the same signature, and the options of a command
GIVEN = ("load", "store", "atomic_cas", "verify")
MAX_MODULE, MAX_TEMPLATE, MAX_FUNCTION, MAX_PARAMETERS = 300, 120, 60, 6


def _pure_modules() -> list[str]:
    files = [path for name in PURE for path in (PACKAGE / f"{name}.py", *(PACKAGE / name).rglob("*.py"))]
    return [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in files if p.is_file()]


def test_generator_imports_neither_tensors_nor_compiler_nor_sympy() -> None:
    code = f"""
import importlib, importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NEVER_AT_IMPORT}:
            raise AssertionError("imports " + name)

sys.meta_path.insert(0, Refuse())
for module in {_pure_modules()}:
    importlib.import_module(module)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy() -> None:
    heavy = ("jinja2", "pydantic", "rich", "ruamel", "sympy", "torch", "cuda")
    code = f"""
import sys
from ssmgen.__main__ import main
sys.argv = ["ssmgen", "--help"]
try:
    main()
except SystemExit:
    pass
assert not (found := [name for name in {heavy} if name in sys.modules]), found
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_generation_knows_no_clock_and_no_environment() -> None:
    known = ("datetime", "getpass", "os.environ", "platform", "random", "socket", "time", "uuid")
    pure = ("naming", "targets", "conditions", "spec", "lock", "plans", "limits", "routing", "host", "host_checks")
    pure += ("render", "generate")
    for name in pure:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        assert not [n for n in _imports(tree) if n in known], name


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names))


@pytest.mark.parametrize("module", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_module(module: Path) -> None:
    text = module.read_text()
    assert text.count("\n") <= MAX_MODULE
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text.strip(), "no docstring that says what it is for and what it does not do"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION, f"{node.name} is too long"
            count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            count -= bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
            assert count <= MAX_PARAMETERS or node.name in (*DROP_IN, *GIVEN), f"{node.name} takes {count} parameters"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_template_size(template: Path) -> None:
    # a line statement prints nothing: what is budgeted is what a reader of the kernel meets
    printed = [line for line in template.read_text().splitlines() if not line.lstrip().startswith("# %")]
    assert len(printed) <= MAX_TEMPLATE


def test_stages_templates_plans_and_goldens_carry_the_same_names() -> None:
    names = set(STAGES)
    modules = {path.stem for path in (PACKAGE / "stages").glob("*.py")} - {"__init__", "base"}
    assert modules == names
    assert {stage.template for stage in STAGES.values()} == {f"mamba2/{name}.py.jinja" for name in names}
    assert {path.name for path in (ROOT / "templates/mamba2").glob("[!_]*")} == {f"{name}.py.jinja" for name in names}
    assert {stage.name for plan in PLANS.values() for stage in plan.stages} == names
    golden = {path.stem for case in CASES for path in (GOLDEN / case).glob("expected/*/*/*/*/*.py")}
    assert golden == names
    assert all(stage.name == name for name, stage in STAGES.items())


def test_what_launches_stands_on_its_own() -> None:
    """A bundle carries these modules as they are, to hosts that have torch and cuda-bindings and nothing else."""
    allowed = {*sys.stdlib_module_names, "torch", "cuda"}
    for path in sorted((PACKAGE / "runtime").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path
                assert (PACKAGE / "runtime" / f"{node.module}.py").is_file(), path
            elif isinstance(node, ast.ImportFrom):
                name = str(node.module)
                assert name.partition(".")[0] in allowed, path
                assert not name.startswith("cuda") or name == "cuda.bindings", path


def test_one_strict_environment() -> None:
    for path in MODULES:
        text = path.read_text()
        assert not re.search(r"\bTemplate\(|\bfrom_string\(", text), f"{path}: a template outside templates/"
        assert path.name == "render.py" or "Environment(" not in text, path
    for path in TEMPLATES:
        assert "is defined" not in path.read_text(), path


def test_committed_kernels_have_names_that_read_back() -> None:
    for path in sorted((ROOT / "generated").glob("*/sm_*/*/*/*.py")):
        name = path.relative_to(ROOT / "generated").with_suffix("").as_posix()
        assert KernelId.parse(name).format() == name
