"""Every bad input is one error with its place, what was found, what is right, what to do; nothing on disk changes."""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path

import pytest

from ssmgen import spec
from ssmgen.errors import Location, SpecError, then_run
from tests.conftest import MODEL, SPEC, Project

PACKAGE = Path(spec.__file__).parent
CONFIGS = Path(__file__).parent / "configs"
CONFIG = (CONFIGS / "nemotron_h_8b.json").read_text()
SPEC_FILE, LOCK_FILE = f"specs/{MODEL}.yaml", f"specs/{MODEL}.lock.yaml"
# the errors that speak of a user's file
KINDS = ("SpecError", "LockError", "ConfigError", "ViolationError", "error")

SPECS = {
    "unknown key": SPEC.replace("head_dim:", "headdim:"),
    "unknown key, none near": SPEC + "zzz: 1\n",
    "duplicate key": SPEC + "schema: 1\n",
    "missing key": SPEC.replace("targets: [sm_90]\n", ""),
    "groups": SPEC.replace("groups: 2", "groups: 7"),
    "dtype": SPEC.replace("x: bfloat16", "x: float64"),
    "dt": SPEC.replace("dt: float32", "dt: float16"),
    "chunk": SPEC.replace("state: 128}", "state: 128, chunk: 48}"),
    "head dim of 0": SPEC.replace("head_dim: 64", "head_dim: 0"),
    "plan": SPEC.replace("plan: segmented", "plan: segment"),
    "condition": SPEC.replace("B*T > 4096", "B*Q"),
    "target": SPEC.replace("sm_90", "sm_91"),
    "target is a number": SPEC.replace("sm_90", "90"),
    "initial states": SPEC.replace("dt_limit: runtime", "dt_limit: runtime, initial_states: false"),
    "gate": SPEC.replace("dt_limit: runtime", "dt_limit: runtime, z: per_head"),
    "name": SPEC.replace(f"name: {MODEL}", "name: Nemotron-H"),
    "another name": SPEC.replace(f"name: {MODEL}", "name: other"),
    "route name": SPEC.replace("short:", "class:"),
    "no operator": "schema: 1\nmodel: {name: tiny_9b, source: table}\noperators: {}\ntargets: [sm_90]\n",
    "empty": "",
    "a comment": "# later\n",
    "a list": "- a\n",
    "not YAML": SPEC.replace("[sm_90]", "[sm_90"),
    "control character": SPEC + "a: \x00\n",
    "alias": SPEC.replace("{heads: 16, groups: 2", "{heads: &a 16, groups: *a"),
    "a mapping as key": SPEC.replace("targets:", "? {a: 1}\n:"),
    "nested too deeply": SPEC + "a: " + "[" * 3000,
    "number too long": SPEC.replace("16", "9" * 5000),
    "not UTF-8": SPEC.encode() + b"# caf\xe9\n",
}
LOCKS = {
    "chunk of 48": ("chunk: 128", "chunk: 48"),
    "segments": ("segments: 8", "segments: 6"),
    "tile": ("state_tile: 64", "state_tile: 96"),
    "unknown field": ("head_tile:", "head_tiles:"),
    "text": ("chunk: 128", "chunk: '128'"),
    "stage": ("combine:", "cambine:"),
    "route": ("long:", "lang:"),
    "target": ("sm_90:", "sm_91:"),
    "operator": ("mamba_chunk_scan_combined:", "mamba:"),
    "another model": (f"model: {MODEL}", "model: other"),
    "unknown key": ("schema: 1", "schema: 1\nscheme: 2"),
    "duplicate key": ("schema: 1", "schema: 1\nschema: 1"),
    "nothing": ("targets:", "targets: {}\n#"),
    "not YAML": ("targets:", "targets: ["),
}
CONFIG_FILES = {
    "truncated": CONFIG[:100],
    "not JSON": "model_type: mamba2\n",
    "empty": "",
    "an array": "[]",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{\n"a": "\xe9"}',
    "duplicate key": CONFIG.replace("{", '{"n_groups": 1,', 1),
    "groups": CONFIG.replace('"n_groups": 8', '"n_groups": 7'),
    "head dim of 0": CONFIG.replace('"mamba_head_dim": 64', '"mamba_head_dim": 0'),
    "head dim of 512": CONFIG.replace('"mamba_head_dim": 64', '"mamba_head_dim": 512'),
    "dtype": CONFIG.replace("{", '{"torch_dtype": "float64",', 1),
    "two languages": '{"text_config": {}, "llm_config": {}}',
    "a number too long": '{"n": ' + "9" * 5000 + "}",
    "nested too deeply": "[" * 100_000,
    **{path.stem: path.read_text() for path in sorted(CONFIGS.glob("refused_*.json"))},
}


