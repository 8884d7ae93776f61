"""Every cheat is rejected at its stage with its reason, every control is accepted, and no cheat is a straw man."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

from ssmgen import generate, writing  # noqa: E402
from ssmgen.check import static, statistics, verifying  # noqa: E402
from ssmgen.check.compare import Floor, Problem, Settings, compare, foreign, noise_floor  # noqa: E402
from ssmgen.check.confinement import ended, unreadable  # noqa: E402
from ssmgen.check.contracts.mamba_chunk_scan_combined import Forward  # noqa: E402
from ssmgen.check.physics import Hardware  # noqa: E402
from ssmgen.check.process import Package, Zygote  # noqa: E402
from ssmgen.check.samples import Plan  # noqa: E402
from ssmgen.check.timers import Clocks, disagreements  # noqa: E402
from ssmgen.check.timing import measure  # noqa: E402
from ssmgen.check.verdict import Outcome, Stage  # noqa: E402
from ssmgen.check.verifying import Subject, verify  # noqa: E402
from ssmgen.errors import UsageError  # noqa: E402
from ssmgen.verify.problems import Call, Drawn, sample  # noqa: E402
from tests.adversarial import CHEATS, CONTROLS, Candidate, Edit  # noqa: E402

# nothing decays, and the row is long: what is lost at every chunk adds up
LONG = Call(tokens=2500, regime="zero_decay", initial_states=True)
SMALL = Plan(processes=1, rounds=2, batches=2, calls=(6, 6), graph=False)
HERE = [c for c in CHEATS if not c.cuda]


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as started, unreadable():
        yield started


def subject(candidate: Candidate, folder: Path) -> Subject:
    return Subject(Forward(), candidate.model.operator, Package(candidate.write(folder)))


def incumbent(folder: Path) -> Path:
    return CONTROLS[0].write(folder / "incumbent")


def test_there_are_as_many_as_are_asked_for():
    names = [c.name for c in (*CHEATS, *CONTROLS)]
    assert len(set(names)) == len(names)
    asked = {
        *("stale_empty", "answer_thief", "alias_mutate", "ptr_cache", "content_cache", "call_counter", "side_stream"),
        *("late_thread", "timer_forger", "bf16_state", "no_carry", "shape_bigot", "near_zero", "l2_squatter"),
        "guard_breaker",
    }
    assert asked <= {c.name for c in CHEATS}
    assert {c.name.partition("_")[0] for c in CONTROLS} == {"honest"}
    assert len(CONTROLS) == 7


@pytest.mark.parametrize("candidate", CHEATS, ids=lambda c: c.name)
def test_what_the_text_gives_away(candidate, tmp_path):
    findings = static.check(candidate.write(tmp_path), incumbent(tmp_path))
    if candidate.static is None:
        assert findings == ()
    else:
        assert any(candidate.static in f.what for f in findings), findings
        assert all(f.stage == Stage.STATIC and ":" in f.where for f in findings)


@pytest.mark.parametrize("candidate", CONTROLS, ids=lambda c: c.name)
def test_the_text_of_a_control_is_allowed(candidate, tmp_path):
    """Of another schedule too; of another dtype than the incumbent's is no candidate."""
    same = candidate.model.x == CONTROLS[0].model.x
    before = incumbent(tmp_path) if same else candidate.write(tmp_path / "incumbent")
    assert static.check(candidate.write(tmp_path), before) == ()


def test_no_name_of_a_kernel_covers_for_anothers(tmp_path):
    """Part of a library's kernel's name is a name that a candidate may choose."""
    package = incumbent(tmp_path)
    (package / "sm_90" / "kernel.py").write_text("@ct.kernel\ndef kernel(x): pass\n")
    seen = ["state_aligned", "state_general", "kernel_general"]
    assert [*foreign(package, seen)] == []
    library = "void at::native::elementwise_kernel<128, 4>(int)"
    assert [f.what for f in foreign(package, [*seen, library, "Memset (Device)", "state"])] == [
        f"{name} ran, a kernel that is not its own" for name in (library, "Memset (Device)", "state")
    ]


SCHEDULE = ("chunk", "segments", "half_rows", "small_tiles")


@pytest.mark.parametrize("seed", range(20))
def test_the_text_of_any_schedule_is_allowed(seed, tmp_path):
    """Whatever is drawn of a model's schedules is a candidate beside whatever else is."""
    one, other = (sample(Drawn, Random(seed + more)) for more in (0, 1000))
    other = replace(one, **{name: getattr(other, name) for name in SCHEDULE})
    for name, drawn in (("one", one), ("other", other)):
        writing.write_files(tmp_path / name, generate.fileset(drawn.spec(), drawn.lock()))
    assert static.check(tmp_path / "other" / "drawn", tmp_path / "one" / "drawn") == ()


