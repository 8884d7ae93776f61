"""The bundle: what is in it, that it serves on its own, what is said where a part is wrong; no compiler, no GPU."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from test_build import COMPILER, LOCK, VALUE, log  # noqa: F401 - a fixture

from ssmgen import bundle, wheel
from ssmgen.build import Settings
from ssmgen.errors import OutputError, ScheduleError, UsageError
from ssmgen.paths import PACKAGE
from tests.conftest import MODEL, Project

WHEEL = "tiny_kernels-0.2.0-py3-none-any.whl"

# an interpreter on which ssmgen and cuda-tile cannot be imported, with a driver that records
BARE = """
import importlib, importlib.abc, sys, time
from types import SimpleNamespace

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ssmgen", "jinja2", "pydantic", "sympy", "typer", "rich") or name == "cuda.tile":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
unit, root, name, model = sys.argv[1:5]
sys.path.insert(0, unit)
from fake_cuda import FakeCuda
cuda = FakeCuda()
cuda.read = lambda function, table: []
sys.modules["cuda"] = SimpleNamespace(bindings=SimpleNamespace(driver=cuda), __path__=[])
sys.modules["cuda.bindings"] = sys.modules["cuda"].bindings
sys.path[0] = root
"""
# and with torch, whose tensors pass for a GPU's
HOST = f"""{BARE}
import torch

def serve():
    package = importlib.import_module(name + "." + model)
    runtime = importlib.import_module(name + "._runtime.launch")
    runtime.Kernel._ordinal = lambda self, pairs: 0
    package.forward.__self__._stream = lambda ordinal: 0
    replay = importlib.import_module(name + "._runtime.replay")
    replay.current_device, replay._is_capturing = lambda: 0, lambda: False
    vars(package._forward).update(
        device=lambda where: ("sm_90", 132), current_stream=lambda where: 0, check_decay=lambda rates: None
    )
    return package

def call(package, tokens=100, **more):
    rows = dict(x=(16, 64), B=(2, 128), C=(2, 128))
    arguments = dict((n, torch.zeros(1, tokens, *s, dtype=torch.bfloat16)) for n, s in rows.items())
    vectors = dict((n, torch.zeros(16)) for n in ("A", "D", "dt_bias"))
    with torch.no_grad():
        return package.mamba_chunk_scan_combined(
            dt=torch.zeros(1, tokens, 16), chunk_size=64, dt_softplus=True, **(arguments | vectors | more)
        )
"""


@pytest.fixture
def made(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A bundle in a folder, from the workers of `log`."""
    monkeypatch.setattr(bundle, "check_compiler", lambda: COMPILER)
    bundle.run([(VALUE, LOCK)], [], tmp_path / "tiny_kernels", Settings())
    return tmp_path / "tiny_kernels"


