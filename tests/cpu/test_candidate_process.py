"""What a candidate's process can reach, what the memory it is lent shows, and what becomes of it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

from ssmgen.check import confinement, process, worker  # noqa: E402
from ssmgen.check.contracts.base import Output  # noqa: E402
from ssmgen.check.memory import HostMemory, Layout, size_of  # noqa: E402
from ssmgen.check.placement import Placed  # noqa: E402
from ssmgen.check.process import Lost, Package, Zygote  # noqa: E402
from ssmgen.check.verdict import Stage  # noqa: E402

SECRET = "a seed that nobody may see"


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as started:
        yield started


@pytest.fixture
def lent():
    memory = HostMemory(1 << 20)
    yield memory
    memory.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(process, "CALL", 2.0)


def candidate(folder: Path, body: str, before: str = "") -> Package:
    """A package whose `run` is `body`, which finds `said` (n,) float32 to put what it learns in."""
    folder.mkdir(exist_ok=True)
    lines = "\n    ".join(body.strip().splitlines())
    (folder / "__init__.py").write_text(f"{before}\ndef run(x, said, **more):\n    {lines}\n")
    return Package(folder)


def called(zygote, lent, package: Package, values=None):
    """(what the candidate said, the layout, the call)."""
    worker = zygote.fork(lent, "cpu")
    try:
        worker.ready()
        worker.open(package)
        layout = Layout(lent, Random(1))
        given = {"x": torch.arange(6.0).reshape(2, 3), "factor": float("inf"), "none": None} | (values or {})
        call = layout.call(given, {"said": Output((4,), torch.float32)})
        worker.call(call.placed)
        worker.watch()
        return layout.read(call)["said"], layout, call
    finally:
        worker.end()
        zygote.reap(worker.process)


def test_a_call_arrives_as_it_was_laid_out(zygote, lent, tmp_path):
    package = candidate(
        tmp_path / "c",
        "said[0] = x.sum()\nsaid[1] = x.stride(0)\nsaid[2] = more['factor']\nsaid[3] = float(more['none'] is None)",
    )
    fused = torch.arange(20.0).reshape(2, 10)
    said, layout, call = called(zygote, lent, package, {"x": fused[:, 2:5]})
    assert said.tolist() == [fused[:, 2:5].sum().item(), 10.0, float("inf"), 1.0]
    assert layout.touched(call) is None
    assert not layout.unwritten(call, "said").any()


@pytest.mark.parametrize(("body", "where"), [
    ("x[1, 2] = 7", "x: an input was written to, 22 bytes from its start"),
    ("import ctypes\nctypes.memset(said.data_ptr() + 16, 1, 1)", "said: memory 1 bytes outside it was written to"),
    ("import ctypes\nctypes.memset(x.data_ptr() - 3, 1, 1)", "x: memory 3 bytes outside it was written to"),
    ("import ctypes\nctypes.memset(x.data_ptr() + 4000, 1, 1)", "bytes outside it was written to"),
    ("said.fill_(1)", None),
    ("x[1, 2] = x[1, 2]", None),
])  # fmt: skip
def test_what_was_touched(zygote, lent, tmp_path, body, where):
    # where noise happens to be what is written, writing it is not seen: another draw, then
    _, layout, call = called(zygote, lent, candidate(tmp_path / "c", body))
    touched = layout.touched(call)
    assert (touched is None) if where is None else (touched is not None and where in touched)


def test_what_was_never_written(zygote, lent, tmp_path):
    said, layout, call = called(zygote, lent, candidate(tmp_path / "c", "said[1] = 2"))
    assert layout.unwritten(call, "said").tolist() == [True, False, True, True]
    assert said.isnan().tolist() == [True, False, True, True]


def test_no_two_calls_are_poisoned_or_placed_alike(lent):
    layout = Layout(lent, Random(1))
    given, outputs = (
        {"x": torch.ones(50)},
        {"out": Output((3, 50), torch.bfloat16), "state": Output((9,), torch.float32)},
    )
    calls = []
    for _ in range(20):
        layout.start()
        calls.append(layout.call(given, outputs))
        assert all(layout.read(calls[-1])[name].isnan().all() for name in outputs)
        assert calls[-1].stop <= size_of(given, outputs)
    assert len({call.placed.tensors["x"].start for call in calls}) > 15
    assert len({call.copy.numpy().tobytes() for call in calls}) == 20
    assert all(place.start % 16 == 0 for call in calls for place in call.placed.tensors.values())


def test_a_call_again_in_its_place(lent):
    layout = Layout(lent, Random(1))
    fused = torch.zeros(4, 10)
    first = layout.call({"x": fused[:, 2:5], "n": 1}, {"out": Output((3,), torch.float32)})
    again = layout.fill(first, {"x": torch.ones(4, 3), "n": 2})
    assert again.placed.tensors == first.placed.tensors
    assert again.placed.scalars == {"n": 2}
    assert again.placed.tensors["x"].view(lent.data).eq(1).all()
    assert layout.read(again)["out"].isnan().all()
    assert layout.unwritten(again, "out").all()
    assert layout.touched(again) is None


def test_a_call_without_elements(lent):
    layout = Layout(lent, Random(1))
    call = layout.call({"x": torch.ones(0, 3)}, {"out": Output((0, 5), torch.float32)})
    assert layout.read(call)["out"].shape == (0, 5)
    assert layout.touched(call) is None
    with pytest.raises(ValueError, match="are left"):
        layout.call({"x": torch.ones(1 << 20)}, {})


def test_places_survive_the_channel():
    layout = Layout(memory := HostMemory(1 << 16), Random(1))
    call = layout.call({"x": torch.ones(2, 3).T, "low": -0.0, "high": float("inf"), "on": True}, {})
    again = Placed.from_json(call.placed.as_json())
    assert again == call.placed
    assert str(again.scalars["low"]) == "-0.0"
    memory.close()


def test_it_cannot_read_its_checker(zygote, lent, tmp_path):
    body = f"""
