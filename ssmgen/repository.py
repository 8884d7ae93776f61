"""A user's repository: its specs with their locks, and what the verbs new, lock and generate do to it.

It prints nothing and exits nowhere; `cli` does. What is generated is `generate`'s business.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssmgen import generate, lock, paths, spec, writing
from ssmgen.errors import UsageError
from ssmgen.fileset import Changes, Drift, FileSet
from ssmgen.lock import Lock
from ssmgen.spec import Spec


@dataclass(frozen=True)
class Loaded:
    """A spec with its lock, and the file it came from."""

    path: Path
    spec: Spec
    lock: Lock

    @property
    def schedules(self) -> Lock:
        """The locked schedules; derived ones where there is no lock."""
        return self.lock or lock.derive(self.spec, self.spec.targets)

    @property
    def has_kernels(self) -> bool:
        """Whether kernels exist for one of the spec's operators."""
        return self.spec.operators.mamba_chunk_scan_combined is not None


@dataclass(frozen=True)
class Work:
    """The specs a verb works on; `named` are those its command line gave, none where it means all."""

    project: paths.Project
    loaded: tuple[Loaded, ...]
    named: tuple[str, ...]
    output: Path | None

    @property
    def root(self) -> Path:
        """Where generated code goes."""
        return self.output or paths.short(self.project.generated)

    @property
    def command(self) -> str:
        """The command that makes this work's files."""
        output = ["-o", str(self.output)] if self.output else []
        return shlex.join(["ssmgen", "generate", *self.named, *output])

    @property
    def note(self) -> str | None:
        """What is asked for and has no kernels yet, by name."""
        models: dict[str, list[str]] = {}
        for each in self.loaded:
            if operator := generate.unserved(each.spec):
                models.setdefault(operator, []).append(each.spec.model.name)
        parts = [f"{operator} ({', '.join(names)})" for operator, names in models.items()]
        return f"no kernels yet for {'; '.join(parts)}" if parts else None


def spec_paths(arguments: Sequence[str], project: paths.Project) -> list[Path]:
    """The specs that a command line names, each once, or all of the project."""
    found = [paths.find_spec(argument, project) for argument in arguments] or list(project.spec_paths())
    return list({path.resolve(): paths.short(path) for path in found}.values())


def open_specs(arguments: Sequence[str], output: Path | None = None) -> Work:
    """The specs that a command line names, or all of the project's, with their locks.

    Raises UsageError for a name that is none, SpecError and LockError for a spec that is not valid.
    """
    project = paths.project()
    return Work(project, tuple(_load(path) for path in spec_paths(arguments, project)), tuple(arguments), output)


def _load(path: Path) -> Loaded:
    value = spec.load(path)
    at = paths.lock_path(path)
    # an operator without kernels has no schedules to lock
    known = lock.load(at, value) if at.exists() or lock.derive(value, value.targets) else {}
    return Loaded(path, value, known)


def files(work: Work) -> FileSet:
    """Everything the work's specs generate. Raises UsageError if that is nothing, or would be an orphan at once."""
    _has_kernels(work)
    for each in work.loaded if work.output is None else ():
        if each.path.resolve().parent != work.project.specs:
            raise UsageError(
                f"{each.path} is not one of this project's specs, which are in {paths.short(work.project.specs)}/",
                next=f"copy it and its lock there, or give a folder for its code: {work.command} -o DIR",
            )
    pairs = [(each.spec, each.lock) for each in work.loaded]
    return generate.collect(pairs, None if work.named else work.root)


def need_kernels(work: Work) -> None:
    """Raise UsageError where there is no spec, or all that is asked for by name has no kernels yet."""
    if not work.loaded:
        raise UsageError("no specs", where=paths.short(work.project.specs), next="ssmgen new CONFIG.json")
    _has_kernels(work)


def _has_kernels(work: Work) -> None:
    if work.named and all(not lock.derive(each.spec, each.spec.targets) for each in work.loaded):
        raise UsageError(f"nothing to generate: {work.note}", next="leave it out; the spec itself is valid")


def write(work: Work) -> Changes:
    """Generate the work's files and write what differs. Without any spec only what is left of one can be removed."""
    if not generate.model_folders(work.root):
        need_kernels(work)
    return files(work).write(work.root)