def host(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where the bundle's parent folder is all there is beside torch."""
    pytest.importorskip("torch")
    return run(root, HOST + code)


def run(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-I", "-c", code, here, str(root), "tiny_kernels", MODEL]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    last = done.stderr[max(done.stderr.rfind(kind) for kind in ("LaunchError:", "ImportError:")) :]
    assert "next:" in last
    return last


def test_a_folder_serves_on_its_own(made: Path) -> None:
    done = host(
        made.parent,
        """
start = time.perf_counter()
package = serve()
out = call(package)
first = time.perf_counter() - start
assert first < 1, first
assert out.shape == (1, 100, 16, 64)
assert len(cuda.launches) == 4 and len(cuda.libraries) == 4
call(package)
assert len(cuda.launches) == 8 and len(cuda.libraries) == 4
assert not package.forward.__self__.why_not()
call(package, tokens=5000)
assert len(cuda.launches) == 11 and len(cuda.libraries) == 7, "a route's cubins are loaded at its first call"
import tiny_kernels
from tiny_kernels.tiny_9b import mamba_chunk_scan_combined
assert mamba_chunk_scan_combined is package.mamba_chunk_scan_combined
print(tiny_kernels.MODELS, tiny_kernels.TARGETS)
heavy = [m for m in ("ssmgen", "cuda.tile", "jinja2", "torch._dynamo") if m in sys.modules]
assert not heavy, heavy
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "('tiny_9b',) ('sm_90',)\n"


def test_a_renamed_folder_and_two_bundles_serve_side_by_side(made: Path) -> None:
    other = made.rename(made.parent / "renamed")
    bundle.run([(VALUE, LOCK)], [], made, Settings())
    done = host(
        other.parent,
        """
packages = []
for name in ("tiny_kernels", "renamed"):
    packages.append(serve())
    call(packages[-1])
assert packages[0].__name__ != packages[1].__name__
assert packages[0].forward.__self__._launcher.directory != packages[1].forward.__self__._launcher.directory
""",
    )
    assert done.returncode == 0, done.stderr


def test_a_broken_promise_is_named_by_the_bundles_own_error(made: Path) -> None:
    done = host(
        made.parent,
        """
import tiny_kernels
package = serve()
unaligned = torch.frombuffer(memoryview(bytearray(65))[1:], dtype=torch.float32)
for _ in range(2):
    try:
        call(package, A=unaligned)
    except tiny_kernels.LaunchError as e:
        print(e)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("argument a of tiny_9b/sm_90/mamba_chunk_scan_combined/short/cumsum breaks") == 2
    assert "a multiple of 4 bytes" in done.stdout


def test_another_gpu_is_refused_by_name(made: Path) -> None:
    text = refusal(host(made.parent, "cuda.capability = (10, 0)\ncall(serve())"))
    assert "cannot run on this GPU" in text
    assert "sm_100" in text
    assert "sm_90" in text


# what a bundle is opened with; it goes wrong in several ways where it is not looked at before
RUNTIME = ("__init__", "errors", "bundled", "archive", "serving")


def file(made: Path, pattern: str) -> Path:
    return next(iter(sorted(made.glob(pattern))))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("_packages/*/_forward.py", "_packages/tiny_9b/_forward.py of the bundle"),
        ("_packages/*/__init__.py", "_packages/tiny_9b/__init__.py of the bundle"),
        ("_packages/*/sm_90/*/short/state.py", "short/state.py of the bundle"),
        ("_cubins/index.json", "_cubins/index.json of the bundle"),
        ("bundle.json", "bundle.json"),
        *((f"_runtime/{module}.py", f"/_runtime/{module}.py of the bundle") for module in RUNTIME),
        (f"{MODEL}.py", f"/{MODEL}.py of the bundle"),
    ],
)
@pytest.mark.parametrize("damage", ["edited", "emptied", "missing"])
def test_a_file_that_is_not_the_bundles_is_named(made: Path, pattern: str, says: str, damage: str) -> None:
    path = file(made, pattern)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20] if damage == "edited" else b"")
    # it is found out before torch is imported
    text = refusal(run(made.parent, BARE + 'importlib.import_module(f"{name}.{model}")'))
    assert says in text
    assert str(made) in text


def test_a_bundles_own_init_is_named_by_its_models_where_it_still_runs(made: Path) -> None:
    (made / "__init__.py").write_text("")
    text = refusal(run(made.parent, BARE + 'importlib.import_module(f"{name}.{model}")'))
    assert "__init__.py of the bundle is damaged" in text


def test_looking_at_what_opens_a_bundle_is_quick(made: Path) -> None:
    code = """
import hashlib, json, pathlib
start = time.process_time()
package = importlib.import_module(name)
assert package.MODELS == (model,)
print(time.process_time() - start)
"""
    done = [run(made.parent, BARE + code) for _ in range(3)]
    # with all that is imported, of which looking is 2 ms
    assert min(float(each.stdout) for each in done) < 0.02, done


@pytest.mark.parametrize("how", ["moved", "gone", "linked"])
def test_a_bundle_that_goes_after_its_import_is_missed_by_name(made: Path, how: str) -> None:
    done = host(
        made.parent,
        f"""
import os, shutil
package = serve()
os.rename(root + "/tiny_kernels", root + "/moved")
if {how!r} == "gone":
    shutil.rmtree(root + "/moved")
if {how!r} == "linked":
    os.symlink(root + "/moved", root + "/tiny_kernels")
call(package)
""",
    )
    if how == "linked":
        assert done.returncode == 0, done.stderr
    else:
        text = refusal(done)
        assert f"{made}/_packages/tiny_9b/sm_90/mamba_chunk_scan_combined/short/cumsum.py" in text
        assert "No such file" in text
        assert "ssmgen bundle" in text
        assert "ssmgen compile" not in text


def test_a_cpu_tensor_is_refused_without_advice_that_a_bundle_cannot_follow(made: Path) -> None:
    code = """
package = serve()
own = importlib.import_module(package._arguments.__name__)
vars(package._forward).update(device=own.device, check_decay=lambda rates: None)
try:
    call(package)
except ValueError as e:
    print(e)
"""
    assert host(made.parent, code).stdout == "x: found on cpu, expected on a CUDA device\n"


