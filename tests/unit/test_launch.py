"""What the launcher hands to cuLaunchKernel, and what it refuses; with a fake driver, no GPU and no torch."""

from __future__ import annotations

import io
import math
import struct
import threading
from dataclasses import replace

import pytest
from fake_cuda import CUresult, FakeCuda, FakeTensor, import_plainly, promise, write_archive, write_package

from ssmgen.errors import LaunchError
from ssmgen.runtime.archive import Archive, Promise
from ssmgen.runtime.driver import MAX_GRID, Driver
from ssmgen.runtime.launch import Launcher
from ssmgen.runtime.standin import import_package

GENERAL_X = promise(4)
ALIGNED_X = GENERAL_X | {"base_divisible_by": 16, "stride_divisible_by": [8, 8, 8, 1]}
RATE = promise(1)
PARAMETERS = [
    {"name": "x", "dtype": "bfloat16", "ndim": 4, "promises": {"aligned": ALIGNED_X, "general": GENERAL_X}},
    {"name": "rate", "dtype": "float32", "ndim": 1, "promises": {"aligned": RATE, "general": RATE}},
    {"name": "has_initial_states", "dtype": "int32"},
    {"name": "dt_max", "dtype": "float32"},
]
SIZES = [8, *[4] * 8, 8, 4, 4, 4, 4]
X = FakeTensor((2, 300, 4, 64), (300 * 512, 512, 64, 1))
RATES = FakeTensor((4,), (1,), "torch.float32", 0x7F00_1000_0000)


class Setup:
    """One loaded package over a fake driver."""

    def __init__(self, tmp_path, **fake):
        self.cuda = FakeCuda(sizes=SIZES, **fake)
        archive = Archive(write_archive(tmp_path / "archive", PARAMETERS))
        launcher = Launcher(write_package(tmp_path), archive, Driver(self.cuda))
        self.package = import_package(launcher.directory, "cubin_tiny", launcher.tile())

    def run(self, *args, stream=77, **options):
        self.package.run(stream, *args, **options)
        return self.cuda.launches[-1]

    def refusal(self, *args, **options):
        with pytest.raises(LaunchError) as caught:
            self.run(*args, **options)
        assert not self.cuda.launches
        return str(caught.value)


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


def ints(*values):
    return [struct.pack("<i", v) for v in values]


def test_arguments_are_laid_out_byte_for_byte(setup):
    launch = setup.run(X, RATES, 1, 0.5)
    assert launch.parameters == [
        struct.pack("<Q", X.pointer),
        *ints(2, 300, 4, 64),
        *ints(153600, 512, 64, 1),
        struct.pack("<Q", RATES.pointer),
        *ints(4, 1),
        *ints(1),
        struct.pack("<f", 0.5),
    ]
    assert (launch.grid, launch.block, launch.shared, launch.stream) == ((3, 2, 1), (1, 1, 1), 0, 77)
    assert setup.cuda.symbols == ["stage_aligned"]
    assert setup.cuda.libraries == [b"cubin of tiny"]


def test_a_second_call_changes_only_what_changed(setup):
    setup.run(X, RATES, 1, 0.5)
    second = setup.run(replace(X, pointer=X.pointer + 32), RATES, 0, math.inf)
    first = setup.cuda.launches[0].parameters
    assert second.parameters[0] == struct.pack("<Q", X.pointer + 32)
    assert second.parameters[1:12] == first[1:12]
    assert second.parameters[12:] == [struct.pack("<i", 0), struct.pack("<f", math.inf)]
    longer = setup.run(replace(X, shape=(2, 17, 4, 64)), RATES, 0, 1.0)
    assert longer.parameters[1:5] == ints(2, 17, 4, 64)
    assert setup.cuda.symbols == ["stage_aligned"] * 2
    assert len(setup.cuda.libraries) == 1, "a cubin is loaded once"


