"""The build without a compiler: what is compiled and what is not, the cache, the errors, the archive."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ssmgen import build, cache, compiler, lock, pack, spec, workers
from ssmgen.build import Job, Settings
from ssmgen.cache import Cache
from ssmgen.compiler import CUDA_TILE, TOOLKIT, CompilerInfo
from ssmgen.errors import CompilerError, OutputError
from ssmgen.lock import Entry, Lock
from ssmgen.plans import RouteSchedule
from ssmgen.runtime.archive import Archive
from tests.conftest import MODEL, SPEC

# a line of a kernel tells this worker what to do with it
WORKER = """\
import hashlib, json, os, pathlib, sys, time
for line in sys.stdin:
    job = json.loads(line)
    text = job["text"]
    with open(os.environ["SSMGEN_TEST_LOG"], "a") as log:
        log.write(f"{os.getpid()} {job['path']}\\n")
    if "DIE" in text:
        sys.exit("out of luck")
    if "HANG" in text:
        time.sleep(600)
    answer = {}
    if "BAD" in text:
        answer = {"error": "no such thing as BAD", "line": text[: text.index("BAD")].count("\\n") + 1}
    else:
        pathlib.Path(job["out"]).write_bytes(hashlib.sha256(line.encode()).digest() * 1000)
    print(json.dumps(answer), flush=True)
"""
VALUE = spec.loads(SPEC, Path(f"{MODEL}.yaml"))
LOCK = lock.derive(VALUE, ["sm_90"])
COMPILER = CompilerInfo({CUDA_TILE: "1.7.0", **dict.fromkeys(TOOLKIT, "13.5.37")}, Path("tileiras"))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake worker says what it was asked; the cache is in the same folder."""
    path = tmp_path / "log"
    path.touch()
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(workers, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(build, "check_compiler", lambda: COMPILER)
    monkeypatch.setenv("SSMGEN_TEST_LOG", str(path))
    monkeypatch.setenv("SSMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return path


def jobs() -> list[Job]:
    return build.jobs_of(VALUE, LOCK, "sm_90")


def edited(job: Job, old: str, new: str) -> Job:
    assert old in job.kernel.text
    return replace(job, kernel=replace(job.kernel, text=job.kernel.text.replace(old, new, 1)))


def compiled(what: list[Job], **settings: object) -> list[build.Compiled]:
    return build.compile_jobs(what, COMPILER, Settings(**{"jobs": 2, **settings}))  # type: ignore[arg-type]


def nothing_left(folder: Path) -> None:
    assert not list((folder / "temporary").iterdir())
    assert not [p for p in (folder / "cache").rglob("*") if p.name.startswith(".")]
    started = {line.split()[0] for line in (folder / "log").read_text().splitlines()}
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in started if is_worker(pid, folder)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive


def is_worker(pid: str, folder: Path) -> bool:
    """Whether `pid` is still a worker of this test: the system may have given the number to somebody else."""
    try:
        return str(folder / "worker.py") in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_everything_is_compiled_once(log: Path) -> None:
    first = compiled(jobs())
    assert [c.how for c in first] == ["compiled"] * 7
    assert [c.job for c in first] == jobs()
    assert all(c.seconds > 0 for c in first)
    asked = log.read_text().splitlines()
    assert len({line.split()[0] for line in asked}) <= 2
    assert asked[0].endswith("/output.py")
    second = compiled(jobs())
    assert [c.how for c in second] == ["cached"] * 7
    assert [c.cubin for c in second] == [c.cubin for c in first]
    assert log.read_text().splitlines() == asked
    nothing_left(log.parent)


def test_kernels_that_differ_in_comments_alone_share_a_cubin(log: Path) -> None:
    job = jobs()[0]
    other = replace(edited(job, MODEL, "another"), kernel=replace(job.kernel, id=replace(job.kernel.id, model="b")))
    one, two = compiled([job, other])
    assert (one.how, two.how) == ("compiled", "cached")
    assert one.cubin == two.cubin
    assert two.job.kernel.id.model == "b"


def test_the_key_is_of_all_that_a_cubin_depends_on() -> None:
    job = jobs()[0]
    kernel = job.kernel
    newer = replace(COMPILER, versions={**COMPILER.versions, TOOLKIT[0]: "13.5.40"})
    keys = [
        build.key(job, COMPILER),
        build.key(edited(job, "CHUNK = ", "CHUNK = 1 + "), COMPILER),
        build.key(replace(job, kernel=replace(kernel, symbol="other")), COMPILER),
        build.key(replace(job, kernel=replace(kernel, id=replace(kernel.id, target="sm_100"))), COMPILER),
        build.key(replace(job, kernel=replace(kernel, parameters=kernel.parameters[:-1])), COMPILER),
        build.key(replace(job, shape=job.shape.model_copy(update={"heads": 24})), COMPILER),
        build.key(job, newer),
    ]
    assert len(set(keys)) == len(keys)
    assert build.key(replace(job, mend="said otherwise"), COMPILER) == keys[0]
    assert build.key(edited(job, "import cuda.tile", "\n# why\nimport cuda.tile"), COMPILER) == keys[0]


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:-1] + b"?"])
def test_a_damaged_entry_is_made_again(log: Path, damage: object) -> None:
    assert callable(damage)
    good = compiled(jobs()[:1])[0].cubin
    (entry,) = (log.parent / "cache").rglob("*.cubin")
    entry.write_bytes(damage(entry.read_bytes()))
    again = compiled(jobs()[:1])[0]
    assert (again.how, again.cubin) == ("compiled", good)
    assert compiled(jobs()[:1])[0].how == "cached"


