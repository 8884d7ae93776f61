"""The red team on a real GPU: every cheat rejected at its stage, every control accepted, what needs CUDA included.

SSMGEN_ADVERSARIAL names a folder of candidates with their cubins, as `python tests/gpu/test_checker.py FOLDER` makes it
where a compiler is; without it they are compiled here. SSMGEN_REPORT names a file for what was found.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ssmgen.check.building import compiled  # noqa: E402
from ssmgen.check.compare import conditions, foreign  # noqa: E402
from ssmgen.check.confinement import unreadable  # noqa: E402
from ssmgen.check.contracts.mamba_chunk_scan_combined import Forward  # noqa: E402
from ssmgen.check.process import Lost, Package, Zygote  # noqa: E402
from ssmgen.check.samples import Plan  # noqa: E402
from ssmgen.check.timers import Clocks, disagreements  # noqa: E402
from ssmgen.check.timing import measure  # noqa: E402
from ssmgen.check.verdict import Stage  # noqa: E402
from ssmgen.check.verifying import Subject, verify  # noqa: E402
from ssmgen.verify.problems import Call  # noqa: E402
from tests.adversarial import CHEATS, CONTROLS, NAME, Candidate  # noqa: E402

LONG = Call(tokens=16_384, regime="zero_decay", initial_states=True)
TIMED = Call(batch=2, tokens=4096)
# of so small a model no number of calls that one would wait for fills L2
PLAN = Plan(processes=1, rounds=1, batches=2, calls=(24, 24), cold_bytes=0)
RESULTS: dict[str, dict] = {}
FOLDER = os.environ.get("SSMGEN_ADVERSARIAL")
# by the kernel that ran, or the event that was forged, only once timers are compared
BY_TIMERS = ("event_forger", "decoy")


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    if path := os.environ.get("SSMGEN_REPORT"):
        Path(path).write_text(json.dumps({"conditions": conditions("cuda"), "candidates": RESULTS}, indent=1) + "\n")


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as started, unreadable():
        yield started


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    folder = Path(FOLDER) if FOLDER else tmp_path_factory.mktemp("adversarial")

    def subject(candidate: Candidate) -> Subject:
        here = folder / candidate.name
        package = Package(here / NAME, here / "cubins")
        if not package.archive.exists():
            package = compiled(Package(candidate.write(here)), ["sm_90"], here, folder / "cache")
        return Subject(Forward(), candidate.model.operator, package, "cuda")

    return subject


def note(candidate: Candidate, findings, seconds: float, numbers=None) -> None:
    row = RESULTS[candidate.name] = {"expected": candidate.stage or "accepted", "findings": [str(f) for f in findings]}
    row |= {"excess": dict(numbers.excess) if numbers else {}, "seconds": round(seconds, 2)}
    print(candidate.name, row)


@pytest.mark.parametrize("candidate", [c for c in CHEATS if c.stage != Stage.TIMING], ids=lambda c: c.name)
def test_a_cheat_is_rejected_at_its_stage(candidate, zygote, ready, monkeypatch):
    monkeypatch.setattr("ssmgen.check.process.CALL", 10.0)
    if candidate.name == "guard_breaker":
        pytest.skip("writes with ctypes, which reaches no GPU: guard_breaker_on_device does")
    start = time.monotonic()
    findings, numbers = verify(zygote, ready(candidate), [Call(tokens=33), LONG], 5)
    note(candidate, findings, time.monotonic() - start, numbers)
    assert findings, f"{candidate.name} was accepted: it {candidate.does}"
    assert {f.stage for f in findings} == {candidate.stage}, findings
    assert any(candidate.reason in str(f) for f in findings), findings


@pytest.mark.parametrize("candidate", [c for c in CHEATS if c.stage == Stage.TIMING], ids=lambda c: c.name)
def test_a_cheat_is_rejected_while_it_is_timed(candidate, zygote, ready):
    start = time.monotonic()
    timed = measure(zygote, (ready(CONTROLS[0]), ready(candidate)), TIMED, PLAN)
    findings = list(timed.findings)
    if not findings:
        said = timed.reported["candidate"]
        clocks = [None if t is None else t * timed.calls for t in (said.wall_us, said.event_us, said.span_us)]
        findings = [*disagreements(Clocks(*clocks)), *foreign(ready(candidate).package.folder, said.kernels)]
    note(candidate, findings, time.monotonic() - start, timed.numbers)
    assert findings, f"{candidate.name} was accepted: it {candidate.does}"
    assert {f.stage for f in findings} == {Stage.TIMING}, findings
    assert any(candidate.reason in str(f) for f in findings), findings


@pytest.mark.parametrize("candidate", CONTROLS, ids=lambda c: c.name)
def test_a_control_is_accepted(candidate, zygote, ready):
    start = time.monotonic()
    findings, numbers = verify(zygote, ready(candidate), [Call(tokens=33), LONG], 6)
    assert findings == []
    # of another dtype there is nothing else to compare with
    incumbent = candidate if candidate.model.x != CONTROLS[0].model.x else CONTROLS[0]
    timed = measure(zygote, (ready(incumbent), ready(candidate)), TIMED, PLAN)
    assert timed.findings == []
    said = timed.reported["candidate"]
    clocks = [None if t is None else t * timed.calls for t in (said.wall_us, said.event_us, said.span_us)]
    findings = list(disagreements(Clocks(*clocks)))
    findings += foreign(ready(candidate).package.folder, said.kernels)
    note(candidate, findings, time.monotonic() - start, numbers)
    print("   ", said, timed.reported["incumbent"].wall_us)
    assert findings == []


def test_a_kernel_that_kills_its_context_is_a_verdict(zygote, ready, tmp_path):
    """The next candidate is none the wiser."""
    subject = ready(CONTROLS[0])
    lent = subject.memory(1 << 22)
    worker = zygote.fork(lent, "cuda")
    worker.ready()
    package = tmp_path / "killer"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torch\n"
        "def run(**given):\n"
        "    torch.zeros(4, device='cuda')[torch.tensor([9], device='cuda')].sum()\n"
        "    torch.cuda.synchronize()\n"
    )
    try:
        worker.open(Package(package, subject.package.archive))
        with pytest.raises(Lost) as lost:
            from ssmgen.check.placement import Placed

            worker.call(Placed({}, {}))
        assert lost.value.finding.stage in (Stage.VERIFY, Stage.ISOLATION)
    finally:
        worker.end()
        zygote.reap(worker.process)
        lent.close()
    assert torch.zeros(3, device="cuda").sum().item() == 0
    findings, _ = verify(zygote, subject, [Call(tokens=33)], 1)
    assert findings == []


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for each in (*CHEATS, *CONTROLS):
        compiled(Package(each.write(target / each.name)), ["sm_90"], target / each.name, target / "cache")