@pytest.mark.parametrize(
    "x",
    [
        replace(X, pointer=X.pointer + 2),
        replace(X, pointer=X.pointer + 8),
        # 24 bytes
        replace(X, shape=(2, 300, 4, 12), strides=(300 * 48, 48, 12, 1)),
        replace(X, strides=(300 * 513, 513, 64, 1)),
    ],
)
def test_what_is_not_aligned_takes_the_general_variant(setup, x):
    setup.run(X, RATES, 1, 0.5)
    launch = setup.run(x, RATES, 1, 0.5)
    assert setup.cuda.symbols == ["stage_aligned", "stage_general"]
    assert launch.function == 102
    assert launch.parameters[0] == struct.pack("<Q", x.pointer)
    assert setup.run(X, RATES, 1, 0.5).function == 101


def test_a_last_stride_of_2_is_refused_by_name(setup):
    text = setup.refusal(replace(X, strides=(300 * 1024, 1024, 128, 2)), RATES, 1, 0.5)
    assert text == (
        "argument x of tiny/sm_90/operator/route/stage breaks what the general variant was compiled for\n"
        "  found:    strides (307200, 1024, 128, 2)\n"
        "  expected: 1 on axis 3\n"
        "  next:     pass x.clone(memory_format=torch.contiguous_format)"
    )


def test_strides_of_single_elements_are_settled(setup):
    launch = setup.run(replace(X, shape=(1, 300, 1, 64), strides=(7, 512, 13, 1)), RATES, 1, 0.5)
    assert setup.cuda.symbols == ["stage_aligned"]
    assert launch.parameters[5:9] == ints(300 * 512, 512, 64, 1)
    lone = replace(X, shape=(2, 300, 4, 1), strides=(300 * 512, 512, 64, 64))
    assert setup.run(lone, RATES, 1, 0.5).parameters[5:9] == ints(300 * 512, 512, 64, 1)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (replace(X, shape=(2, 2**31, 4, 64)), "2147483648"),
        (replace(X, strides=(2**31, 512, 64, 1)), "2147483648"),
    ],
)
def test_what_int32_cannot_hold_is_refused(setup, x, found):
    text = setup.refusal(x, RATES, 1, 0.5)
    assert "argument x of tiny/sm_90/operator/route/stage is too large" in text
    assert found in text
    assert "2147483647" in text


def test_a_slice_of_one_batch_of_something_huge_is_taken(setup):
    # offsets are 64 bits wide: only lengths and strides have to fit
    setup.run(replace(X, shape=(9, 300, 4, 64), strides=(2**28, 512, 64, 1)), RATES, 1, 0.5)
    launch = setup.run(replace(X, shape=(1, 300, 4, 64), strides=(2**40, 7_000_000, 64, 1)), RATES, 1, 0.5)
    assert launch.parameters[5:9] == ints(300 * 7_000_000, 7_000_000, 64, 1)
    launch = setup.run(replace(X, shape=(1, 300, 4, 64), strides=(2**40, 7_180_000, 64, 1)), RATES, 1, 0.5)
    assert launch.parameters[5:7] == ints(2**31 - 8, 7_180_000)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((X, RATES, 1), "wrong number of arguments"),
        ((X, None, 1, 0.5), "argument rate"),
        ((X, RATES, 1.0, 0.5), "argument has_initial_states"),
        ((X, RATES, 2**31, 0.5), "argument has_initial_states"),
        ((X, RATES, 1, None), "argument dt_max"),
        ((replace(X, dtype="torch.float16"), RATES, 1, 0.5), "found:    float16 of rank 4"),
        ((replace(X, shape=(2, 300, 64), strides=(300 * 64, 64, 1)), RATES, 1, 0.5), "of rank 3"),
        ((X, replace(RATES, ordinal=1), 1, 0.5), "found:    cuda:1"),
        ((replace(X, ordinal=-1), RATES, 1, 0.5), "found:    cpu"),
    ],
)
def test_wrong_arguments_are_refused_by_name(setup, args, says):
    assert says in setup.refusal(*args)