@dataclass(frozen=True)
class Check:
    """The outcome of a drift check: what drifted, of how many files, and the one command that mends it."""

    drifts: tuple[Drift, ...]
    files: int
    root: Path
    mend: str


def check(work: Work) -> Check:
    """Compare the work's files with the folder; write nothing."""
    made = files(work)
    drifts = tuple(made.check(work.root))
    foreign, blocking = (
        [str(work.root / d.path) for d in drifts if d.foreign and (d.kind == "blocked") == blocked]
        for blocked in (False, True)
    )
    commands = [shlex.join(["rm", *foreign])] if foreign else []
    commands += [shlex.join(["rm", "-r", *blocking])] if blocking else []
    # a foreign orphan is the only drift that generating again does not mend
    if not all(d.foreign and d.kind == "orphan" for d in drifts):
        commands.append(work.command)
    return Check(drifts, len(made.files), work.root, " && ".join(commands))


@dataclass(frozen=True)
class Request:
    """What `ssmgen new` is asked for."""

    config: Path
    output: Path | None
    tensor_parallel: int
    name: str | None
    targets: tuple[str, ...]
    force: bool


def new(request: Request) -> list[str]:
    """Write a spec and its lock from a config.json; the lines say what was decided. A spec that differs is kept."""
    output, name = request.output, request.name
    if output is not None:
        if output.suffix != ".yaml" or (name is not None and name != output.stem):
            raise UsageError(
                f"-o {output}: not the name of a spec",
                found=output.name,
                expected=f"a file called {name or 'NAME'}.yaml",
                next=f"-o {output.parent / (name or 'NAME')}.yaml",
            )
        name = output.stem
    # every architecture's reader is behind it, and the other verbs need none
    from ssmgen.new import new_spec

    name, text = new_spec(
        request.config, tensor_parallel=request.tensor_parallel, name=name, targets=list(request.targets)
    )
    path = output or paths.short(paths.project().specs / f"{name}.yaml")
    value = spec.loads(text, path)
    old = _text(path)
    if old is not None and old != text and not request.force:
        raise UsageError(
            "a spec of this name is there and differs",
            where=path,
            next="give another --name or -o, or replace it with --force",
        )
    known, dropped = lock.refit(paths.lock_path(path), value)
    new_lock = lock.dumps(name, known)
    changed = {path.name: text, paths.lock_path(path).name: new_lock}
    writing.write_files(path.parent, {n: t for n, t in changed.items() if _text(path.parent / n) != t})
    return [
        f"{path}: {_sizes(value)}",
        f"{paths.lock_path(path)}: {_schedules(known) or 'no schedules: this operator has no kernels yet'}",
        *(f"  dropped {line}" for line in dropped),
    ]


def relock(arguments: Sequence[str], rederive: bool) -> list[str]:
    """Complete the locks of the named specs, or of all; the lines say what changed."""
    lines = []
    for path in spec_paths(arguments, paths.project()):
        value = spec.load(path)
        at = paths.lock_path(path)
        known, dropped = lock.refit(at, value, rederive)
        text = lock.dumps(value.model.name, known)
        if _text(at) == text:
            lines.append(f"{at}: unchanged")
            continue
        writing.write_file(at, text)
        lines += [f"{at}: {_schedules(known)}", *(f"  dropped {line}" for line in dropped)]
    return lines


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError("cannot be read", where=path, found=e) from None


def _sizes(value: Spec) -> str:
    operators = value.operators.model_dump(exclude_none=True)
    parts = [
        f"{name} ({', '.join(f'{k} {v}' for k, v in operator['shape'].items())}; {operator['dtypes']['x']})"
        for name, operator in operators.items()
    ]
    return " and ".join(parts)


def _schedules(known: Lock) -> str:
    parts = []
    for (target, _, route), entry in known.items():
        plan = entry.schedule.plan
        split = f", {plan.segments} segments" if plan.segments > 1 else ""
        evidence = "derived" if entry.evidence == "derived" else f"measured {entry.evidence.us} us"
        parts.append(f"{target} {route}: chunk {plan.chunk}{split}, {evidence}")
    return "; ".join(parts)
