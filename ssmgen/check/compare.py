"""The checker's one question: `compare(incumbent, candidate, problem) -> Verdict`.

    contract -> static -> build -> verify -> time -> physics      the first stage with a finding ends it

Everything that decides is in this process, and in none that a candidate runs in.
"""

from __future__ import annotations

import functools
import math
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ssmgen.check import gpu, peaks, physics, static, statistics, timers, timing, verifying
from ssmgen.check.certificate import Certificate, certify
from ssmgen.check.confinement import unreadable
from ssmgen.check.contracts import CONTRACTS
from ssmgen.check.process import Gone, Lost, Package, Zygote
from ssmgen.check.question import Floor, Problem, Settings
from ssmgen.check.samples import Timed
from ssmgen.check.verdict import Finding, Outcome, Stage, Verdict
from ssmgen.check.verifying import Subject

_CONFINED = "ran: privileges, files and descriptors taken away; no filter of system calls"


def compare(
    incumbent: Package,
    candidate: Package,
    problem: Problem,
    settings: Settings | None = None,
    floor: Floor | None = None,
    zygote: Zygote | None = None,
) -> Verdict:
    """Whether `candidate` is right, and whether it is faster than `incumbent` on the problem's timed call.

    `floor` is what `noise_floor` found on this machine, on this problem; without it there is the least floor there can
    be, and a difference of that size may be the machine's. A candidate that is wrong, hangs, dies or cheats is
    REJECTED, with the stage and the reason; one too fast to be believed is verified once more and QUARANTINED. Raises
    RuntimeError where the incumbent is not right itself, or was measured to differ from itself, and UsageError where
    the problem's device is not here.

    Whoever compares many starts one `Zygote` for all: it takes as long as importing torch.
    """
    if floor is not None and floor.void:
        raise RuntimeError(f"the incumbent was measured to differ from itself: {floor.estimate}")
    problem.check_device()
    settings = settings or Settings()
    case = _Case(problem, settings, candidate.folder, floor.noise if floor else statistics.LEAST_FLOOR)
    case.ran |= {"contract": "ran", "static": "ran"}
    findings = [*_contract(problem.operator_name), *static.check(candidate.folder, incumbent.folder)]
    if findings:
        return case.rejected(findings[:1] if findings[0].stage == Stage.CONTRACT else findings)
    with _folder() as one, _folder() as other, _of(zygote) as started, unreadable():
        before = case.incumbent(incumbent, one)
        try:
            return _run(case, started, before, case.built(candidate, other))
        except Lost as e:
            return case.rejected([e.finding])
        except Gone as e:
            return case.rejected([Finding(Stage.ISOLATION, f"it ended what it was started by: {e}")])


def _run(case: _Case, zygote: Zygote, before: Subject, candidate: Package) -> Verdict:
    """The stages in which the candidate runs. Raises Lost for what ends them."""
    settings, problem = case.settings, case.problem
    sides = (before, case.subject(candidate))
    case.candidate = candidate.folder
    # what runs is what is read, and the other way round
    if read := static.check(candidate.folder, before.package.folder):
        return case.rejected(read)
    hard = problem.contract.hard(problem.operator) if problem.device == "cuda" else ()
    listed = [problem.timed, *problem.listed, *hard]
    findings, numbers = verifying.verify(zygote, sides[1], listed, settings.secret)
    case.ran |= {"isolation": _CONFINED, "verify": f"ran: {numbers.calls} calls"}
    case.figures["excess"] = dict(numbers.excess)
    if findings := [*findings, *_left(zygote)]:
        return case.rejected(findings)
    verdict = _timed(case, zygote, sides)
    for side in sides:
        side.package.check_seal()
    return verdict


def _left(zygote: Zygote) -> Iterator[Finding]:
    """Processes that candidates left behind."""
    if zygote.left:
        yield Finding(Stage.ISOLATION, f"it left {zygote.left} processes behind")
        zygote.left = 0


