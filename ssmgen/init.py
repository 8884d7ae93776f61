"""`ssmgen init`: what a user's git repository needs so that nobody can commit kernels that its specs do not make.

It generates no kernel, and changes no line that was there: what it may not touch is told, to be added by hand.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssmgen import fileset, paths, render, writing
from ssmgen.errors import Location, OutputError, UsageError
from ssmgen.init_guards import (
    Change,
    Repository,
    Step,
    framework_hook,
    git_hook,
    joined,
    property_tests,
    read,
    workflow,
)

# these names go into shell, YAML and gitattributes unquoted
_PLAIN = re.compile(r"[\w.][\w./-]*", re.ASCII)


@dataclass(frozen=True)
class Table:
    """Names of pyproject.toml.jinja."""

    specs: str
    generated: str
    version: str


@dataclass(frozen=True)
class Attributes:
    """Names of gitattributes.jinja."""

    generated: str


def run(root: Path) -> list[Step]:
    """Prepare the git repository around `root`; a second run changes nothing.

    Everything is decided before the first write, so a refusal leaves the repository as it was. Raises UsageError and
    OutputError.
    """
    repository = _repository(root.resolve())
    table, project = _table(repository)
    specs, generated = (_inside(repository, folder) for folder in (project.specs, project.generated))
    changes = [
        table,
        _attributes(repository, generated),
        framework_hook(repository, specs, generated),
        git_hook(repository, specs, generated),
        workflow(repository),
        property_tests(repository),
    ]
    # the one step that can still be refused comes before the first file
    made = _folder(repository, project.specs)
    for change in changes:
        if change.content is not None:
            path = repository.top / change.step.path
            writing.write_file(path, change.content)
            if change.executable:
                path.chmod(0o755)
    return [*(change.step for change in changes), made]


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed", next="install git; ssmgen init works in git repositories") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        next_step = "git init, or change into your repository"
        raise UsageError("not in a git work tree", where=root, found=lines[0] if lines else None, next=next_step)
    return done.stdout.strip()


def _repository(root: Path) -> Repository:
    top = Path(_git(root, "rev-parse", "--show-toplevel")).resolve()
    hooks, common = (
        (root / _git(root, "rev-parse", *a)).resolve() for a in (("--git-path", "hooks"), ("--git-common-dir",))
    )
    upwards = (root, *root.parents)
    home = next((f for f in upwards if f.is_relative_to(top) and (f / "pyproject.toml").is_file()), top)
    own = hooks.is_relative_to(top) or hooks.is_relative_to(common)
    return Repository(top, home, hooks, own)


def _inside(repository: Repository, folder: Path) -> str:
    name = folder.relative_to(repository.home).as_posix() if folder.is_relative_to(repository.home) else str(folder)
    full = (Path(repository.folder) / name).as_posix()
    if not _PLAIN.fullmatch(full) or ".." in Path(full).parts:
        raise UsageError(
            f"folder {full!r} cannot be named in a hook",
            where=repository.home / "pyproject.toml",
            expected="a path inside the repository, of letters, digits and . _ - /",
        )
    return name


def _table(repository: Repository) -> tuple[Change, paths.Project]:
    """The [tool.ssmgen] table: written, appended, or kept; one that asks for another version is an error."""
    path = repository.home / "pyproject.toml"
    name = repository.name(path)
    text = read(path)
    have = _parsed(path, text or "").get("tool", {}).get("ssmgen")
    installed = version("ssmgen")
    if have is not None:
        project = paths.project(repository.home)
        if "requires" in have:
            return Change(Step(name, "kept", "table tool.ssmgen is there")), project
        pin = Step(name, "by hand", "add to table tool.ssmgen", f'requires = "=={installed}"\n')
        return Change(pin), project
    for folder in ("specs", "generated"):
        _refuse_foreign(repository, folder)
    added = render.render("init/pyproject.toml.jinja", Table("specs", "generated", installed))
    project = paths.Project(repository.home, repository.home / "specs", repository.home / "generated")
    if text is None:
        return Change(Step(name, "written", "table tool.ssmgen: folders and version"), added), project
    content = joined(text, added, blank=True)
    try:
        tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        by_hand = Step(name, "by hand", "its tool tables are in a form that cannot be appended to; add", added)
        return Change(by_hand), project
    return Change(Step(name, "extended", "table tool.ssmgen: folders and version"), content), project


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        line = re.search(r"line (\d+)", str(e))
        where = Location(str(path), int(line[1]) if line else 0)
        raise UsageError("not valid TOML", where=where, found=e, next="mend it, then run: ssmgen init") from None


def _refuse_foreign(repository: Repository, folder: str) -> None:
    """A folder of that name which is something else's would be taken over: the user names another one instead."""
    here = repository.home / folder
    pattern, ours = ("*.yaml", "schema:") if folder == "specs" else ("*", fileset.MARK)
    for path in sorted(here.rglob(pattern)) if here.is_dir() else []:
        if path.is_file() and "__pycache__" not in path.parts and ours not in (read(path, strict=False) or ""):
            raise UsageError(
                f"{folder}/ is there and holds files that are not ssmgen's",
                where=path,
                next=f'choose folders yourself, for instance [tool.ssmgen] {folder} = "kernels/{folder}" in '
                "pyproject.toml, then run: ssmgen init",
            )


def _folder(repository: Repository, folder: Path) -> Step:
    name = repository.name(folder) + "/"
    if folder.is_dir():
        return Step(name, "kept", "the folder is there")
    try:
        folder.mkdir(parents=True)
    except OSError as e:
        raise OutputError("cannot be made", where=folder, found=e.strerror) from None
    return Step(name, "written", "specs go here: ssmgen new CONFIG.json")


def _attributes(repository: Repository, generated: str) -> Change:
    path = repository.home / ".gitattributes"
    name, text = repository.name(path), read(path) or ""
    added = render.render("init/gitattributes.jinja", Attributes(generated))
    if added.strip() in map(str.strip, text.splitlines()):
        return Change(Step(name, "kept", f"{generated}/ is marked as generated"))
    note = f"{generated}/ is marked as generated, line ends fixed"
    return Change(Step(name, "extended" if text else "written", note), joined(text, added))