def test_scalars_are_cast_as_c_does(setup):
    assert setup.run(X, RATES, True, 1e308).parameters[12:] == [struct.pack("<i", 1), struct.pack("<f", math.inf)]
    assert setup.run(X, RATES, -(2**31), 3).parameters[12:] == [struct.pack("<i", -(2**31)), struct.pack("<f", 3.0)]


@pytest.mark.parametrize("grid", [(0,), (1, 0), (MAX_GRID + 1,), (1, 1, 1, 1)])
def test_a_grid_that_cannot_be_is_refused(setup, grid):
    assert "bad grid" in setup.refusal(X, RATES, 1, 0.5, grid=grid)


def test_another_gpu_is_refused_with_the_archives_targets(tmp_path):
    text = Setup(tmp_path, capability=(10, 0)).refusal(X, RATES, 1, 0.5)
    assert "found:    sm_100" in text
    assert text.count("sm_90") == 2


def test_a_kernel_that_the_archive_lacks_is_named(tmp_path):
    launcher = Launcher(
        write_package(tmp_path, "other"), Archive(write_archive(tmp_path / "a", PARAMETERS)), Driver(FakeCuda())
    )
    package = import_package(launcher.directory, "cubin_other", launcher.tile())
    with pytest.raises(LaunchError, match="no kernel other/sm_90/operator/route/stage") as caught:
        package.run(0, X, RATES, 1, 0.5)
    assert "kernels of tiny" in str(caught.value)