def _tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def _refused(project: Project, place: str, *arguments: str) -> None:
    """The command ends in one whole error at `place`, which may be a pattern, and changes nothing."""
    before = _tree(project.root)
    outcome = project.run(*arguments)
    assert outcome.code == 2, outcome.out
    assert outcome.out == ""
    assert re.match(rf"error: {place}: \S", outcome.err), outcome.err
    labels = [line[2:12].strip() for line in outcome.err.splitlines()[1:]]
    assert labels == ["found:", "expected:", "next:"], outcome.err
    for line in outcome.err.splitlines()[1:]:
        assert line[12:].strip() not in ("", "None"), outcome.err
    assert re.search(r"(ssmgen (generate|lock|new) |pip install |with -o)", outcome.err.splitlines()[-1]), outcome.err
    assert _tree(project.root) == before


@pytest.mark.parametrize("case", SPECS)
def test_spec(generated: Project, case: str) -> None:
    content = SPECS[case]
    (generated.root / SPEC_FILE).write_bytes(content if isinstance(content, bytes) else content.encode())
    for verb in (("generate",), ("compile",), ("lock",), ("generate", "--check")):
        _refused(generated, rf"specs/{MODEL}\.yaml:\d+", *verb)


@pytest.mark.parametrize("case", LOCKS)
def test_lock(generated: Project, case: str) -> None:
    path = generated.root / LOCK_FILE
    old, new = LOCKS[case]
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    _refused(generated, rf"specs/{MODEL}\.lock\.yaml:\d+", "generate")


@pytest.mark.parametrize("case", CONFIG_FILES)
def test_config(project: Project, case: str) -> None:
    content = CONFIG_FILES[case]
    (project.root / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    _refused(project, r"config\.json:\d+", "new", "config.json")


def test_split(project: Project) -> None:
    project.write("config.json", CONFIG)
    _refused(project, r"config\.json:\d+", "new", "config.json", "--tp", "3")
    assert "next:     ssmgen new config.json --tp 2\n" in project.run("new", "config.json", "--tp", "3").err


def test_what_is_not_there(generated: Project) -> None:
    _refused(generated, "specs/tiny_9.yaml", "generate", "specs/tiny_9.yaml")
    _refused(generated, "config.json", "new", "config.json")
    _refused(generated, "specs", "new", "specs")
    (generated.root / LOCK_FILE).unlink()
    _refused(generated, LOCK_FILE, "generate")


def test_a_folder_that_cannot_be_written(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    _refused(locked, r"generated/\S+", "generate")
    assert not (locked.root / "generated").exists()


def test_the_reason_of_an_option_is_said_in_the_specs_own_words(locked: Project) -> None:
    locked.write(SPEC_FILE, SPECS["initial states"])
    assert locked.run("generate").err == (
        f"error: {SPEC_FILE}:7: operators.mamba_chunk_scan_combined.options.initial_states: not valid: "
        "every kernel takes initial states, and a call without them passes None\n"
        "  found:    false\n"
        "  expected: true\n"
        f"  next:     change initial_states, then run: ssmgen generate {SPEC_FILE}\n"
    )


@pytest.mark.parametrize(("groups", "such"), [(7, "4 or 8"), (3, "2 or 4"), (17, "16"), (15, "8 or 16")])
def test_groups_that_fit_are_named(locked: Project, groups: int, such: str) -> None:
    locked.write(SPEC_FILE, SPEC.replace("groups: 2", f"groups: {groups}"))
    assert f"expected: groups that divide 16, such as {such}\n" in locked.run("generate").err


def test_then_run_completes_what_names_no_command() -> None:
    for given, expected in (
        (None, "correct a:3, then run: ssmgen x"),
        ("add it", "add it, then run: ssmgen x"),
        ("run: ssmgen lock", "run: ssmgen lock"),
    ):
        with pytest.raises(SpecError) as caught, then_run("ssmgen x"):
            raise SpecError("what", where=Location("a", 3), next=given)
        assert caught.value.next == expected


def test_no_error_about_a_file_is_raised_without_found_and_expected() -> None:
    for path in sorted({*PACKAGE.glob("*.py"), *PACKAGE.glob("configs/*.py"), *PACKAGE.glob("ops/*.py")}):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in KINDS:
                continue
            given = {keyword.arg for keyword in node.keywords}
            assert {"found", "expected"} <= given, f"{path}:{node.lineno}"