@pytest.mark.parametrize(("file", "name", "free", "bound"), [
    ("_arguments.py", "CHUNK", "5", "[5][0]"),
    ("_arguments.py", "MAX_ROWS", "5", "print(5)"),
    ("_arguments.py", "MAX_TOKENS", "5", "5 if print(5) else 5"),
    ("_library.py", "NAMESPACE", "'ssmgen_other_0123abcd'", "'aten'"),
])  # fmt: skip
def test_what_a_schedule_decides_of_a_host_file_is_a_constant(file, name, free, bound, tmp_path):
    before, package = incumbent(tmp_path), CONTROLS[0].write(tmp_path / "candidate")
    text = (package / file).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} = ")]
    (package / file).write_text(text.replace(line, f"{name} = {free}"))
    assert static.check(package, before) == ()
    (package / file).write_text(text.replace(line, f"{name} = {bound}"))
    assert "differs from the incumbent's" in static.check(package, before)[0].what


@pytest.mark.parametrize("candidate", [c for c in HERE if c.stage != Stage.TIMING], ids=lambda c: c.name)
def test_a_cheat_is_rejected_at_its_stage(candidate, zygote, tmp_path, monkeypatch):
    """By the stage that runs it, which has not been told what its text gives away."""
    monkeypatch.setattr("ssmgen.check.process.CALL", 5.0)
    start = time.monotonic()
    listed = [Call(tokens=33), LONG] if candidate.name.startswith("bf16") else [Call(tokens=33)]
    findings, _ = verify(zygote, subject(candidate, tmp_path), listed, 5)
    assert findings, f"{candidate.name} was accepted: it {candidate.does}"
    assert {f.stage for f in findings} == {candidate.stage}, findings
    assert any(candidate.reason in str(f) for f in findings), findings
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("candidate", [c for c in HERE if c.stage == Stage.TIMING], ids=lambda c: c.name)
def test_a_cheat_is_rejected_while_it_is_timed(candidate, zygote, tmp_path):
    cheat, honest = subject(candidate, tmp_path / "cheat"), subject(CONTROLS[0], tmp_path / "honest")
    timed = measure(zygote, (honest, cheat), Call(tokens=33), SMALL)
    assert {f.stage for f in timed.findings} == {Stage.TIMING}
    assert any(candidate.reason in str(f) for f in timed.findings), timed.findings
    # what is right for some calls has to be found out by those that are timed
    assert timed.numbers.calls > 40


@pytest.mark.parametrize("candidate", CONTROLS, ids=lambda c: c.name)
def test_a_control_is_accepted(candidate, zygote, tmp_path):
    # the interpreter takes long over many tokens one by one
    listed = [Call(tokens=33), LONG] if candidate.name != "honest_recurrent" else [Call(tokens=33)]
    findings, numbers = verify(zygote, subject(candidate, tmp_path), listed, 4)
    assert findings == []
    # each elsewhere, elsewhere once more, in the same place with other values, and with one changed
    assert numbers.calls == 4 * (len(listed) + 4)
    assert 0 < max(numbers.excess.values()) <= 1


