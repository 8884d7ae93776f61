"""Compiling a package as it lies on disk: what is compiled, what comes from the cache, what is refused; no compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_cuda import CUresult, FakeCuda
from test_build import COMPILER, LOCK, VALUE, log  # noqa: F401 - a fixture

import ssmgen
from ssmgen import ahead, build, generate, loading, signatures
from ssmgen.errors import CompilerError, LaunchError
from ssmgen.runtime.driver import Driver
from ssmgen.stages.base import Array, Scalar
from tests.conftest import MODEL


@pytest.fixture
def folder(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A generated package, with the workers of `log` for a compiler."""
    monkeypatch.setattr(ahead, "check_compiler", lambda: COMPILER)
    for name, text in generate.fileset(VALUE, LOCK).items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "made" / MODEL


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A host with torch and a GPU, for `ssmgen.load`."""
    cuda = FakeCuda()
    monkeypatch.setattr("ssmgen.runtime.driver.driver", lambda: Driver(cuda))
    monkeypatch.setattr(loading, "need", lambda module, install: None)
    return cuda


def test_parameters_read_back() -> None:
    for parameter in (Array("x", "bfloat16", ("B", "T", "H", "P"), "caller"), Scalar("dt_max", "float32")):
        assert signatures.from_text(signatures.as_text(parameter)) == parameter
    for text in (
        "x",
        "x bfloat16",
        "x bfloat16 B,T",
        "x float64 B caller",
        "x bfloat16 B nobody",
        "x int32 B caller 1",
    ):
        with pytest.raises(ValueError):
            signatures.from_text(text)


def test_what_lies_on_disk_is_what_the_spec_compiles(folder: Path, log: Path) -> None:  # noqa: F811
    build.compile_jobs(build.jobs_of(VALUE, LOCK, "sm_90"), COMPILER)
    begun = log.read_text()
    archive = ahead.archive(folder, ["sm_90"])
    # `ssmgen compile` and `ssmgen build` leave the cubins that a load needs
    assert log.read_text() == begun
    assert sorted(archive._raw) == sorted(job.kernel.id.format() for job in build.jobs_of(VALUE, LOCK, "sm_90"))
    for name in archive._raw:
        archive.check_source(name, folder.parent / f"{name}.py")
        assert archive.cubin(archive.kernel(name))


def test_a_kernel_edited_by_hand_is_compiled_as_it_is(folder: Path, log: Path) -> None:  # noqa: F811
    ahead.archive(folder, ["sm_90"])
    before = log.read_text().splitlines()
    file = next(folder.glob("sm_90/*/short/state.py"))
    file.write_text(file.read_text() + "\nMINE = 1\n")
    archive = ahead.archive(folder, ["sm_90"])
    assert len(log.read_text().splitlines()) == len(before) + 1
    name = file.relative_to(folder.parent).with_suffix("").as_posix()
    archive.check_source(name, file)


def test_a_package_under_another_name_is_compiled_under_it(folder: Path) -> None:
    other = folder.rename(folder.parent / "vendored")
    archive = ahead.archive(other, ["sm_90"])
    assert {name.split("/")[0] for name in archive._raw} == {"vendored"}


def test_a_kernel_that_is_refused_is_named_with_its_file(folder: Path) -> None:
    file = next(folder.glob("sm_90/*/short/state.py"))
    file.write_text(file.read_text() + "\n# refuse\n")
    job = next(job for job in ahead.jobs_of(folder, ["sm_90"]) if job.kernel.text.endswith("# refuse\n"))
    assert str(file) in job.mend
    assert f"ssmgen generate {MODEL}" in job.mend


def test_load_compiles_before_the_first_call_and_only_once(folder: Path, here: FakeCuda, log: Path) -> None:  # noqa: F811
    pytest.importorskip("torch")
    ssmgen.load(folder)
    asked = log.read_text()
    assert len(asked.splitlines()) == 7
    package = ssmgen.load(folder, progress=True)
    assert log.read_text() == asked
    assert package.forward.__self__._launcher.archive.targets == ("sm_90",)
    assert not here.libraries, "cubins are loaded at the first call"


@pytest.mark.parametrize(("capability", "count", "found"), [((8, 6), 1, "sm_86"), ((9, 0), 0, "no GPU")])
def test_a_gpu_that_the_package_is_not_for_is_refused_at_load(folder, here, capability, count, found) -> None:
    here.capability, here.count = capability, count
    with pytest.raises(LaunchError, match="no kernels for this machine's GPU") as caught:
        ssmgen.load(folder)
    assert caught.value.found == found
    assert "sm_90" in str(caught.value)


def test_only_what_this_machine_can_run_is_compiled(folder: Path, here: FakeCuda) -> None:
    here.count = 3
    assert Driver(here).targets() == ("sm_90",)


def test_no_driver_and_no_compiler_are_named(folder: Path, here: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise CompilerError("the cuTile compiler is not whole: no cuda-tile", found="-", next="pip install it")

    monkeypatch.setattr(ahead, "check_compiler", absent)
    with pytest.raises(LaunchError, match="the cuTile compiler is not whole") as caught:
        ssmgen.load(folder)
    assert "pip install it" in str(caught.value)
    assert 'backend="cubin"' in str(caught.value)

    def no_library(flags: int) -> None:
        raise RuntimeError("no libcuda.so.1")

    monkeypatch.setattr(here, "cuInit", no_library, raising=False)
    with pytest.raises(LaunchError, match="no CUDA driver"):
        ssmgen.load(folder)
    monkeypatch.setattr(here, "cuInit", lambda flags: (CUresult.CUDA_ERROR_INVALID_VALUE,), raising=False)
    with pytest.raises(LaunchError, match="cuInit failed"):
        ssmgen.load(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("shapes"), "KeyError"),
        (lambda m: m["shapes"]["mamba_chunk_scan_combined"].update(heads=-1), "no shape of a model"),
        (lambda m: m["kernels"][0].update(id="a/b"), "not a kernel name"),
        (lambda m: m["kernels"][0].update(parameters=["x y z"]), "ValueError"),
        (lambda m: m["kernels"][0].update(id=f"{MODEL}/sm_90/mamba_chunk_scan_combined/short/absent"), "absent.py"),
        (lambda m: m.update(kernels=None), "TypeError"),
    ],
)
def test_a_manifest_that_is_not_whole_is_refused(folder: Path, change, says: str) -> None:
    path = folder / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(LaunchError, match=r"MANIFEST\.json") as caught:
        ahead.archive(folder, ["sm_90"])
    assert says in str(caught.value)
    assert f"ssmgen generate {MODEL}" in str(caught.value)


def test_a_package_without_a_manifest_is_refused(folder: Path) -> None:
    (folder / "MANIFEST.json").unlink()
    with pytest.raises(LaunchError, match="cannot be read"):
        ahead.archive(folder, ["sm_90"])
