"""Loading a package with a stand-in `cuda.tile`: isolation, errors, archives; no GPU."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from fake_cuda import FakeCuda, FakeTensor, import_plainly, promise, write_archive, write_package

import ssmgen
from ssmgen import loading
from ssmgen.errors import LaunchError, UsageError
from ssmgen.runtime.archive import Archive
from ssmgen.runtime.driver import Driver
from ssmgen.runtime.launch import Kernel, Launcher
from ssmgen.runtime.standin import Inert, import_package

PARAMETERS = [{"name": "x", "dtype": "float32", "ndim": 1, "promises": {"aligned": promise(1), "general": promise(1)}}]
X = FakeTensor((4,), (1,), "torch.float32")


@pytest.fixture
def driver(monkeypatch):
    """ssmgen.load as on a host with torch and a GPU."""
    cuda = FakeCuda(sizes=[8, 4, 4])
    monkeypatch.setattr("ssmgen.runtime.driver.driver", lambda: Driver(cuda))
    monkeypatch.setattr(loading, "need", lambda module, install: None)
    return cuda


def test_importing_ssmgen_imports_nothing_heavy():
    code = "import ssmgen, sys; print([m for m in ('torch', 'cuda', 'sympy', 'jinja2') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    code = "from ssmgen import loading; import ssmgen; print(callable(ssmgen.load), ssmgen.load is loading.load)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "True True"


def test_a_package_loads_from_cubins_and_launches(tmp_path, driver):
    archive = write_archive(tmp_path / "archive", PARAMETERS)
    package = ssmgen.load(write_package(tmp_path), backend="cubin", archive=archive)
    kernel = package.route_stage.stage
    assert type(kernel) is Kernel
    assert kernel.name == "tiny/sm_90/operator/route/stage"
    package.run(5, X)
    assert driver.launches[0].stream == 5
    with pytest.raises(TypeError, match="not callable"):
        kernel(X)


def test_the_real_cuda_tile_stays_what_it_was(tmp_path, driver):
    real = pytest.importorskip("cuda.tile")
    archive = write_archive(tmp_path / "archive", PARAMETERS)
    package = ssmgen.load(write_package(tmp_path), backend="cubin", archive=archive)
    assert sys.modules["cuda.tile"] is real
    assert sys.modules["cuda"].tile is real
    assert package.ct is not real
    import cuda.tile as ct

    assert ct is real
    own = import_plainly(write_package(tmp_path))
    assert own.ct is real
    assert type(own.route_stage.stage) is real.kernel
    assert package.route_stage.stage is not own.route_stage.stage


def test_torch_and_cuda_bindings_are_all_it_takes(tmp_path):
    archive, package = write_archive(tmp_path / "archive", PARAMETERS), write_package(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from fake_cuda import FakeCuda
from ssmgen.runtime.archive import Archive
from ssmgen.runtime.driver import Driver
from ssmgen.runtime.launch import Launcher
from ssmgen.runtime.standin import import_package
import ssmgen.loading, ssmgen.paths
absent = "cuda.tile", "jinja2", "pydantic", "ruamel", "rich", "sympy", "typer"
assert not any(name in sys.modules for name in absent)
sys.modules |= dict.fromkeys(absent)
launcher = Launcher(Path({str(package)!r}), Archive(Path({str(archive)!r})), Driver(FakeCuda()))
package = import_package(launcher.directory, "cubin_tiny", launcher.tile())
print(package.route_stage.stage.name, sys.modules["cuda.tile"], "torch" in sys.modules)
"""
    answer = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert answer.split() == ["tiny/sm_90/operator/route/stage", "None", "False"]


def test_two_packages_and_two_loads_of_one_coexist(tmp_path, driver):
    archive = write_archive(tmp_path / "archive", PARAMETERS, models=("tiny", "other"))
    packages = [
        ssmgen.load(write_package(tmp_path, model), backend="cubin", archive=archive)
        for model in ("tiny", "other", "tiny")
    ]
    assert len({p.__name__ for p in packages}) == 3
    for package in packages:
        package.run(0, X)
    assert driver.libraries == [b"cubin of tiny", b"cubin of other", b"cubin of tiny"]
    assert len({id(p.route_stage) for p in packages}) == 3