class _Careless:
    """A checker that compares the first call with another implementation's, to a hundredth."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote, self._folder = zygote, folder

    def accepts(self, candidate: Candidate) -> bool:
        found = [self._results(each, self._folder / each.name) for each in (candidate, CONTROLS[0])]
        return all(torch.allclose(*(f[n].float() for f in found), rtol=1e-2, atol=1e-2) for n in found[0])

    def _results(self, candidate: Candidate, folder: Path):
        tried = subject(candidate, folder)
        contract = tried.contract
        given = contract.given(tried.operator, Call(tokens=64, regime="mild"))
        outputs = contract.outputs(tried.operator, given)
        lent = tried.memory(verifying.memory.size_of(given, outputs))
        worker = self._zygote.fork(lent, "cpu")
        try:
            worker.ready()
            worker.open(tried.package)
            layout = verifying.Layout(lent, verifying.SystemRandom())
            call = layout.call(contract.arguments(given), outputs)
            worker.call(call.placed)
            return layout.read(call)
        finally:
            worker.end()
            self._zygote.reap(worker.process)


@pytest.mark.parametrize("name", [
    "alias_mutate", "ptr_cache", "content_cache", "call_counter", "bf16_state", "shape_bigot", "near_zero",
])  # fmt: skip
def test_a_careless_checker_accepts_it(name, zygote, tmp_path):
    """These are right, or nearly, where one looks once."""
    (candidate,) = [c for c in CHEATS if c.name == name]
    assert _Careless(zygote, tmp_path).accepts(candidate)


def test_a_careless_checker_is_not_altogether_blind(zygote, tmp_path):
    (candidate,) = [c for c in CHEATS if c.name == "no_carry"]
    assert not _Careless(zygote, tmp_path).accepts(candidate)


def question(candidate: Candidate, folder: Path, hardware: Hardware | None = None):
    problem = Problem("mamba_chunk_scan_combined", candidate.model.operator, Call(tokens=33), (LONG,), device="cpu")
    plan = Plan(rounds=1, batches=1, calls=(2, 2), graph=False)
    settings = Settings(secret=1, looks=(2,), plan=plan, hardware=hardware)
    before = Package(CONTROLS[0].write(folder / "incumbent"))
    return compare(before, Package(candidate.write(folder / "candidate")), problem, settings)


@pytest.mark.parametrize("name", ["honest_fast", "honest_reordered", "honest_multi_kernel"])
def test_the_whole_question_of_a_control(name, tmp_path):
    """Of other schedules and kernels too: they are what a tuner asks about."""
    (candidate,) = [c for c in CONTROLS if c.name == name]
    verdict = question(candidate, tmp_path)
    assert verdict.accepted, verdict.findings
    assert verdict.outcome in (Outcome.SAME, Outcome.AMBG, Outcome.FAST, Outcome.SLOW)
    assert verdict.interval[0] <= verdict.ratio <= verdict.interval[1]
    assert verdict.ran["physics"].startswith("not available")
    assert verdict.ran["kernel spans"] == "not available: no GPU"
    assert verdict.ran["verify"] == "ran: 12 calls"
    assert len(verdict.figures["samples_us"]) == 2
    assert verdict.as_json()["outcome"] == verdict.outcome


@pytest.mark.parametrize(("name", "stage"), [("ptr_cache", Stage.STATIC), ("no_carry", Stage.VERIFY)])
def test_the_whole_question_of_a_cheat(name, stage, tmp_path):
    (candidate,) = [c for c in CHEATS if c.name == name]
    verdict = question(candidate, tmp_path)
    assert verdict.outcome == Outcome.REJECTED
    assert not verdict.accepted
    assert verdict.findings[0].stage == stage
    assert verdict.ratio is None


# a byte and a FLOP a second: whatever runs here is faster
SLOWEST = Hardware("abacus", 1.0, dict.fromkeys(("bfloat16", "float32"), 1.0))


def test_the_whole_question_of_what_is_faster_than_can_be(tmp_path):
    verdict = question(CONTROLS[0], tmp_path, SLOWEST)
    assert verdict.outcome == Outcome.REJECTED
    assert {f.stage for f in verdict.findings} == {Stage.PHYSICS}
    assert "bytes that must be read: abacus takes" in verdict.findings[0].what
    assert verdict.ran["physics"] == "ran: abacus"


def test_the_whole_question_of_what_is_nearly_too_fast(tmp_path, monkeypatch):
    """It is verified once more, in a process that was not timed, before it is put aside."""
    seen = []
    monkeypatch.setattr(verifying, "verify", lambda *given, honest=verify: seen.append(given[2:]) or honest(*given))
    fast = replace(SLOWEST, bandwidth=1e15, flops=dict.fromkeys(SLOWEST.flops, 1e15), copied=1.0)
    verdict = question(CONTROLS[0], tmp_path, fast)
    assert verdict.outcome == Outcome.QUARANTINED
    assert not verdict.accepted
    assert "of what a copy moves here" in verdict.findings[0].what
    assert seen == [([Call(tokens=33), LONG], 1), ([Call(tokens=33)], 2)]
    # what it was measured at is told all the same
    assert verdict.ratio is not None


def test_an_incumbent_that_is_wrong_is_no_measure(zygote, tmp_path):
    (candidate,) = [c for c in CHEATS if c.name == "no_carry"]
    wrong, right = subject(candidate, tmp_path / "a"), subject(CONTROLS[0], tmp_path / "b")
    with pytest.raises(RuntimeError, match="the incumbent is not what can be compared with: timing: out"):
        measure(zygote, (wrong, right), Call(tokens=33), SMALL)


OPERATOR = CONTROLS[0].model.operator
QUESTION = Problem("mamba_chunk_scan_combined", OPERATOR, Call(tokens=33), device="cpu")


def test_the_noise_of_a_machine_is_an_incumbent_against_itself(zygote, tmp_path):
    plan = Plan(rounds=1, batches=1, calls=(2, 2), graph=False)
    found = noise_floor(Package(incumbent(tmp_path)), QUESTION, Settings(looks=(3,), plan=plan), zygote)
    assert found.estimate.processes == 3
    assert found.noise >= statistics.LEAST_FLOOR
    assert found.noise >= 2 * max(abs(found.estimate.low), abs(found.estimate.high))


def test_nothing_is_compared_where_an_incumbent_differs_from_itself(tmp_path):
    void = Floor(0.1, True, statistics.estimate([[0.1], [0.101]]))
    with pytest.raises(RuntimeError, match="measured to differ from itself"):
        compare(Package(incumbent(tmp_path)), Package(incumbent(tmp_path)), QUESTION, floor=void)


def test_an_incumbent_that_is_wrong_has_no_noise(zygote, tmp_path):
    (candidate,) = [c for c in CHEATS if c.name == "no_carry"]
    with pytest.raises(RuntimeError, match="the incumbent is not what can be compared with: timing: out"):
        noise_floor(Package(candidate.write(tmp_path)), QUESTION, Settings(looks=(2,), plan=SMALL), zygote)


def test_an_incumbent_that_no_compiler_takes_is_no_measure(zygote, tmp_path, monkeypatch):
    """On a GPU both sides are compiled; this one never gets as far as needing one."""
    pytest.importorskip("cuda.tile")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    broken, right = (Package(incumbent(tmp_path / name)) for name in ("broken", "right"))
    (kernel,) = broken.folder.rglob("state.py")
    kernel.write_text(kernel.read_text().replace("ct.load(", "ct.loads("))
    on_gpu = replace(QUESTION, device="cuda")
    with pytest.raises(RuntimeError, match=r"the incumbent is not what can be compared with: build: .*loads"):
        noise_floor(broken, on_gpu, zygote=zygote)
    with pytest.raises(RuntimeError, match=r"the incumbent is not what can be compared with: build: .*loads"):
        compare(broken, right, on_gpu, zygote=zygote)


def test_a_question_that_cannot_be_asked_is_refused_by_name(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no contract of 'nothing'"):
        replace(QUESTION, operator_name="nothing")
    with pytest.raises(UsageError, match="device 'tpu'"):
        replace(QUESTION, device="tpu")
    for looks in ((), (1,), (2, 0)):
        with pytest.raises(UsageError, match="at least 2 pairs"):
            Settings(looks=looks)
    with pytest.raises(UsageError, match=r"alpha 1\.5"):
        Settings(alpha=1.5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    side, on_gpu = Package(incumbent(tmp_path)), replace(QUESTION, device="cuda")
    for ask in (compare, noise_floor):
        with pytest.raises(UsageError, match="there is no CUDA device here"):
            ask(*[side] * (1 + (ask is compare)), on_gpu)


# what follows no reader lets pass; it is here because readers err
_LAST = "    return out, final_states\n\n\ndef _route"


def edited(*edits: tuple[str, str], name: str = "edited") -> Candidate:
    """The incumbent with other text in its host function."""
    return Candidate(name, "", tuple(Edit("_forward.py", old, new) for old, new in edits))


def after(text: str) -> tuple[str, str]:
    return _LAST, f"{text}{_LAST}"


def timers_of(timed) -> list:
    said = timed.reported["candidate"]
    return [*disagreements(Clocks(said.wall_us * timed.calls, None, None, late_us=said.late_us))]


FORGED = """
    import struct, sys
    frame = sys._getframe()
    while frame is not None:
        if "words" in frame.f_locals:
            number, = struct.unpack_from("<q", frame.f_locals["words"], 128)
            if number:
                struct.pack_into("<q", frame.f_locals["words"], 192, number)
        frame = frame.f_back
    batch, tokens = x.shape[:2]
    checked"""


def test_who_says_that_a_batch_is_done_and_goes_on_is_seen(zygote, tmp_path):
    forger = edited(("\n    batch, tokens = x.shape[:2]\n    checked", FORGED))
    honest = subject(CONTROLS[0], tmp_path / "a")
    timed = measure(zygote, (honest, subject(forger, tmp_path / "b")), Call(batch=2, tokens=300), SMALL)
    found = [*timed.findings, *timers_of(timed)]
    assert any("is said to be done after" in f.what for f in found), (found, timed.reported)
    timed = measure(zygote, (honest, subject(CONTROLS[0], tmp_path / "c")), Call(batch=2, tokens=300), SMALL)
    assert [*timed.findings, *timers_of(timed)] == []


def test_files_that_change_once_they_were_read_are_the_candidates_doing(zygote, tmp_path):
    sides = [Package(incumbent(tmp_path / name)) for name in ("a", "b")]
    text = f"    with open({str(sides[0].folder / '_forward.py')!r}, 'a') as file:\n        file.write('# slower\\n')\n"
    file = sides[1].folder / "_forward.py"
    file.write_text(file.read_text().replace(_LAST, text + _LAST))
    subjects = tuple(Subject(Forward(), OPERATOR, each.sealed()) for each in sides)
    timed = measure(zygote, subjects, Call(tokens=33), replace(SMALL, processes=2))
    assert timed.findings == []
    # the first pair wrote, the next comparison's processes would read it
    timed = measure(zygote, subjects, Call(tokens=33), SMALL, timed)
    assert [str(f) for f in timed.findings] == ["isolation: files of drawn changed after they were read"]


def test_what_a_process_leaves_behind_is_ended_and_counted(tmp_path):
    text = f"""    import os, time
    if not os.path.exists({str(tmp_path / "left")!r}):
        between = os.fork()
        if between == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(tmp_path / "left")!r}, "w").write(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.waitpid(between, 0)
        while not os.path.exists({str(tmp_path / "left")!r}):
            pass
"""
    with Zygote() as own, unreadable():
        findings, _ = verify(own, subject(edited(after(text)), tmp_path), [Call(tokens=33)], 0)
        assert findings == []
        assert own.left == 1
        assert ended(int((tmp_path / "left").read_text()))
        assert verify(own, subject(CONTROLS[0], tmp_path / "b"), [Call(tokens=33)], 0)[0] == []
        assert own.left == 1


def test_no_process_looks_into_another(zygote, tmp_path):
    """Neither a candidate's neighbour, nor what forked both, nor the checker."""
    seen = tmp_path / "seen"
    text = f"""    import os
    def parent(process):
        return int(open(f"/proc/{{process}}/stat").read().rpartition(")")[2].split()[1])
    forker = os.getppid()
    every = [int(c) for t in os.listdir(f"/proc/{{forker}}/task")
             for c in open(f"/proc/{{forker}}/task/{{t}}/children").read().split()]
    every = [forker, parent(forker), *every]
    with open({str(seen)!r}, "a") as log:
        print(len(every), file=log)
        for other in every:
            for what in ("fd", "mem", "environ", "maps"):
                try:
                    path = f"/proc/{{other}}/{{what}}"
                    if other != os.getpid():
                        links = [os.readlink(f"{{path}}/{{each}}") for each in os.listdir(path)] if what == "fd" else ""
                        # of one that has ended there is nothing to read
                        print(path, "can be read" if links or (what != "fd" and open(path).read(1)) else 0, file=log)
                except OSError:
                    pass
"""
    sides = subject(CONTROLS[0], tmp_path / "a"), subject(edited(after(text)), tmp_path / "b")
    assert measure(zygote, sides, Call(tokens=33), SMALL).findings == []
    lines = seen.read_text().splitlines()
    # itself, its neighbour, what forked them, the checker
    assert max(int(line) for line in lines if line.isdigit()) >= 4
    assert [line for line in lines if line.endswith("can be read")] == []


@pytest.mark.parametrize(("old", "new"), [
    ("return out, final_states\n\n\ndef", "return out.flatten(), final_states\n\n\ndef"),
    ("return out, final_states\n\n\ndef", "return out.double(), final_states\n\n\ndef"),
    ("return out, final_states\n\n\ndef", "return out, final_states.mT\n\n\ndef"),
])  # fmt: skip
def test_a_result_of_another_form_is_wrong(old, new, zygote, tmp_path):
    findings, _ = verify(zygote, subject(edited((old, new)), tmp_path), [Call(tokens=33)], 0)
    assert "expected torch." in findings[0].what


def test_results_may_be_allocated_in_any_order(zygote, tmp_path):
    out = "    out = allocate((batch, tokens, HEADS, HEAD_DIM), x.dtype, x.device)\n"
    states = "    final_states = allocate((entries, HEADS, HEAD_DIM, STATE), torch.float32, x.device)\n"
    scratch = "    scratch = allocate((entries, HEADS, HEAD_DIM, STATE), torch.float32, x.device)\n"
    for order in (states + out, scratch + out + states):
        candidate = edited((out + states, order))
        assert verify(zygote, subject(candidate, tmp_path / str(len(order))), [Call(tokens=33)], 1)[0] == []