def test_driver_failures_carry_cudas_name(tmp_path):
    setup = Setup(tmp_path, load_result=CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU)
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in setup.refusal(X, RATES, 1, 0.5)
    assert setup.cuda.mode == 0
    assert setup.cuda.current == [1000]
    setup = Setup(tmp_path, launch_result=CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(LaunchError, match=r"cuLaunchKernel with grid \(3, 2, 1\)"):
        setup.run(X, RATES, 1, 0.5)


def test_the_default_stream_of_another_device_runs_in_its_context(setup):
    there = [replace(X, ordinal=1), replace(RATES, ordinal=1), 1, 0.5]
    assert setup.run(X, RATES, 1, 0.5, stream=0).context == 1000
    assert setup.run(*there, stream=0).context == 1001
    assert setup.run(*there, stream=77).context == 1000, "a stream brings its own context"
    assert setup.cuda.current == [1000]
    assert len(setup.cuda.libraries) == 1, "a library serves every device"


class FakeStream:
    def __init__(self, handle, ordinal):
        self.cuda_stream, self.device_index = handle, ordinal


def test_torch_streams_are_taken_and_those_of_another_device_refused(setup):
    assert "wrong stream" in setup.refusal(X, RATES, 1, 0.5, stream=FakeStream(99, 1))
    assert "wrong stream" in setup.refusal(X, RATES, 1, 0.5, stream=None)
    assert setup.run(X, RATES, 1, 0.5, stream=FakeStream(99, 0)).stream == 99


def test_threads_do_not_share_arguments(setup):
    def work(index):
        for _ in range(200):
            setup.package.run(index, replace(X, pointer=X.pointer + 16 * index), RATES, index, 0.5)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(setup.cuda.launches) == 800
    for launch in setup.cuda.launches:
        assert launch.parameters[0] == struct.pack("<Q", X.pointer + 16 * launch.stream)
        assert launch.parameters[12] == struct.pack("<i", launch.stream)


def parameter_sizes(cubin):
    """Sizes of the kernel parameters by ordinal, in .nv.info, attribute 0x17 or, for many, 0x45."""
    offset, width, count = *struct.unpack_from("<Q", cubin, 0x28), *struct.unpack_from("<HH", cubin, 0x3A)
    names = struct.unpack_from("<Q", cubin, offset + struct.unpack_from("<H", cubin, 0x3E)[0] * width + 24)[0]
    sizes = {}
    for section in range(offset, offset + width * count, width):
        name, at, size = (struct.unpack_from(f, cubin, section + o)[0] for f, o in (("<I", 0), ("<Q", 24), ("<Q", 32)))
        if not cubin.startswith(b".nv.info.", names + name):
            continue
        end = at + size
        while at < end:
            form, attribute, length = struct.unpack_from("<BBH", cubin, at)
            if form == 4 and attribute in (0x17, 0x45):
                ordinal, _, word = struct.unpack_from("<4xHHI", cubin, at + 4)
                sizes[ordinal] = word >> 18 if attribute == 0x17 else word & 0xFFFF
            at += 4 + (length if form == 4 else 0)
    return [sizes[ordinal] for ordinal in range(len(sizes))]


def test_the_compiler_expects_these_arguments(tmp_path):
    ct, compilation = pytest.importorskip("cuda.tile"), pytest.importorskip("cuda.tile.compilation")
    kernel = import_plainly(write_package(tmp_path)).route_stage.stage
    common = {"index_dtype": ct.int32, "stride_lower_bound_incl": 0, "alias_groups": (), "may_alias_internally": False}
    x, rate = (compilation.ArrayConstraint(d, n, **common) for d, n in ((ct.bfloat16, 4), (ct.float32, 1)))
    scalars = [compilation.ScalarConstraint(d) for d in (ct.int32, ct.float32)]
    convention = compilation.CallingConvention.cutile_python_v2()
    signature = compilation.KernelSignature([x, rate, *scalars], convention, "stage")
    file = io.BytesIO()
    try:
        compilation.export_kernel(kernel, [signature], file, gpu_code="sm_90", output_format="cubin")
    except FileNotFoundError as e:
        pytest.skip(str(e))
    assert parameter_sizes(file.getvalue()) == SIZES


def test_settled_strides_keep_every_promise():
    aligned = Promise(16, (8, 8, 8, 1), (None, None, None, 1), (1,) * 4, (None,) * 4)
    shape = (1, 1, 3, 80)
    strides = aligned.settle(shape, (5, 7, 80, 1))
    assert aligned.why_not(0, shape, strides) is None
    assert strides == (240, 240, 80, 1)


@pytest.mark.parametrize(
    ("address", "shape", "strides", "found", "expected"),
    [
        (8, (2, 16, 64), (1024, 64, 1), "data at 0x8", "16 bytes"),
        (0, (2, 17, 64), (1088, 64, 1), "shape (2, 17, 64)", "on axis 1 a multiple of 16"),
        (0, (2, 16, 32), (512, 32, 1), "shape (2, 16, 32)", "64 on axis 2"),
        (0, (2, 16, 64), (1024, 64, 2), "strides (1024, 64, 2)", "1 on axis 2"),
        (0, (2, 16, 64), (1024, -64, 1), "strides (1024, -64, 1)", "not negative"),
    ],
)
def test_every_kind_of_promise_is_checked(address, shape, strides, found, expected):
    kept = Promise(16, (8, 8, 1), (None, None, 1), (1, 16, 1), (None, None, 64))
    assert kept.why_not(0, (2, 16, 64), (1024, 64, 1)) is None
    broken = kept.why_not(address, shape, strides)
    assert broken is not None
    assert broken[0] == found
    assert expected in broken[1]


def test_the_promises_that_are_compiled_for_read_back(tmp_path):
    signatures = pytest.importorskip("ssmgen.signatures")
    from ssmgen.ops.mamba_chunk_scan_combined import Shape
    from ssmgen.stages.base import Array, Scalar

    shape = Shape(heads=8, groups=2, head_dim=80, state=128)
    x = Array("x", "bfloat16", ("B", "T", "H", "P"), "caller")
    made = [signatures.as_json(p, shape) for p in (x, Scalar("flag", "int32"))]
    entry = Archive(write_archive(tmp_path, made)).kernel("tiny/sm_90/operator/route/stage")
    for variant in signatures.VARIANTS:
        theirs, ours = signatures.promises(x, variant, shape), entry.parameters[0].promises[variant]
        assert {name: getattr(theirs, name) for name in vars(ours)} == vars(ours)
        assert theirs.ndim == entry.parameters[0].ndim
    assert (entry.parameters[1].name, entry.parameters[1].dtype) == ("flag", "int32")
    assert entry.variants == signatures.VARIANTS