@dataclass
class _Case:
    """A comparison as far as it has come."""

    problem: Problem
    settings: Settings
    candidate: Path
    noise: float = statistics.LEAST_FLOOR
    ran: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def subject(self, package: Package) -> Subject:
        return Subject(self.problem.contract, self.problem.operator, package, self.problem.device)

    def built(self, package: Package, folder: Path) -> Package:
        """A sealed copy in `folder`, on a GPU with cubins for it. Raises Lost with what is wrong with its files."""
        try:
            passed = shutil.ignore_patterns("__pycache__")
            copy = shutil.copytree(package.folder, folder / package.folder.name, symlinks=True, ignore=passed)
        except (OSError, shutil.Error) as e:
            raise Lost(Finding(Stage.BUILD, f"its files cannot be read: {e}")) from None
        package = replace(package, folder=copy)
        if self.problem.device != "cuda" or package.archive is not None:
            self.ran["build"] = "ran: cubins as given" if package.archive else "ran: interpreted"
            return package.sealed()
        import torch

        from ssmgen.check.building import compiled

        major, minor = torch.cuda.get_device_capability()
        self.ran["build"] = "ran: compiled in a cache of its own"
        return compiled(package, [f"sm_{major}{minor}"], folder / "built").sealed()

    def incumbent(self, package: Package, folder: Path) -> Subject:
        """What candidates are compared with; RuntimeError where it cannot be built."""
        try:
            return self.subject(self.built(package, folder))
        except Lost as e:
            raise timing.no_measure(e.finding) from None

    def rejected(self, findings: Sequence[Finding]) -> Verdict:
        return Verdict(Outcome.REJECTED, tuple(findings), ran=self.ran, figures=self.figures)


def _timed(case: _Case, zygote: Zygote, sides: tuple[Subject, Subject]) -> Verdict:
    """Look by look, until it can be told."""
    settings, problem = case.settings, case.problem
    timed, outcome = Timed(), Outcome.AMBG
    looks = settings.looks
    for look, more in enumerate(looks, 1):
        plan = replace(settings.plan, processes=more)
        timed = timing.measure(zygote, sides, problem.timed, plan, timed)
        case.ran["timing"] = f"ran: {timed.numbers.calls} calls, in {2 * len(timed.processes)} processes"
        if findings := [*timed.findings, *_left(zygote)]:
            return case.rejected(findings)
        if findings := list(_clocks(case, timed)):
            return case.rejected(findings)
        found = statistics.estimate(ratios(timed), statistics.spent(look, len(looks), settings.alpha))
        outcome = statistics.decide(found, case.noise)
        if outcome is not Outcome.AMBG:
            break
    case.figures |= conditions(problem.device) | _figures(timed, case.noise)
    impossible, doubts = _physics(case, timed)
    if impossible:
        return case.rejected(impossible)
    if doubts:
        # as many calls again, in a process that has not been timed
        again, _ = verifying.verify(zygote, sides[1], [problem.timed], 2 * settings.secret)
        if again:
            return case.rejected([*doubts, *again])
        outcome = Outcome.QUARANTINED
    return Verdict(outcome, tuple(doubts), found.ratio, found.interval, case.ran, case.figures)


def _clocks(case: _Case, timed: Timed) -> Iterator[Finding]:
    """Whether the candidate's timers agree with this process's."""
    said = timed.reported["candidate"]

    def of_batch(each: float | None) -> float | None:
        return None if each is None else each * timed.calls

    batch = (said.wall_us * timed.calls, of_batch(said.event_us), of_batch(said.span_us))
    clocks = timers.Clocks(*batch, case.problem.host_bound, said.late_us)
    yield from foreign(case.candidate, said.kernels)
    case.ran |= timers.ran(clocks, "torch.profiler, for CUPTI" if case.problem.device == "cuda" else "no GPU")
    yield from timers.disagreements(clocks)


