"""Verbs: what they print, where, and the exit code; the work itself is tested beside the module that does it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import pytest

from ssmgen import build, build_view, cli, compiler, repository, table
from ssmgen.lock import Lock
from ssmgen.spec import Spec
from ssmgen.targets import TARGETS
from tests.conftest import GDN, MODEL, SPEC, Project

CONFIG = Path(__file__).parent / "configs/nemotron_h_8b.json"
NAME = "nemotron_h_8b"
VERBS = ("new", "lock", "generate", "compile", "build", "explain", "init")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(project: Project, verb: str) -> None:
    outcome = project.run(verb, "--help")
    assert outcome.code == 0
    assert f"Example: ssmgen {verb}" in outcome.out
    assert verb in project.run("--help").out


@pytest.mark.parametrize("arguments", [("nonsense",), ("generate", "--nonsense"), ("new",), ("explain",)])
def test_bad_usage(project: Project, arguments: tuple[str, ...]) -> None:
    assert project.run(*arguments).code == 2


def test_new_then_generate_then_check(project: Project) -> None:
    made = project.run("new", str(CONFIG))
    assert made.code == 0, made.err
    assert f"specs/{NAME}.yaml: mamba_chunk_scan_combined (heads 128, groups 8, head_dim 64, state 128" in made.out
    assert f"specs/{NAME}.lock.yaml: sm_90 " in made.out
    written = project.run("generate")
    assert (written.code, written.err) == (0, "")
    assert "0 already as generated" in written.out
    assert project.run("generate", "--check", NAME).code == 0
    assert "0 files written" in project.run("generate", f"specs/{NAME}.yaml").out


def test_new_twice(project: Project) -> None:
    assert project.run("new", str(CONFIG)).code == 0
    assert project.run("new", str(CONFIG)).code == 0
    spec = project.root / f"specs/{NAME}.yaml"
    spec.write_text(spec.read_text() + "# a note of mine\n")
    outcome = project.run("new", str(CONFIG))
    assert outcome.code == 2
    assert "a spec of this name is there and differs" in outcome.err
    assert "--force" in outcome.err
    assert spec.read_text().endswith("# a note of mine\n")
    assert project.run("new", str(CONFIG), "--force").code == 0
    assert "mine" not in spec.read_text()


def test_new_elsewhere_and_by_another_name(project: Project) -> None:
    assert project.run("new", str(CONFIG), "-o", "kernels/mine.yaml").code == 0
    assert "name: mine" in (project.root / "kernels/mine.yaml").read_text()
    assert (project.root / "kernels/mine.lock.yaml").is_file()
    assert project.run("new", str(CONFIG), "-o", "kernels/mine.txt").code == 2
    assert project.run("new", str(CONFIG), "-o", "kernels/a.yaml", "--name", "b").code == 2


def test_new_with_a_broken_config_writes_nothing(project: Project) -> None:
    project.write("config.json", CONFIG.read_text()[:100])
    outcome = project.run("new", "config.json")
    assert outcome.code == 2
    assert outcome.err.startswith("error: config.json")
    assert not (project.root / "specs").exists()


def test_an_output_folder_that_cannot_be_made(locked: Project) -> None:
    locked.write("taken", "a file")
    outcome = locked.run("generate", "-o", "taken/generated")
    assert outcome.code == 2
    assert "error: taken" in outcome.err
    assert "next:" in outcome.err
    assert (locked.root / "taken").read_text() == "a file"


def test_interrupted(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(repository, "files", interrupt)
    outcome = locked.run("generate")
    assert outcome.code == 2
    assert outcome.err == "\nerror: interrupted by Ctrl-C; no file was left half-written\n  next:     run it again\n"
    assert not (locked.root / "generated").exists()


@pytest.mark.parametrize("module", ["typer", "ssmgen.cli", "ssmgen.errors", "ssmgen.repository", "pydantic"])
def test_interrupted_while_it_imports(locked: Project, module: str) -> None:
    code = f"""
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["ssmgen", "generate"]
from ssmgen.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=locked.root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "\nerror: interrupted by Ctrl-C; no file was left half-written\n  next:     run it again\n"
    assert not (locked.root / "generated").exists()


def test_the_console_command_is_guarded_from_its_first_import() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"ssmgen": "ssmgen.__main__:main"}
    source = (Path(cli.__file__).parents[1] / "__main__.py").read_text()
    assert not [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]