def test_threads_load_while_others_use_cuda_tile(tmp_path, driver):
    real = pytest.importorskip("cuda.tile")
    archive, folder = write_archive(tmp_path / "archive", PARAMETERS), write_package(tmp_path)
    wrong = []

    def load():
        for _ in range(10):
            package = ssmgen.load(folder, backend="cubin", archive=archive)
            wrong.extend([1] if type(package.route_stage.stage) is not Kernel else [])

    def use():
        for _ in range(500):
            import cuda.tile as ct

            wrong.extend([2] if ct is not real else [])

    threads = [threading.Thread(target=work) for work in (load, use, load, use)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_import_inside_a_function_meets_the_stand_in_too(tmp_path):
    folder = write_package(tmp_path)
    (folder / "__init__.py").write_text(
        "def late():\n    from cuda import tile\n    import cuda.tile\n    return tile, cuda\n"
    )
    launcher = Launcher(folder, Archive(write_archive(tmp_path / "archive", PARAMETERS)), Driver(FakeCuda()))
    tile = launcher.tile()
    late, cuda = import_package(folder, "late", tile).late()
    assert late is tile
    assert cuda.tile is tile


def test_kernel_only_names_may_be_looked_at_but_not_called(tmp_path):
    tile = Launcher(tmp_path, Archive(write_archive(tmp_path / "a", PARAMETERS)), Driver(FakeCuda())).tile()
    assert tile.cdiv(7, 2) == 4
    assert repr(tile.PaddingMode.ZERO) == "ct.PaddingMode.ZERO"
    assert isinstance(tile.Constant[int], Inert)
    with pytest.raises(LaunchError, match=r"ct\.load\(\) is called outside a kernel"):
        tile.load()


def test_a_package_that_fails_to_import_leaves_nothing(tmp_path, driver):
    folder = write_package(tmp_path, "broken")
    (folder / "sm_90/operator/route/stage.py").write_text("raise ZeroDivisionError")
    archive = write_archive(tmp_path / "archive", PARAMETERS)
    with pytest.raises(ZeroDivisionError):
        ssmgen.load(folder, backend="cubin", archive=archive)
    assert not [name for name in sys.modules if name.startswith("_ssmgen_cubin_broken")]


def test_names_and_specs_find_the_package(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.ssmgen]\ngenerated = "made"\n')
    made = write_package(tmp_path / "made")
    monkeypatch.chdir(tmp_path)
    assert loading.package_directory("tiny") == made
    assert loading.package_directory(tmp_path / "specs" / "tiny.yaml") == made
    with pytest.raises(UsageError, match="no generated package 'absent'") as caught:
        ssmgen.load("absent")
    assert "ssmgen generate absent" in str(caught.value)


@pytest.mark.parametrize("options", [{"backend": "cubin"}, {"archive": "a"}, {"backend": "ptx"}])
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(UsageError):
        ssmgen.load("tiny", **options)


def test_a_missing_module_is_named():
    with pytest.raises(LaunchError, match=r"no_such_module.part is needed") as caught:
        loading.need("no_such_module.part", "pip install it")
    assert "pip install it" in str(caught.value)


def pack(folder: Path, prefix: str) -> Path:
    path = folder.with_suffix(".tar.xz")
    with tarfile.open(path, "w:xz") as tar:
        for file in sorted(folder.iterdir()):
            data = file.read_bytes()
            member = tarfile.TarInfo(prefix + file.name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("prefix", ["", "kernels/", "./"])
def test_a_packed_archive_reads_as_its_folder(tmp_path, prefix):
    folder = write_archive(tmp_path / "archive", PARAMETERS)
    name = "tiny/sm_90/operator/route/stage"
    plain, packed = Archive(folder), Archive(pack(folder, prefix))
    assert plain.targets == packed.targets == ("sm_90",)
    assert plain.kernel(name) == packed.kernel(name)
    assert packed.cubin(packed.kernel(name)) == b"cubin of tiny"


def parameter(index):
    return index["kernels"]["tiny/sm_90/operator/route/stage"]["parameters"][0]


def damage(folder: Path, change) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda i: i.update(schema=2), "schema"),
        (lambda i: i.pop("compiler"), "compiler"),
        (lambda i: i.update(kernels={"a/b": {}}), "kernels.a/b"),
        (lambda i: i["kernels"]["tiny/sm_90/operator/route/stage"].update(cubin="../../etc/passwd"), "<sha256>.cubin"),
        (lambda i: i["kernels"]["tiny/sm_90/operator/route/stage"].pop("parameters"), "parameters"),
        (lambda i: i["kernels"]["tiny/sm_90/operator/route/stage"].pop("source_sha256"), "source_sha256"),
        (lambda i: i["kernels"]["tiny/sm_90/operator/route/stage"].update(symbols={}), "symbol"),
        (lambda i: parameter(i)["promises"]["general"].update(no_alias=True), "no_alias"),
        (lambda i: parameter(i).update(ndim=2), "rank 2"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path, change, says):
    folder = damage(write_archive(tmp_path / "archive", PARAMETERS), change)
    with pytest.raises(LaunchError, match=says) as caught:
        Archive(folder).kernel("tiny/sm_90/operator/route/stage")
    assert str(folder) in str(caught.value)


def test_cubins_of_another_source_are_refused(tmp_path, driver):
    folder, archive = write_package(tmp_path), write_archive(tmp_path / "archive", PARAMETERS)
    source = folder / "sm_90/operator/route/stage.py"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    ssmgen.load(folder, backend="cubin", archive=archive).run(0, X)
    source.write_text(source.read_text().replace("64", "32"))
    with pytest.raises(LaunchError, match=r"compiled from another version of stage\.py") as caught:
        ssmgen.load(folder, backend="cubin", archive=archive).run(0, X)
    assert digest in str(caught.value)
    assert len(driver.launches) == 1


def test_broken_archives_are_refused(tmp_path):
    with pytest.raises(LaunchError, match="no archive of cubins"):
        Archive(tmp_path / "absent")
    (tmp_path / "text.tar.xz").write_text("no archive")
    with pytest.raises(LaunchError, match="no readable"):
        Archive(tmp_path / "text.tar.xz")
    folder = write_archive(tmp_path / "archive", PARAMETERS)
    archive = Archive(folder)
    entry = archive.kernel("tiny/sm_90/operator/route/stage")
    (folder / entry.cubin).write_bytes(b"other")
    with pytest.raises(LaunchError, match="damaged"):
        archive.cubin(entry)
    (folder / entry.cubin).unlink()
    with pytest.raises(LaunchError, match="missing"):
        archive.cubin(entry)
    (folder / "index.json").write_text("{")
    with pytest.raises(LaunchError, match="not JSON"):
        Archive(folder)