def foreign(folder: Path, kernels: Sequence[str]) -> Iterator[Finding]:
    """Kernels that ran on the GPU and are not those of the candidate in `folder`."""
    own = static.symbols(folder)
    for name in kernels:
        if name not in own:
            yield Finding(Stage.TIMING, f"{name[:80]} ran, a kernel that is not its own")


def _physics(case: _Case, timed: Timed) -> tuple[list[Finding], list[Finding]]:
    problem = case.problem
    hardware = case.settings.hardware or _hardware(problem.device)
    if hardware is None:
        case.ran["physics"] = "not available: no GPU whose peaks are known"
        return [], []
    case.figures["peaks"] = asdict(hardware)
    work = problem.contract.work(problem.operator, problem.contract.given(problem.operator, problem.timed))
    if case.settings.plan.cold_bytes < physics.COLD_BYTES:
        # what is still in L2 need not be read from memory
        work = replace(work, read=0, written=0)
        case.ran["physics"] = f"ran: {hardware.name}, FLOPs alone, for caches may have been warm"
    else:
        case.ran["physics"] = f"ran: {hardware.name}"
    claim = physics.Claim(timed.median_us("candidate"), timed.median_us("incumbent"), problem.baseline_us)
    return list(physics.impossible(claim, work, hardware)), list(physics.suspicious(claim, work, hardware))


@functools.cache
def _hardware(device: str) -> physics.Hardware | None:
    if device != "cuda":
        return None
    import torch

    known = physics.known(torch.cuda.get_device_name())
    return known and peaks.measured(known)


def noise_floor(
    incumbent: Package, problem: Problem, settings: Settings | None = None, zygote: Zygote | None = None
) -> Floor:
    """An A/A run: the incumbent against itself, as candidates are compared with it.

    Raises RuntimeError where the incumbent is not right itself.
    """
    problem.check_device()
    settings = settings or Settings()
    plan = replace(settings.plan, processes=settings.looks[0])
    with _folder() as folder, _of(zygote) as started, unreadable():
        side = _Case(problem, settings, incumbent.folder).incumbent(incumbent, folder)
        timed = timing.measure(started, (side, side), problem.timed, plan)
    for finding in timed.findings:
        raise timing.no_measure(finding)
    found = statistics.estimate(ratios(timed), settings.alpha)
    return Floor(statistics.floor(found), statistics.voids(found), found)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ssmgen-") as folder:
        yield Path(folder)


def _of(given: Zygote | None) -> AbstractContextManager[Zygote]:
    return Zygote() if given is None else nullcontext(given)


@functools.cache
def _certificate(operator: str) -> Certificate:
    return certify(CONTRACTS[operator])


def _contract(operator: str) -> Iterator[Finding]:
    for refusal in _certificate(operator).refusals:
        yield Finding(Stage.CONTRACT, refusal)


def ratios(timed: Timed) -> list[list[float]]:
    """Log ratios by process and block."""
    return [[statistics.block(b.incumbent, b.candidate) for b in blocks] for blocks in timed.processes]


def conditions(device: str) -> dict[str, Any]:
    """What every figure travels with."""
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("cuda-bindings", "cuda-tile", "ssmgen"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    if device != "cuda":
        return {"device": "cpu, interpreted", "versions": versions}
    versions |= {"cuda": str(torch.version.cuda), "driver": gpu.driver_version()}
    return {"device": torch.cuda.get_device_name(), "versions": versions}


def _figures(timed: Timed, noise: float) -> dict[str, Any]:
    return {
        "noise_floor": math.exp(noise) - 1,
        "calls_in_a_batch": timed.calls,
        "empty_batch_us": timed.empty_us,
        "reported": {name: asdict(each) for name, each in timed.reported.items()},
        "samples_us": [[asdict(block) for block in blocks] for blocks in timed.processes],
        "excess_of_timed_calls": dict(timed.numbers.excess),
    }
