"""The guards that `ssmgen init` sets up: a hook for the pre-commit tool, a git hook for this clone, a CI workflow.

Each becomes a change to a file, decided here and written by `init`; nothing that is there is replaced.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode

from ssmgen import render
from ssmgen.errors import UsageError

COMMAND = "ssmgen generate --check"
MARK = "written by `ssmgen init`"
PROPERTY_TESTS = "tests/test_ssmgen_kernels.py"
# the workflow installs from a package index
_NOT_RELEASED = """\
note: ssmgen is on no package index yet. Until it is, change the workflow's line that installs it, such as to
python -m pip install "ssmgen[compile,test] @ git+https://YOUR_HOST/ssmgen@COMMIT"
"""
Action = Literal["written", "extended", "kept", "by hand"]


@dataclass(frozen=True)
class Step:
    """One file or folder: what was done, and why or what is left to do; `text` is what is to be done by hand."""

    path: str
    action: Action
    note: str
    text: str = ""


@dataclass(frozen=True)
class Change:
    """A step not yet taken: the file's whole new text, or None where nothing is written."""

    step: Step
    content: str | None = None
    executable: bool = False


@dataclass(frozen=True)
class Repository:
    """`top` of the git repository, `home` that holds pyproject.toml, `hooks` where git looks for hooks."""

    top: Path
    home: Path
    hooks: Path
    hooks_are_own: bool

    @property
    def folder(self) -> str:
        return self.home.relative_to(self.top).as_posix()

    def name(self, path: Path) -> str:
        return path.relative_to(self.top).as_posix() if path.is_relative_to(self.top) else str(path)

    def below_top(self, *names: str) -> tuple[str, ...]:
        return tuple((Path(self.folder) / name).as_posix() for name in names)


@dataclass(frozen=True)
class FrameworkHook:
    """Names of pre-commit-hook.yaml.jinja."""

    entry: str
    files: str


@dataclass(frozen=True)
class GitHook:
    """Names of pre-commit.sh.jinja."""

    executable: str
    watched: str
    folder: str
    generated: str


@dataclass(frozen=True)
class Workflow:
    """Names of workflow.yml.jinja."""

    folder: str
    tests: str


@dataclass(frozen=True)
class PropertyTests:
    """Names of test_kernels.py.jinja: calls a spec."""

    examples: int


def read(path: Path, strict: bool = True) -> str | None:
    """The text of a file, line ends as they are; None where there is none."""
    try:
        return path.read_bytes().decode("utf-8", "strict" if strict else "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError("cannot be read", where=path, found=e) from None


def joined(text: str, added: str, blank: bool = False) -> str:
    """`text`, then `added` with the line ends that `text` has."""
    if not text:
        return added
    end = "\r\n" if "\r\n" in text else "\n"
    return text + ("" if text.endswith("\n") else end) + (end if blank else "") + added.replace("\n", end)


def framework_hook(repository: Repository, specs: str, generated: str) -> Change:
    """The hook that travels with the repository, for everyone who uses the pre-commit tool."""
    path = repository.top / ".pre-commit-config.yaml"
    text = read(path)
    entry = COMMAND if repository.folder == "." else f"sh -c 'cd {repository.folder} && exec {COMMAND}'"
    watched = [re.escape(name) for name in repository.below_top("pyproject.toml", specs, generated)]
    files = f"^({watched[0]}$|{watched[1]}/|{watched[2]}/)"
    hook = render.render("init/pre-commit-hook.yaml.jinja", FrameworkHook(entry, files))
    if text is None:
        note = "a hook for the pre-commit tool, where it is used: pre-commit install"
        return Change(Step(path.name, "written", note), f"# {MARK}\nrepos:\n{textwrap.indent(hook, '  ')}")
    if COMMAND in text:
        return Change(Step(path.name, "kept", f"a hook runs {COMMAND}"))
    content = _with_hook(text, hook)
    if content is None:
        return Change(Step(path.name, "by hand", "add to repos", hook))
    return Change(Step(path.name, "extended", "a hook at the end of repos"), content)


def _with_hook(text: str, hook: str) -> str | None:
    """`text` with `hook` as the last of its repos and nothing else changed, or None if that cannot be shown."""
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        pairs = root.value if isinstance(root, MappingNode) else []
        repos = next((value for key, value in pairs if key.value == "repos"), None)
        if not isinstance(repos, SequenceNode) or repos.flow_style or not repos.value:
            return None
        lines = text.splitlines(keepends=True)
        end = repos.value[-1].end_mark.line
        end = len(lines) if repos.value[-1].end_mark.column else end
        while end and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        indented = textwrap.indent(hook, " " * repos.start_mark.column)
        content = joined("".join(lines[:end]), indented) + "".join(lines[end:])
        before, after = yaml.load(text), yaml.load(content)
        before["repos"] += yaml.load(hook)
    except (YAMLError, TypeError):
        return None
    return content if before == after else None


def git_hook(repository: Repository, specs: str, generated: str) -> Change:
    """The hook of this clone: without it, nothing would stop a commit where the pre-commit tool is not installed."""
    path = repository.hooks / "pre-commit"
    name, text = repository.name(path), read(path, strict=False)
    if text is not None and MARK in text:
        return Change(Step(name, "kept", f"it runs {COMMAND}; to renew it, delete it and run: ssmgen init"))
    if text is not None and "pre-commit.com" in text:
        return Change(Step(name, "kept", "the pre-commit tool runs the hook in .pre-commit-config.yaml"))
    if text is not None or not repository.hooks_are_own:
        why = "another hook is there" if text is not None else "core.hooksPath leads out of this repository"
        return Change(Step(name, "by hand", f"{why}; let it run", f"{COMMAND}\n"))
    executable = Path(sys.executable).with_name("ssmgen")
    names = repository.below_top("pyproject.toml", specs, generated)
    content = render.render(
        "init/pre-commit.sh.jinja",
        GitHook(shlex.quote(str(executable)), " ".join(names), repository.folder, names[2]),
    )
    return Change(Step(name, "written", f"this clone's commits run {COMMAND}"), content, executable=True)


def workflow(repository: Repository) -> Change:
    path = repository.top / ".github" / "workflows" / "ssmgen.yml"
    name, text = repository.name(path), read(path)
    content = render.render("init/workflow.yml.jinja", Workflow(repository.folder, PROPERTY_TESTS))
    if text is None:
        note = f"CI installs ssmgen and runs {COMMAND}; see below"
        return Change(Step(name, "written", note, _NOT_RELEASED), content)
    if COMMAND in text:
        return Change(Step(name, "kept", f"it runs {COMMAND}"))
    return Change(Step(name, "by hand", "a file of that name is there; let a job run", f"{COMMAND}\n"))


def property_tests(repository: Repository) -> Change:
    """A test module that draws calls of every spec: what the workflow runs, and the repository's own suite finds."""
    path = repository.home / PROPERTY_TESTS
    name = repository.name(path)
    if read(path) is not None:
        return Change(Step(name, "kept", "a file of that name is there"))
    content = render.render("init/test_kernels.py.jinja", PropertyTests(examples=5))
    return Change(
        Step(name, "written", "property tests of the kernels, on the CPU: pip install 'ssmgen[test]'"), content
    )