def test_a_cache_that_cannot_be_written(log: Path) -> None:
    (log.parent / "cache").touch()
    with pytest.raises(OutputError, match="cache of compiled kernels cannot be written") as caught:
        compiled(jobs()[:1])
    assert caught.value.next == "set SSMGEN_CACHE_DIR to one"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("SSMGEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.default_folder() == Path("/h/.cache/ssmgen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.default_folder() == Path("/x/ssmgen")
    monkeypatch.setenv("SSMGEN_CACHE_DIR", "/own")
    assert cache.default_folder() == Path("/own")


def test_two_builds_at_once(log: Path) -> None:
    made: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: made.append([c.cubin for c in compiled(jobs())])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    assert made[0] == made[1] == made[2]
    nothing_left(log.parent)


def test_a_kernel_that_does_not_compile(log: Path) -> None:
    bad = edited(jobs()[3], "CHUNK = ", "BAD = 0\nCHUNK = ")
    with pytest.raises(CompilerError, match="no such thing as BAD") as caught:
        compiled([jobs()[0], bad], jobs=1)
    error = caught.value
    assert error.where is not None
    assert error.where.path == f"{MODEL}/sm_90/mamba_chunk_scan_combined/short/output.py"
    assert bad.kernel.text.splitlines()[error.where.line - 1] == error.found == "BAD = 0"
    assert error.next is not None
    assert "sm_90, route short: chunk " in error.next
    assert "heads_per_block " in error.next
    nothing_left(log.parent)


def test_a_worker_that_dies_takes_nothing_with_it(log: Path) -> None:
    with pytest.raises(CompilerError, match=r"compile process died \(exit status 1\): out of luck") as caught:
        compiled([edited(jobs()[1], "CHUNK", "DIE = CHUNK")])
    assert str(caught.value.where) == f"{MODEL}/sm_90/mamba_chunk_scan_combined/short/state.py"
    assert [c.how for c in compiled(jobs())] == ["compiled"] * 7
    nothing_left(log.parent)


def test_a_worker_that_takes_too_long(log: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(CompilerError, match=r"stopped after 0\.5 s; smaller tiles"):
        compiled([edited(jobs()[1], "CHUNK", "HANG = CHUNK")], timeout=0.5)
    assert time.monotonic() - begun < 30
    nothing_left(log.parent)


def test_ctrl_c_ends_the_workers_and_leaves_no_partial_entry(log: Path) -> None:
    code = f"""
import signal, sys
from tests.unit import test_build as t
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
t.workers.WORKER = Path({str(log.parent / "worker.py")!r})
good, hang = t.jobs()[0], t.edited(t.jobs()[1], "CHUNK", "HANG = CHUNK")
try:
    t.compiled([good, hang])
except KeyboardInterrupt:
    sys.exit(130)
"""
    env = os.environ | {"TMPDIR": str(log.parent / "temporary"), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", code], env=env)
    deadline = time.monotonic() + 60
    while len(list((log.parent / "cache").rglob("*.cubin"))) < 1 or "state.py" not in log.read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    nothing_left(log.parent)
    assert compiled(jobs()[:1])[0].how == "cached"


def test_progress_is_told_of_every_kernel(log: Path) -> None:
    told: list[str] = []

    @contextmanager
    def progress(what: str, total: int) -> Iterator[build.Step]:
        told.append(f"{what} {total}")
        yield told.append

    compiled(jobs(), progress=progress)
    assert told[0] == "compiling 7"
    assert sorted(told[1:]) == sorted(j.kernel.id.format() for j in jobs())
    compiled(jobs(), progress=progress)
    assert len(told) == 8


def test_a_schedule_that_a_target_cannot_serve_is_refused_before_the_compiler_starts(log: Path) -> None:
    known: Lock = dict(LOCK)
    (key, entry), *_ = LOCK.items()
    stages = tuple(
        (name, replace(own, occupancy=99) if name == "state" else own) for name, own in entry.schedule.stages
    )
    known[key] = Entry(RouteSchedule(entry.schedule.plan, stages), "derived")
    refused, *rows = build.run([(VALUE, known)], ["sm_90", "sm_120"], None, Settings())
    assert (refused.target, refused.how, refused.route) == ("sm_90", "refused", "*")
    assert "occupancy = 99 is outside cuTile's range, 1 to 32" in refused.reason
    assert {row.target for row in rows} == {"sm_120"}
    # two routes may need the same kernel, which is then compiled once
    assert {row.how for row in rows} <= {"compiled", "cached"}
    assert all(row.bytes == 32000 for row in rows)


def test_the_archive_reads_back(log: Path) -> None:
    path = log.parent / "cubins.tar.xz"
    rows = build.run([(VALUE, LOCK)], [], path, Settings())
    first = path.read_bytes()
    build.run([(VALUE, LOCK)], [], path, Settings())
    assert path.read_bytes() == first
    opened = Archive(path)
    assert opened.compiler == "cuda-tile 1.7.0, tileiras 13.5.37"
    for row, made in zip(rows, compiled(jobs()), strict=True):
        entry = opened.kernel(f"{row.model}/{row.target}/mamba_chunk_scan_combined/{row.route}/{row.stage}")
        assert opened.cubin(entry) == made.cubin
        assert dict(entry.symbols) == {v: f"{row.stage}_{v}" for v in ("aligned", "general")}
        assert [p.name for p in entry.parameters] == [p.name for p in made.job.kernel.parameters]
    with tarfile.open(path) as tar:
        members = tar.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert {(m.mtime, m.uid, m.uname, m.mode) for m in members} == {(0, 0, "", 0o644)}


def test_an_archive_folder_is_replaced_and_nothing_else_is(log: Path) -> None:
    path = log.parent / "cubins"
    build.run([(VALUE, LOCK)], [], path, Settings())
    stale = path / f"{hashlib.sha256(b'').hexdigest()}.cubin"
    stale.touch()
    build.run([(VALUE, LOCK)], [], path, Settings())
    assert not stale.exists()
    index = json.loads((path / "index.json").read_text())
    assert {p.name for p in path.glob("*.cubin")} == {k["cubin"] for k in index["kernels"].values()}
    assert Archive(path).targets == ("sm_90",)

    for name, what in (("log", "is a file"), (".", "something else in it"), ("no/such", "no such folder")):
        with pytest.raises(OutputError, match=what):
            pack.check_writable(log.parent / name)


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        cache.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_entry_under_another_key_is_not_taken(tmp_path: Path) -> None:
    kept = Cache(tmp_path)
    kept.put("ab12", b"cubin")
    assert kept.get("ab12") == b"cubin"
    assert kept.get("ab13") is None


class TestCompiler:
    """check_compiler() on machines that lack something."""

    @pytest.fixture(autouse=True)
    def _versions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: dict[str, str | None] = {CUDA_TILE: "1.7.3", **dict.fromkeys(TOOLKIT, "13.5.37")}
        monkeypatch.setattr(compiler, "_version", lambda name: self.versions[name])
        monkeypatch.setattr(compiler, "_program", lambda versions: Path("tileiras"))

    def refusal(self) -> CompilerError:
        with pytest.raises(CompilerError) as caught:
            compiler.check_compiler()
        assert caught.value.next is not None
        assert caught.value.next.startswith('pip install "cuda-tile>=1.7,<1.8" nvidia-cuda-tileiras==13.5.37')
        return caught.value

    def test_whole(self) -> None:
        assert str(compiler.check_compiler()) == "cuda-tile 1.7.3, tileiras 13.5.37"

    @pytest.mark.parametrize("name", [CUDA_TILE, *TOOLKIT])
    def test_missing(self, name: str) -> None:
        self.versions[name] = None
        error = self.refusal()
        assert error.what.endswith(f"no {name}")
        assert f"{name} not installed" in str(error.found)

    @pytest.mark.parametrize("version", ["1.3.0", "1.8.0", "2.0"])
    def test_an_untried_cuda_tile(self, version: str) -> None:
        self.versions[CUDA_TILE] = version
        assert f"cuda-tile {version}" in str(self.refusal().found)

    def test_a_toolkit_of_several_versions(self) -> None:
        self.versions[TOOLKIT[2]] = "13.4.92"
        error = self.refusal()
        assert "not of one version" in error.what
        assert "nvidia-nvvm 13.4.92" in str(error.found)
