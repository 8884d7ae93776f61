"""Where things lie: templates and committed specs (checkout or wheel), and the project whose specs are worked on.

The only module that knows folders; it reads no spec and writes nothing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmgen.errors import Location, UsageError

PACKAGE = Path(__file__).parent
REPORT = "report"


@dataclass(frozen=True)
class Project:
    """A repository that uses ssmgen: its `root`, and where its `specs` and its `generated` code are."""

    root: Path
    specs: Path
    generated: Path

    def spec_paths(self) -> tuple[Path, ...]:
        """Every spec of the project, sorted by name; locks are not specs."""
        return tuple(sorted(p for p in self.specs.glob("*.yaml") if not p.name.endswith(".lock.yaml")))


def _shipped(name: str) -> Path:
    """The wheel's copy of a top-level folder, or the folder itself in a checkout."""
    inside = PACKAGE / f"_{name}"
    return inside if inside.is_dir() else PACKAGE.parent / name


def templates_dir() -> Path:
    """The folder of the templates."""
    return _shipped("templates")


def committed_specs() -> Path:
    """The folder of the specs that ssmgen itself ships."""
    return _shipped("specs")


def short(path: Path) -> Path:
    """`path` as a person types it: relative where it is below the current folder."""
    here, full = Path.cwd(), path.absolute()
    return full.relative_to(here) if full.is_relative_to(here) else path


def beside(path: Path) -> str:
    """What the folder of `path`, which is not there, holds instead: the nearest names."""
    import difflib

    folder = path.parent
    if not folder.is_dir():
        return f"no folder {folder}"
    names = sorted(p.name for p in folder.iterdir() if p.suffix == path.suffix)
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.3) or names[:3]
    return f"in {folder}: {', '.join(near) or f'no {path.suffix} file'}"


def lock_path(spec: Path) -> Path:
    """The lock beside a spec: `M.yaml` -> `M.lock.yaml`."""
    return spec.with_name(f"{spec.stem}.lock.yaml")


def project(start: Path | None = None) -> Project:
    """The project around `start`: the nearest pyproject.toml upwards with a [tool.ssmgen] table, or `start` itself.

    Raises UsageError for a table that is not valid, and for a repository that pins another version of ssmgen.
    """
    start = (start or Path.cwd()).resolve()
    for root in (start, *start.parents):
        file = root / "pyproject.toml"
        table = _table(file) if file.is_file() else None
        if table is not None:
            _check_version(table.get("requires"), file)
            specs, generated = (root / table.get(key, key) for key in ("specs", "generated"))
            return Project(root, specs.resolve(), generated.resolve())
    return Project(start, start / "specs", start / "generated")


def _table(file: Path) -> dict[str, str] | None:
    """The [tool.ssmgen] table of a pyproject.toml, or None where it has none."""
    try:
        text = file.read_text(encoding="utf-8")
        # most pyproject.toml on the way up are somebody else's, and may be broken
        table: Any = tomllib.loads(text).get("tool", {}).get("ssmgen") if "ssmgen" in text else None
    except (OSError, ValueError) as e:
        line = re.search(r"line (\d+)", str(e)) if isinstance(e, tomllib.TOMLDecodeError) else None
        raise UsageError(
            "cannot be read",
            where=Location(str(file), int(line[1]) if line else 0),
            found=e,
            expected="valid TOML" if line else "a file that can be read",
            next="correct that line" if line else "check its permissions",
        ) from None
    known = ("generated", "requires", "specs")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise UsageError(
            "tool.ssmgen: not a table",
            where=file,
            found=repr(table),
            expected=f"a table with {', '.join(known)}",
            next="write [tool.ssmgen] and its keys below it",
        )
    for key, value in table.items():
        if key not in known or not isinstance(value, str):
            raise UsageError(
                f"tool.ssmgen.{key}: {'not a string' if key in known else 'unknown key'}",
                where=_line(file, key),
                found=repr(value),
                expected=f"one of {', '.join(known)}, each a string",
                next=f"{'write it in quotes' if key in known else f'remove {key}'}",
            )
    return dict(table)


def _line(file: Path, key: str) -> Location:
    """The line of a key in [tool.ssmgen]; the table's, or that of no line, where it is written in another way."""
    table = 0
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r"\s*\[", text):
            table = number if re.match(r"\s*\[\s*tool\s*\.\s*ssmgen\s*\]", text) else 0
        elif table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", text):
            return Location(str(file), number)
    return Location(str(file), table)


def _check_version(requires: str | None, file: Path) -> None:
    """Another version is an error of its own: its output would only look like hundreds of stale files."""
    if requires is None:
        return
    from importlib.metadata import version

    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    here = version("ssmgen")
    try:
        fits = SpecifierSet(requires).contains(here, prereleases=True)
    except InvalidSpecifier:
        raise UsageError(
            "tool.ssmgen.requires: not a version specifier",
            where=_line(file, "requires"),
            found=requires,
            expected='such as "==0.1.*"',
            next=f'correct it, for instance requires = "=={here}"',
        ) from None
    if not fits:
        raise UsageError(
            "this repository's generated code belongs to another version of ssmgen",
            where=_line(file, "requires"),
            found=f"ssmgen {here}",
            expected=f"ssmgen{requires} (tool.ssmgen.requires)",
            next=f"pip install 'ssmgen{requires}', or change requires and run: ssmgen generate",
        )


def find_spec(argument: str, here: Project) -> Path:
    """The spec file that a command line means: a path, the name of one of the project's specs, or a shipped one."""
    path = Path(argument)
    if path.name.endswith(".lock.yaml"):
        raise UsageError(f"{argument} is a lock", next=f"give its spec: {argument.replace('.lock.yaml', '.yaml')}")
    if path.suffix == ".yaml":
        return path
    if path.is_file():
        raise UsageError(
            f"{argument} is no spec", expected="a file called NAME.yaml", next=f"rename it to {path.stem}.yaml"
        )
    folders = (here.specs, committed_specs())
    for folder in folders:
        if (found := folder / f"{argument}.yaml").is_file():
            return found
    raise UsageError(
        f"no spec {argument!r}",
        expected="a path to a spec, or a name that is in " + " or ".join(dict.fromkeys(map(str, folders))),
        next=_nearest(argument, folders) or "ssmgen new CONFIG.json",
    )


def _nearest(argument: str, folders: tuple[Path, ...]) -> str | None:
    import difflib

    names = sorted({p.stem for folder in folders for p in folder.glob("*.yaml") if not p.name.endswith(".lock.yaml")})
    close = difflib.get_close_matches(argument.lower().replace("-", "_"), names, n=1)
    return f"did you mean {close[0]}?" if close else None
