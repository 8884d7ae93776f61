"""`ssmgen init` in all kinds of git repositories: what it writes, what it leaves alone, what it refuses."""

from __future__ import annotations

import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ssmgen import init, init_guards, paths, render
from ssmgen.errors import OutputError, UsageError

CONTEXTS = {
    "init/pyproject.toml.jinja": init.Table,
    "init/gitattributes.jinja": init.Attributes,
    "init/pre-commit-hook.yaml.jinja": init_guards.FrameworkHook,
    "init/pre-commit.sh.jinja": init_guards.GitHook,
    "init/workflow.yml.jinja": init_guards.Workflow,
    "init/test_kernels.py.jinja": init_guards.PropertyTests,
}
PROJECT = b"""# my project
[project]
name = "mine"  # with a comment
version = "1"

[tool.ruff]
line-length = 99"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def actions(root: Path) -> dict[str, str]:
    return {step.path: step.action for step in init.run(root)}


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def yaml(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("template", CONTEXTS)
def test_contexts_equal_the_templates_names(template: str) -> None:
    assert set(CONTEXTS[template].__dataclass_fields__) == render.free_names(template)


def test_every_init_template_has_a_context() -> None:
    assert {f"init/{p.name}" for p in (paths.templates_dir() / "init").iterdir()} == set(CONTEXTS)


def test_an_empty_repository_gets_everything(repository: Path) -> None:
    assert set(actions(repository).values()) == {"written"}
    table = tomllib.loads((repository / "pyproject.toml").read_text())
    assert table == {
        "tool": {"ssmgen": {"specs": "specs", "generated": "generated", "requires": f"=={version('ssmgen')}"}}
    }
    assert (repository / "specs").is_dir()
    assert (repository / ".gitattributes").read_text() == "/generated/** linguist-generated=true text eol=lf\n"
    assert (repository / ".git/hooks/pre-commit").stat().st_mode & 0o111
    workflow = yaml((repository / ".github/workflows/ssmgen.yml").read_text())
    commands = [step.get("run") for step in workflow["jobs"]["generated-kernels"]["steps"]]  # type: ignore[index]
    assert commands[-2:] == ["ssmgen generate --check", "python -m pytest tests/test_ssmgen_kernels.py"]
    assert "test_kernels = kernel_tests(examples=5)\n" in (repository / "tests/test_ssmgen_kernels.py").read_text()
    hook = yaml((repository / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]  # type: ignore[index]
    assert hook["entry"] == "ssmgen generate --check"


def test_the_workflow_cannot_install_what_is_not_released(repository: Path) -> None:
    step = next(step for step in init.run(repository) if step.path.endswith("ssmgen.yml"))
    assert step.action == "written"
    assert "on no package index yet" in step.text
    assert "python -m pip install" in step.text
    # the line that is to be changed is there
    assert 'python -m pip install "ssmgen' in (repository / step.path).read_text()


def test_a_second_run_changes_nothing(repository: Path) -> None:
    init.run(repository)
    before = contents(repository)
    assert set(actions(repository).values()) == {"kept"}
    assert contents(repository) == before


@pytest.mark.parametrize("text", [PROJECT, PROJECT + b"\n", PROJECT.replace(b"\n", b"\r\n")])
def test_pyproject_is_only_appended_to(repository: Path, text: bytes) -> None:
    (repository / "pyproject.toml").write_bytes(text)
    assert actions(repository)["pyproject.toml"] == "extended"
    after = (repository / "pyproject.toml").read_bytes()
    assert after.startswith(text)
    assert b"\r\n" not in text or b"\n" not in after.replace(b"\r\n", b"")
    assert tomllib.loads(after.decode())["tool"]["ruff"] == {"line-length": 99}


def test_a_pyproject_that_cannot_be_appended_to_is_left(repository: Path) -> None:
    text = 'tool = { ruff = { line-length = 99 } }\nproject = { name = "mine" }\n'
    (repository / "pyproject.toml").write_text(text)
    steps = {step.path: step for step in init.run(repository)}
    assert steps["pyproject.toml"].action == "by hand"
    assert "[tool.ssmgen]" in steps["pyproject.toml"].text
    assert (repository / "pyproject.toml").read_text() == text


def test_an_existing_table_is_kept_and_its_folders_used(repository: Path) -> None:
    table = f'[tool.ssmgen]\nspecs = "kernels/specs"\ngenerated = "kernels/out"\nrequires = "=={version("ssmgen")}"\n'
    (repository / "pyproject.toml").write_text(table)
    assert actions(repository)["pyproject.toml"] == "kept"
    assert (repository / "pyproject.toml").read_text() == table
    assert (repository / "kernels/specs").is_dir()
    assert "/kernels/out/**" in (repository / ".gitattributes").read_text()
    assert "kernels/specs" in (repository / ".git/hooks/pre-commit").read_text()


def test_a_table_without_a_version_is_told(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[tool.ssmgen]\n")
    step = next(step for step in init.run(repository) if step.path == "pyproject.toml")
    assert (step.action, step.text) == ("by hand", f'requires = "=={version("ssmgen")}"\n')


@pytest.mark.parametrize(
    ("table", "said"),
    [('requires = "==99.0"', "another version"), ("specs = 3", "not a string"), ('spec = "x"', "unknown key")],
)
def test_a_wrong_table_is_refused_and_nothing_written(repository: Path, table: str, said: str) -> None:
    (repository / "pyproject.toml").write_text(f"[tool.ssmgen]\n{table}\n")
    before = contents(repository)
    with pytest.raises(UsageError, match=said):
        init.run(repository)
    assert contents(repository) == before


def test_outside_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not in a git work tree"):
        init.run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_broken_toml_is_refused_with_its_line(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[project]\nname = \n")
    with pytest.raises(UsageError) as caught:
        init.run(repository)
    assert "pyproject.toml:2: not valid TOML" in str(caught.value)


@pytest.mark.parametrize(("folder", "file"), [("specs", "api.yaml"), ("generated", "client.py")])
def test_folders_of_something_else_are_refused(repository: Path, folder: str, file: str) -> None:
    (repository / folder).mkdir()
    (repository / folder / file).write_text("openapi: 3\n")
    with pytest.raises(UsageError, match="not ssmgen's"):
        init.run(repository)
    assert not (repository / "pyproject.toml").exists()


def test_folder_names_that_no_hook_can_carry_are_refused(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[tool.ssmgen]\nspecs = "my specs; rm"\n')
    with pytest.raises(UsageError, match="cannot be named"):
        init.run(repository)


@pytest.mark.parametrize(
    "text",
    [
        "repos:\n- repo: https://example.com/a\n  rev: v1\n  hooks:\n  - id: a\n",
        "# mine\nrepos:\n  - repo: local\n    hooks: [{id: a, entry: a}]\n\n# about ci\nci:\n  autofix_prs: false\n",
        "repos:\n  - repo: local\n    hooks:\n      - id: a",
    ],
)
def test_a_hook_is_added_to_an_existing_pre_commit_config(repository: Path, text: str) -> None:
    path = repository / ".pre-commit-config.yaml"
    path.write_text(text)
    assert actions(repository)[path.name] == "extended"
    after = path.read_text()
    assert set(text.splitlines()) <= set(after.splitlines())
    old, new = yaml(text), yaml(after)
    assert new["repos"][:-1] == old["repos"]  # type: ignore[index]
    assert new["repos"][-1]["hooks"][0]["id"] == "ssmgen-check"  # type: ignore[index]
    assert actions(repository)[path.name] == "kept"


@pytest.mark.parametrize("text", ["repos: []\n", "repos: [{repo: local, hooks: []}]\n", "not: [valid\n", "- a\n", ""])
def test_a_pre_commit_config_of_another_form_is_left(repository: Path, text: str) -> None:
    (repository / ".pre-commit-config.yaml").write_text(text)
    step = next(step for step in init.run(repository) if step.path == ".pre-commit-config.yaml")
    assert step.action == "by hand"
    assert "ssmgen generate --check" in step.text
    assert (repository / ".pre-commit-config.yaml").read_text() == text


def test_existing_hook_and_workflow_are_left_and_told(repository: Path) -> None:
    hook, workflow = repository / ".git/hooks/pre-commit", repository / ".github/workflows/ssmgen.yml"
    workflow.parent.mkdir(parents=True)
    for path in (hook, workflow):
        path.write_text("mine\n")
    steps = {step.path: step for step in init.run(repository)}
    for path in (hook, workflow):
        step = steps[str(path.relative_to(repository))]
        assert (step.action, step.text) == ("by hand", "ssmgen generate --check\n")
        assert path.read_text() == "mine\n"


def test_a_hooks_path_outside_the_repository_is_left(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shared = tmp_path_factory.mktemp("hooks")
    git(repository, "config", "core.hooksPath", str(shared))
    assert actions(repository)[str(shared / "pre-commit")] == "by hand"
    assert not list(shared.iterdir())


def test_a_project_below_the_top_of_the_repository(repository: Path) -> None:
    home = repository / "serving"
    (home / "src").mkdir(parents=True)
    (home / "pyproject.toml").write_bytes(PROJECT)
    assert "serving/pyproject.toml" in actions(home / "src")
    assert (home / "specs").is_dir()
    assert not (repository / "specs").exists()
    assert "working-directory: serving\n" in (repository / ".github/workflows/ssmgen.yml").read_text()
    hook = yaml((repository / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]  # type: ignore[index]
    assert hook["entry"] == "sh -c 'cd serving && exec ssmgen generate --check'"


def test_a_file_that_cannot_be_written_is_an_output_error(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (repository / "pyproject.toml").write_bytes(PROJECT)
    before = contents(repository)
    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(OutputError, match="cannot be written"):
        init.run(repository)
    assert contents(repository) == before


def test_a_file_where_a_folder_should_be_leaves_the_repository_as_it_was(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "specs").write_text("hi\n")
    with pytest.raises(OutputError):
        init.run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", "specs"]
    assert not (tmp_path / ".git/hooks/pre-commit").exists()