import os
for name, path in enumerate(("mem", "environ", "maps")):
    try:
        open("/proc/{os.getpid()}/" + path, "rb").read(1)
        said[name] = 1
    except OSError:
        said[name] = 0
said[3] = len(os.listdir("/proc/self/fd"))
"""
    with confinement.unreadable():
        said, _, _ = called(zygote, lent, candidate(tmp_path / "c", body))
    assert said[:3].tolist() == [0, 0, 0]
    # standard streams; channel; page and memory, each twice; and the folder that is being listed
    assert said[3] <= 9


def test_the_checker_can_be_read_again_afterwards():
    before = Path("/proc/self/environ").stat().st_uid
    with confinement.unreadable():
        pass
    assert Path("/proc/self/environ").stat().st_uid == before


def test_it_has_no_privileges_and_no_surroundings(zygote, lent, tmp_path, monkeypatch):
    body = f"""
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
said[0] = int(status["CapEff"], 16) + int(status["CapBnd"], 16) + int(status["CapPrm"], 16)
said[1] = int(status["NoNewPrivs"])
said[2] = {SECRET!r} in "".join(os.environ.values())
said[3] = os.getcwd().startswith({str(zygote.folder)!r}) and os.getsid(0) == os.getpid()
"""
    monkeypatch.setenv("SSMGEN_SECRET", SECRET)
    said, _, _ = called(zygote, lent, candidate(tmp_path / "c", body))
    assert said.tolist() == [0, 1, 0, 1]


def test_its_modules_know_nothing_of_what_is_expected(zygote, lent, tmp_path):
    body = """
import sys
said[0] = sum(name.startswith("ssmgen.check.contracts") for name in sys.modules)
said[1] = sum(name.startswith("ssmgen.reference") for name in sys.modules)
said[2] = "ssmgen.check.verifying" in sys.modules or "ssmgen.check.timing" in sys.modules
said[3] = 0
"""
    assert called(zygote, lent, candidate(tmp_path / "c", body))[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("case", [
    ("raise ValueError('no such shape')", "", Stage.VERIFY, "ValueError: no such shape"),
    ("pass", "raise ImportError('no such thing')", Stage.BUILD, "ImportError: no such thing"),
    ("pass", "def broken(:", Stage.BUILD, "SyntaxError"),
    ("import os\nos._exit(0)", "", Stage.ISOLATION, "its process ended"),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "", Stage.ISOLATION, "its process ended"),
    ("import sys\nsys.exit(3)", "", Stage.VERIFY, "SystemExit: 3"),
    ("import os\n[os.write(fd, b'{}' * 99) for fd in range(3, 8)]", "", Stage.ISOLATION, "into the channel"),
    ("while True: pass", "", Stage.ISOLATION, "no answer within 2 s"),
    ("import os\nos.fork() or os.execvp('sleep', ['sleep', '60'])", "", Stage.ISOLATION, "it started 1 processes"),
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()", "", Stage.ISOLATION, "threads"),
])  # fmt: skip
@pytest.mark.usefixtures("impatient")
def test_what_becomes_of_it_is_a_verdict(zygote, lent, tmp_path, case):
    body, before, stage, what = case
    with pytest.raises(Lost) as lost:
        called(zygote, lent, candidate(tmp_path / "c", body, before))
    assert lost.value.finding.stage == stage
    assert what in lost.value.finding.what


def test_what_it_leaves_behind_is_ended(zygote, lent, tmp_path):
    mark = f"3{os.getpid()}"
    body = f"import os\nos.setsid if os.fork() else os.execvp('sleep', ['sleep', '{mark}'])"
    with pytest.raises(Lost, match="processes"):
        called(zygote, lent, candidate(tmp_path / "c", body))
    running = [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(p)]
    assert running == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_process_that_forks_touches_no_gpu_and_goes_with_its_checker():
    with Zygote() as started:
        number = started._process.pid
        assert confinement.threads(number) >= 1
        assert not any("nvidia" in str(fd.readlink()) for fd in Path(f"/proc/{number}/fd").iterdir())
        folder = started.folder
    assert confinement.threads(number) == 0
    assert not folder.exists()


def test_a_zygote_that_died_is_no_verdict(lent):
    with Zygote() as started:
        os.kill(started._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="the process that forks candidates is gone"):
            started.fork(lent, "cpu")


def test_messages_are_whole_or_none():
    ours, theirs = socket.socketpair()
    worker.send(ours, {"a": 1})
    assert worker.receive(theirs)[0] == {"a": 1}
    ours.sendall(worker.LENGTH.pack(1 << 30))
    with pytest.raises(ValueError, match="a message of"):
        worker.receive(theirs)
    ours.sendall(worker.LENGTH.pack(10) + b"{}")
    ours.close()
    with pytest.raises(EOFError):
        worker.receive(theirs)