def test_a_damaged_cubin_is_named_when_it_is_launched(made: Path) -> None:
    for path in made.glob("_cubins/*.cubin"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert ".cubin is damaged" in refusal(host(made.parent, "call(serve())"))
    for path in made.glob("_cubins/*.cubin"):
        path.unlink()
    assert ".cubin is missing" in refusal(host(made.parent, "call(serve())"))


def test_what_launches_in_a_bundle_is_ssmgens_own(made: Path) -> None:
    own = {path.name: path.read_bytes() for path in (PACKAGE / "runtime").glob("*.py")}
    assert {path.name: path.read_bytes() for path in (made / "_runtime").glob("*.py")} == own
    text = b"".join(path.read_bytes() for path in made.rglob("*") if path.is_file() and path.suffix != ".cubin")
    for name in (made.parent, Path.home(), PACKAGE.parent):
        assert str(name).encode() not in text


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_kernels_make_the_same_bytes(made: Path) -> None:
    before = contents(made)
    bundle.run([(VALUE, LOCK)], [], made, Settings())
    assert contents(made) == before
    # what no bundle put there is somebody's, wherever it lies
    (made / "_cubins/notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="a folder with something else in it") as refused:
        bundle.run([(VALUE, LOCK)], [], made, Settings())
    assert refused.value.found == "_cubins/notes.txt"
    (made / "_cubins/notes.txt").unlink()
    wheels = [made.parent / f"{n}/{WHEEL}" for n in "ab"]
    for path in wheels:
        path.parent.mkdir()
        bundle.run([(VALUE, LOCK)], [], path, Settings())
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    listed = json.loads(before["bundle.json"])["files"]
    assert listed == {n: hashlib.sha256(d).hexdigest() for n, d in before.items() if n != "bundle.json"}


def test_ctrl_c_between_the_old_and_the_new_leaves_one_of_them(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = contents(made), Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bundle.run([(VALUE, LOCK)], [], made, Settings())
    assert contents(made) == before
    assert [path.name for path in made.parent.iterdir() if path.name.startswith(".")] == []


def test_a_wheel_is_whole_and_serves(made: Path, tmp_path: Path) -> None:
    bundle.run([(VALUE, LOCK)], [], tmp_path / WHEEL, Settings())
    installed = tmp_path / "site"
    with zipfile.ZipFile(tmp_path / WHEEL) as packed:
        assert packed.testzip() is None
        packed.extractall(installed)
    info = installed / "tiny_kernels-0.2.0.dist-info"
    about = Parser().parsestr((info / "METADATA").read_text())
    assert (about["Name"], about["Version"]) == ("tiny_kernels", "0.2.0")
    assert about.get_all("Requires-Dist") == ["torch>=2.9", "cuda-bindings>=13"]
    assert "Tag: py3-none-any" in (info / "WHEEL").read_text()
    record = {row[0]: row[1:] for row in csv.reader(io.StringIO((info / "RECORD").read_text()))}
    files = contents(installed)
    assert set(record) == set(files)
    assert record.pop("tiny_kernels-0.2.0.dist-info/RECORD") == ["", ""]
    for name, (digest, size) in record.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={expected}", len(files[name]))
    assert {n.removeprefix("tiny_kernels/"): d for n, d in files.items() if "dist-info" not in n} == contents(made)
    done = host(installed, "call(serve())")
    assert done.returncode == 0, done.stderr


def test_targets_are_those_that_were_asked_for(tmp_path: Path, log: Path, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(bundle, "check_compiler", lambda: COMPILER)
    made = bundle.run([(VALUE, LOCK)], ["sm_90", "sm_100"], tmp_path / "both", Settings())
    assert made.targets == ("sm_100", "sm_90")
    assert made.kernels == 14
    assert 'TARGETS = ("sm_90", "sm_100")' in (tmp_path / "both/_packages/tiny_9b/_arguments.py").read_text()
    index = json.loads((tmp_path / "both/_cubins/index.json").read_text())
    assert len(index["kernels"]) == 14
    # the committed schedule of a target stays what it is beside others
    one = bundle.run([(VALUE, LOCK)], [], tmp_path / "one", Settings())
    assert one.targets == ("sm_90",)
    inside = "_packages/tiny_9b/sm_90/mamba_chunk_scan_combined/short/state.py"
    assert (tmp_path / "one" / inside).read_bytes() == (tmp_path / "both" / inside).read_bytes()


@pytest.mark.parametrize("name", ["my-kernels", "class", "2fast", "a.b", "__main__", "__pycache__"])
def test_a_folder_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be imported as"):
        bundle.run([(VALUE, LOCK)], [], tmp_path / name, Settings())


@pytest.mark.parametrize("name", ["json", "antigravity", "torch", "ssmgen", "pytest"])
@pytest.mark.parametrize("form", ["{}", "{}-1.0-py3-none-any.whl"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str, form: str) -> None:
    with pytest.raises(UsageError, match=f"a bundle called '{name}' would stand in the way") as caught:
        bundle.run([(VALUE, LOCK)], [], tmp_path / form.format(name), Settings())
    assert caught.value.found
    assert not list(tmp_path.iterdir())


def test_a_name_of_an_older_bundle_or_of_a_folder_is_free(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.parent / "empty").mkdir()
    monkeypatch.syspath_prepend(str(made.parent))
    for name in (made.name, "empty"):
        bundle.run([(VALUE, LOCK)], [], made.parent / name, Settings())
        assert (made.parent / name / "bundle.json").is_file()
    (made.parent / "helper.py").write_text("")
    with pytest.raises(UsageError, match="a bundle called 'helper'"):
        bundle.run([(VALUE, LOCK)], [], made.parent / "helper", Settings())


@pytest.mark.parametrize("output", [".", "..", ""])
def test_the_folder_it_runs_in_is_no_place_for_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    inside = tmp_path / "kernels_of_a_model/kernels_of_mine"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    with pytest.raises(OutputError, match="is the folder that this runs in"):
        bundle.run([(VALUE, LOCK)], [], Path(output), Settings())
    assert inside.is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "kernels.whl",
        "kernels-0.1.whl",
        "kernels-0.1-cp311-cp311-linux_x86_64.whl",
        "Kernels-0.1-py3-none-any.whl",
        "my.kernels-0.1-py3-none-any.whl",
        "kernels-01-py3-none-any.whl",
        "kernels-0.1-1-py3-none-any.whl",
        "class-0.1-py3-none-any.whl",
        "2fast-0.1-py3-none-any.whl",
    ],
)
def test_a_wheel_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a wheel") as caught:
        wheel.parse(name)
    assert "py3-none-any.whl" in str(caught.value.next)


def test_nothing_is_written_over_what_is_no_bundle(tmp_path: Path, made: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="something else in it"):
        bundle.run([(VALUE, LOCK)], [], tmp_path / "other", Settings())
    with pytest.raises(OutputError, match="no such folder"):
        bundle.run([(VALUE, LOCK)], [], tmp_path / "absent" / "kernels_of_a_model", Settings())
    (tmp_path / "plain").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        bundle.run([(VALUE, LOCK)], [], tmp_path / "plain", Settings())
    (tmp_path / WHEEL).mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        bundle.run([(VALUE, LOCK)], [], tmp_path / WHEEL, Settings())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_bundle_that_cannot_be_written_leaves_the_old_one(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(made)
    original = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "bundle.json":
            raise OSError(28, "No space left on device")
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="cannot be written") as caught:
        bundle.run([(VALUE, LOCK)], [], made, Settings())
    assert "No space left" in str(caught.value)
    monkeypatch.undo()
    assert contents(made) == before
    assert not [path for path in made.parent.iterdir() if path.name.startswith(".tiny")]


def test_a_schedule_that_a_target_cannot_serve_is_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ScheduleError("tiny_9b, sm_120: too large")

    monkeypatch.setattr("ssmgen.build.jobs_of", refuse)
    with pytest.raises(ScheduleError):
        bundle.run([(VALUE, LOCK)], ["sm_120"], tmp_path / "kernels_of_a_model", Settings())
    assert not (tmp_path / "kernels_of_a_model").exists()


def test_the_command(locked: Project, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(bundle, "check_compiler", lambda: COMPILER)
    done = locked.run("bundle", MODEL)
    assert done.code == 0
    assert done.out.splitlines()[1] == "from ssmgen_kernels.tiny_9b import mamba_chunk_scan_combined"
    assert (locked.root / "ssmgen_kernels/tiny_9b.py").is_file()
    done = locked.run("bundle", "--target", "sm_100", "-o", WHEEL, "--json")
    assert json.loads(done.out)["targets"] == ["sm_100"]
    assert (locked.root / WHEEL).is_file()
    assert "Example: ssmgen bundle" in locked.run("bundle", "--help").out
    for wrong in (("bundle", "absent"), ("bundle", "-o", "a-b"), ("bundle", "--target", "sm_1")):
        assert locked.run(*wrong).code == 2