def test_a_build_without_a_compiler_writes_nothing(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_version", lambda name: None)
    outcome = locked.run("build")
    assert outcome.code == 2
    assert "the cuTile compiler is not whole" in outcome.err
    for label in ("found:", "expected:", "next:     pip install"):
        assert label in outcome.err
    assert not (locked.root / "generated").exists()


@pytest.mark.parametrize("output", ["taken", "taken/deeper/still"])
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_an_output_that_is_a_file(locked: Project, output: str, check: tuple[str, ...]) -> None:
    locked.write("taken", "a file")
    outcome = locked.run("generate", *check, "-o", output)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert "taken: a file, not a folder\n  found:    a plain file, where " in outcome.err
    assert "next:     give another folder with -o" in outcome.err


def test_an_archive_in_a_folder_that_is_not_there(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_version", lambda name: None)
    locked.write("taken", "a file")
    outcome = locked.run("compile", "-o", "none/cubins.tar.xz")
    assert outcome.code == 2
    assert outcome.err.startswith("error: none: no such folder\n  found:    -o none/cubins.tar.xz\n")
    assert "next:     mkdir -p none, or" in outcome.err
    assert locked.run("compile", "-o", "taken/cubins").err.startswith("error: taken: a file, not a folder\n")
    assert locked.run("compile", "-o", "taken").err.startswith("error: taken: is a file\n  found:")


def test_a_folder_in_the_place_of_a_file_has_its_own_command(generated: Project) -> None:
    path = f"generated/{MODEL}/__init__.py"
    (generated.root / path).unlink()
    generated.write(f"{path}/notes.txt", "mine")
    outcome = generated.run("generate", "--check")
    assert outcome.code == 1
    assert f"{path}: blocked: a folder is where this file should be\n" in outcome.out
    assert "generated: 1 blocked, of " in outcome.out
    assert outcome.out.endswith(f"mend it with: rm -r {path} && ssmgen generate\n")
    refused = generated.run("generate")
    assert (refused.code, (generated.root / path / "notes.txt").read_text()) == (2, "mine")
    assert f"next:     move it away, or remove it: rm -r {path}\n" in refused.err


def test_what_is_missing_is_shown(generated: Project) -> None:
    (generated.root / f"generated/{MODEL}/__init__.py").unlink()
    lines = generated.run("generate", "--check").out.splitlines()
    assert lines[1] == f"  --- {MODEL}/__init__.py as found"
    assert lines[4].startswith("  +# Generated by ssmgen")
    assert lines[1 + cli.making.DIFF_LINES].endswith("more lines")


def test_a_table_takes_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table.show("", ("file", ""), [("a", "pip install 'ssmgen[test]'")])
    assert "pip install 'ssmgen[test]'" in capsys.readouterr().out


def test_generate_json(locked: Project) -> None:
    written = json.loads(locked.run("generate", "--json").out)
    assert f"{MODEL}/MANIFEST.json" in written["written"]
    report = json.loads(locked.run("generate", "--check", "--json").out)
    assert report == {"clean": True, "files": len(written["written"]), "drifts": [], "mend": None}


def test_output_folder(locked: Project) -> None:
    assert locked.run("generate", "-o", "src/kernels").code == 0
    assert (locked.root / f"src/kernels/{MODEL}/__init__.py").is_file()
    assert not (locked.root / "generated").exists()
    (locked.root / f"src/kernels/{MODEL}/__init__.py").unlink()
    outcome = locked.run("generate", "--check", "-o", "src/kernels")
    assert outcome.out.endswith("mend it with: ssmgen generate -o src/kernels\n")


def test_output_folder_with_other_packages_in_it(locked: Project) -> None:
    locked.write("src/mine/__init__.py", "mine")
    locked.write(f"src/{MODEL}_tools/__init__.py", "mine")
    assert locked.run("generate", "-o", "src").code == 0
    assert locked.run("generate", "--check", "-o", "src").code == 0
    assert (locked.root / "src/mine/__init__.py").read_text() == "mine"


def test_a_spec_from_elsewhere_needs_an_output_folder(locked: Project) -> None:
    shutil.move(locked.root / "specs", locked.root / "other")
    outcome = locked.run("generate", f"other/{MODEL}.yaml")
    assert outcome.code == 2
    assert "not one of this project's specs" in outcome.err
    assert locked.run("generate", f"other/{MODEL}.yaml", "-o", "out").code == 0


def test_no_specs(project: Project) -> None:
    outcome = project.run("generate")
    assert outcome.code == 2
    assert "no specs" in outcome.err
    assert "ssmgen new CONFIG.json" in outcome.err
    assert project.run("compile").code == 2
    assert project.run("generate", "--check").code == 0, "nothing to check is as it should be"


def test_the_last_spec_goes(generated: Project) -> None:
    shutil.rmtree(generated.root / "specs")
    assert generated.run("generate", "--check").code == 1
    assert generated.run("generate").code == 0
    assert list((generated.root / "generated").iterdir()) == []


def test_an_operator_without_kernels_is_no_error_beside_others(locked: Project) -> None:
    locked.write("specs/gdn_9b.yaml", GDN)
    outcome = locked.run("generate")
    assert outcome.code == 0
    assert outcome.err == "note: no kernels yet for gated_delta_rule_packed_decode (gdn_9b)\n"
    assert locked.run("generate", "--check").code == 0
    alone = locked.run("generate", "gdn_9b")
    assert alone.code == 2
    assert "gated_delta_rule_packed_decode (gdn_9b)" in alone.err
    assert locked.run("generate", "gdn_9b", MODEL).code == 0


def test_lock(project: Project) -> None:
    project.write(f"specs/{MODEL}.yaml", SPEC)
    outcome = project.run("generate")
    assert outcome.code == 2
    assert f"next:     ssmgen lock {MODEL}" in outcome.err
    assert "chunk" in project.run("lock", MODEL).out
    assert project.run("lock").out == f"specs/{MODEL}.lock.yaml: unchanged\n"
    project.write(f"specs/{MODEL}.yaml", SPEC.replace("      long:", "      far:"))
    outcome = project.run("lock")
    assert "dropped sm_90 mamba_chunk_scan_combined long (derived): the spec has no route 'long'" in outcome.out
    assert project.run("generate").code == 0


def test_explain(locked: Project) -> None:
    assert MODEL in locked.run("explain", MODEL).out
    assert json.loads(locked.run("explain", MODEL, "--json").out)["model"] == MODEL


def test_another_version_is_said_once(generated: Project) -> None:
    generated.write("pyproject.toml", '[tool.ssmgen]\nrequires = "==99.0"\n')
    outcome = generated.run("generate", "--check")
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert "ssmgen==99.0" in outcome.err


def _fake_compiler(monkeypatch: pytest.MonkeyPatch, *rows: build.Row) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    def run(pairs: list[tuple[Spec, Lock]], *rest: object) -> list[build.Row]:
        calls.append(([spec.model.name for spec, _ in pairs], *rest[:2]))
        return list(rows)

    monkeypatch.setattr(build, "run", run)
    monkeypatch.setattr(compiler, "check_compiler", lambda: None)
    return calls


def _fake_verification(monkeypatch: pytest.MonkeyPatch, failure: str | None = None) -> None:
    verified = {MODEL: build_view.Verified("WRONG" if failure else "1 call, 0.50 of limit", failure)}
    monkeypatch.setattr(build_view, "_verified", lambda _work: verified)


def _row(stage: str, how: Literal["cached", "compiled", "refused"] = "compiled", reason: str = "") -> build.Row:
    return build.Row(MODEL, "sm_90", "long", stage, how, 1.5, 2048, reason)


def test_build(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _fake_compiler(monkeypatch, _row("state"), _row("output", "cached"))
    _fake_verification(monkeypatch)
    outcome = locked.run("build", MODEL)
    assert outcome.code == 0, outcome.err
    assert calls == [([MODEL], [], None)]
    assert (locked.root / f"generated/{MODEL}/__init__.py").is_file()
    table = [line.split() for line in outcome.out.splitlines()]
    assert [MODEL, "sm_90", "1", "1", "0", "4", "3.0"] in [line[:7] for line in table]
    assert "2 kernels in" in outcome.out
    assert "1 call, 0.50 of limit" in outcome.out
    assert outcome.err == "", "no progress bar where nobody watches"


def test_a_build_of_wrong_kernels_fails(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_compiler(monkeypatch, _row("state"))
    _fake_verification(monkeypatch, f"{MODEL}: error 7 times its limit")
    outcome = locked.run("build", MODEL)
    assert outcome.code == 1
    assert "WRONG" in outcome.out
    assert "wrong: " in outcome.err
    assert "7 times its limit" in outcome.err


def test_compile(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _fake_compiler(monkeypatch, _row("state"))
    outcome = locked.run("compile", "--target", "sm_80", "--target", "sm_120", "-o", "cubins", "--json")
    assert outcome.code == 0
    assert calls == [([MODEL], ["sm_80", "sm_120"], Path("cubins"))]
    assert json.loads(outcome.out)[0]["stage"] == "state"
    assert not (locked.root / "generated").exists(), "compiling commits nothing"
    locked.run("compile", "--target", "all")
    assert calls[-1] == ([MODEL], list(TARGETS), None)
    assert "expected: one of sm_80" in locked.run("compile", "--target", "sm_91").err


def test_a_refused_schedule_is_a_failed_check(locked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_compiler(monkeypatch, _row("*", "refused", "sm_90: chunk = 48 must be a power of two"))
    outcome = locked.run("compile")
    assert outcome.code == 1
    assert "refused: sm_90: chunk = 48" in outcome.err


def test_compile_of_what_has_no_kernels(locked: Project) -> None:
    locked.write("specs/gdn_9b.yaml", GDN)
    for verb in ("compile", "build"):
        outcome = locked.run(verb, "gdn_9b")
        assert outcome.code == 2
        assert "gated_delta_rule_packed_decode (gdn_9b)" in outcome.err
