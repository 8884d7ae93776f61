"""Replayed calls launch what unreplayed ones do, or are not replayed; with a fake driver and tensors on the CPU."""

from __future__ import annotations

import gc
import hashlib
import itertools
import math
import shutil
import struct
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from fake_cuda import CUresult, FakeCuda
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ssmgen import generate, lock, pack, signatures, spec  # noqa: E402
from ssmgen.errors import LaunchError  # noqa: E402
from ssmgen.runtime import driver, launch, replay, serving  # noqa: E402
from ssmgen.runtime.archive import Archive, ArrayParameter  # noqa: E402
from ssmgen.runtime.chain import Chains  # noqa: E402
from ssmgen.runtime.driver import Driver  # noqa: E402
from ssmgen.runtime.recording import Program  # noqa: E402

SPEC = """\
schema: 1
model: {name: tiny_9b, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 8, groups: 2, head_dim: 16, state: 16}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime, packed: true}
    routes:
      short: {when: "B*T <= 256", plan: segmented}
      long: {when: "B*T > 256", plan: three_stage}
      packed: {when: "B >= 1", plan: packed}
targets: [sm_90]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The package that the spec makes, and an archive of cubins that the fake driver takes."""
    root = tmp_path_factory.mktemp("replay")
    (root / "tiny_9b.yaml").write_text(SPEC)
    loaded = spec.load(root / "tiny_9b.yaml")
    known = lock.derive(loaded, loaded.targets)
    made = generate.kernels(loaded, known, loaded.targets)
    for name, text in generate.around(loaded, known, made).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shape = loaded.operators.mamba_chunk_scan_combined.shape
    entries = [
        pack.Entry(
            kernel.id.format(),
            f"cubin of {kernel.id.format()}".encode(),
            {variant: f"{kernel.id.route}_{kernel.symbol}_{variant}" for variant in signatures.VARIANTS},
            tuple(signatures.as_json(p, shape) for p in kernel.parameters),
            hashlib.sha256(kernel.text.encode()).hexdigest(),
        )
        for kernel in made
    ]
    pack.write_archive(root / "cubins", "no compiler", entries)
    return root


class Cuda(FakeCuda):
    """A driver that knows, as the cubins would, what each function takes."""

    def read(self, function, table):
        self.sizes = self.of_symbol[self.symbols[function - 101].removesuffix("_aligned").removesuffix("_general")]
        return super().read(function, table)


@dataclass
class Made:
    """One launch, with symbols for functions and the arguments by name."""

    symbol: str
    grid: tuple
    stream: int
    scalars: dict
    geometry: dict
    pointers: dict


class Setup:
    """The package, served from the archive."""

    def __init__(self, folder: Path, monkeypatch, **fake):
        # what a CPU tensor cannot give
        monkeypatch.setattr(launch.Kernel, "_ordinal", lambda self, pairs: 0)
        monkeypatch.setattr(replay, "current_device", lambda: self.device)
        monkeypatch.setattr(replay, "_is_capturing", lambda: self.capturing)
        self.device, self.capturing = 0, False
        self.stream = 77
        self.cuda = Cuda(**fake)
        archive = Archive(folder / "cubins")
        self.parameters = {}
        self.cuda.of_symbol = {}
        for name in archive._raw:
            entry = archive.kernel(name)
            symbol = entry.symbols["aligned"].removesuffix("_aligned")
            self.parameters[symbol] = entry.parameters
            self.cuda.of_symbol[symbol] = [n for p in entry.parameters for n in sizes(p)]
        self.package = serving.open_package(folder / "tiny_9b", "tiny", archive, Driver(self.cuda))
        self.replay = self.package.forward.__self__
        self.replay._stream = lambda ordinal: self.stream
        vars(self.package._forward).update(
            device=lambda where: ("sm_90", 7),
            current_stream=lambda where: self.stream,
            check_decay=lambda rates: None,
            check_sequences=lambda *given: None,
        )

    def launches(self, call) -> list[Made]:
        """What a call launches."""
        begun = len(self.cuda.launches)
        self.answer = call()
        return [self.made(each) for each in self.cuda.launches[begun:]]

    def made(self, each) -> Made:
        symbol = self.cuda.symbols[each.function - 101]
        left = iter(each.parameters)
        scalars, geometry, pointers = {}, {}, {}
        for parameter in self.parameters[symbol.removesuffix("_aligned").removesuffix("_general")]:
            if isinstance(parameter, ArrayParameter):
                (pointers[parameter.name],) = struct.unpack("<Q", next(left))
                geometry[parameter.name] = [next(left) for _ in range(2 * parameter.ndim)]
            else:
                scalars[parameter.name] = next(left)
        return Made(symbol, each.grid, each.stream, scalars, geometry, pointers)

    def call(self, arguments, **more):
        return self.package.mamba_chunk_scan_combined(**arguments, **more)

    def slowly(self, arguments, **more):
        """The call, not replayed."""
        own = self.package.forward
        vars(self.package)["forward"] = self.replay._forward
        try:
            return self.launches(lambda: self.call(arguments, **more))
        finally:
            vars(self.package)["forward"] = own

    def programs(self):
        return list(self.replay._threads.programs.values())

    def replayed(self, arguments, **more) -> bool:
        """Whether a second call with such arguments is repeated."""
        self.call(arguments, **more)
        seen = []
        own = self.replay._forward
        self.replay._forward = lambda *given: seen.append(1) or own(*given)
        try:
            self.call(arguments, **more)
        finally:
            self.replay._forward = own
        return not seen


def sizes(parameter):
    return [8, *[4] * (2 * parameter.ndim)] if isinstance(parameter, ArrayParameter) else [4]


@pytest.fixture
def setup(folder, monkeypatch):
    with torch.no_grad():
        yield Setup(folder, monkeypatch)


def draw(batch=1, tokens=100, *, offset=0, pad=0, states=False, dtype=torch.float32, swap=False):  # noqa: PLR0913
    """Arguments: `offset` elements off alignment, rows `pad` apart, vectors of `dtype`."""

    def rows(*shape, dtype=torch.bfloat16):
        width = shape[-1] * shape[-2] if len(shape) == 4 else shape[-1]
        flat = torch.zeros(batch * tokens * (width + pad) + offset + 8, dtype=dtype)[offset:]
        return flat.as_strided(
            shape, (tokens * (width + pad), width + pad, *((shape[-1], 1) if len(shape) == 4 else (1,)))
        )

    x = rows(batch, tokens, 8, 16)
    if swap:
        x = torch.zeros(batch, tokens, 16, 8, dtype=torch.bfloat16).transpose(2, 3)
    result = dict(
        x=x,
        dt=rows(batch, tokens, 8, dtype=torch.float32),
        A=-torch.ones(8, dtype=dtype),
        B=rows(batch, tokens, 2, 16),
        C=rows(batch, tokens, 2, 16),
        D=torch.ones(8, dtype=dtype),
        dt_bias=torch.ones(8, dtype=dtype),
        chunk_size=64,
        dt_softplus=True,
    )
    return result | (dict(initial_states=torch.zeros(batch, 8, 16, 16)) if states else {})


def workspaces(launches, arguments):
    """What every pointer of the launches is: the name of an input, or the order in which it was first met."""
    names = {t.data_ptr(): n for n, t in arguments.items() if isinstance(t, torch.Tensor) and t.numel()}
    met: dict[int, str] = {}
    return [
        {n: names.get(p) or met.setdefault(p, f"made {len(met)}") for n, p in each.pointers.items()}
        for each in launches
    ]


def same(launches, expected, arguments):
    """Equal but for where results and workspaces lie."""
    assert [(m.symbol, m.grid, m.stream, m.scalars, m.geometry) for m in launches] == [
        (m.symbol, m.grid, m.stream, m.scalars, m.geometry) for m in expected
    ]
    assert workspaces(launches, arguments) == workspaces(expected, arguments)


drawn = st.fixed_dictionaries({
    "batch": st.sampled_from([1, 2]),
    "tokens": st.sampled_from([1, 15, 64, 65, 200, 300]),
    "offset": st.sampled_from([0, 1, 8]),
    "pad": st.sampled_from([0, 1, 8]),
    "states": st.booleans(),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
    "swap": st.booleans(),
})  # fmt: skip


def test_a_replay_launches_what_the_package_launches(setup):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(how=drawn, limit=st.sampled_from([(0.0, float("inf")), (0.0, 0.5), (-0.0, 1e39), (0.25, 0.5)]))
    def run(how, limit):
        more = dict(dt_limit=limit, return_final_states=True)
        setup.call(draw(**how), **more)
        # other tensors than those that were recorded
        arguments = draw(**how)
        # a copy lies elsewhere each time
        copied = ["A", "D", "dt_bias"] * (how["dtype"] is not torch.float32) + ["x"] * how["swap"]
        in_place = {name: value for name, value in arguments.items() if name not in copied}
        assert setup.replayed(arguments, **more)
        launches = setup.launches(lambda: setup.call(arguments, **more))
        out, states = setup.answer
        expected = setup.slowly(arguments, **more)
        same(launches, expected, in_place)
        named = [p for m in launches for p in m.pointers.items()]
        assert ("out", out.data_ptr()) in named
        assert ("final_states", states.data_ptr()) in named
        assert (out.shape, out.dtype) == (setup.answer[0].shape, setup.answer[0].dtype)
        assert (states.shape, states.dtype) == (setup.answer[1].shape, setup.answer[1].dtype)

    run()
    assert not setup.replay.why_not()


def test_workspaces_lie_apart_in_one_block(setup):
    arguments = draw(2, 300, states=True)
    setup.call(arguments)
    launches = setup.launches(lambda: setup.call(arguments, return_final_states=True))
    spans = set()
    for each in launches:
        for parameter in setup.parameters[each.symbol.removesuffix("_aligned")]:
            if isinstance(parameter, ArrayParameter):
                lengths = [struct.unpack("<i", v)[0] for v in each.geometry[parameter.name][: parameter.ndim]]
                item = torch.empty(0, dtype=getattr(torch, parameter.dtype)).element_size()
                start = each.pointers[parameter.name]
                spans.add((start, start + item * math.prod(lengths)))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(spans)))
    (program,) = [p for p in setup.programs() if isinstance(p, Program)]
    assert all(offset % 256 == 0 for offset in program.offsets)


def test_one_tensor_passed_twice_is_two_arguments(setup):
    arguments = draw()
    # recorded with one tensor in two places, repeated with two, and the other way round
    setup.call(arguments | {"dt_bias": arguments["D"]})
    for given_ in (arguments, arguments | {"dt_bias": arguments["D"]}):
        launches = setup.launches(lambda given_=given_: setup.call(given_))
        expected = setup.slowly(given_)
        assert [m.pointers.get("dt_bias") for m in launches] == [m.pointers.get("dt_bias") for m in expected]
        assert [m.pointers.get("D") for m in launches] == [m.pointers.get("D") for m in expected]
    assert len(setup.programs()) == 1


def test_every_difference_that_a_launch_could_show_is_another_key(setup):
    calls = [
        (draw(), {}),
        (draw(tokens=101), {}),
        (draw(2), {}),
        (draw(offset=1), {}),
        (draw(pad=1), {}),
        (draw(states=True), {}),
        (draw(dtype=torch.bfloat16), {}),
        (draw(swap=True), {}),
        (draw(), {"dt_limit": (0.0, 1.0)}),
        (draw(), {"dt_limit": (-0.0, 1.0)}),
        (draw(), {"seq_idx": torch.zeros(1, 100, dtype=torch.int32)}),
        (draw(), {"cu_seqlens": torch.tensor([0, 100], dtype=torch.int32)}),
        (draw(), {"cu_seqlens": torch.tensor([0, 50, 100], dtype=torch.int32)}),
        (draw() | {"A": torch.nn.Parameter(-torch.ones(8), requires_grad=False)}, {}),
    ]
    for count, (arguments, more) in enumerate(calls, start=1):
        setup.call(arguments, **more)
        assert len(setup.programs()) == count
        assert setup.replayed(arguments, **more)
        assert len(setup.programs()) == count
    # what makes no difference
    setup.call(draw(), return_final_states=True)
    setup.call(draw() | {"chunk_size": 32})
    assert len(setup.programs()) == len(calls)


def test_what_cannot_be_repeated_runs_as_it_is(setup):
    nothing = draw(tokens=0)
    assert not setup.replayed(nothing)
    assert "zero_" in setup.replay.why_not()[0]
    # a call without validate=True is repeated, and is not taken for one with it
    assert setup.replayed(draw())
    checked = []
    vars(setup.package._forward)["check_decay"] = lambda rates: checked.append(bool((rates <= 0).all()))
    setup.call(draw())
    assert not checked
    assert not setup.replayed(draw(), validate=True)
    assert checked == [True, True]
    assert len(setup.replay.why_not()) == 2


def test_refusals_are_the_packages_own_every_time(setup):
    for _ in range(3):
        with pytest.raises(ValueError, match=r"D: found a \(7,\) tensor"):
            setup.call(draw() | {"D": torch.ones(7)})
        with pytest.raises(ValueError, match="x: found None"):
            setup.call(draw() | {"x": None})
        with pytest.raises(ValueError, match="D: found None"):
            setup.call(draw() | {"D": None})
        with pytest.raises(ValueError, match="B: found"):
            setup.call(draw() | {"B": draw()["B"].to_sparse()})
    assert not setup.programs()
    with torch.enable_grad():
        learnt = draw() | {"A": torch.nn.Parameter(-torch.ones(8))}
        with pytest.raises(ValueError, match="A: requires grad"):
            setup.call(learnt)
    # the key is the same: what is recorded without autograd is not repeated with it
    setup.call(learnt)
    with torch.enable_grad(), pytest.raises(ValueError, match="A: requires grad"):
        setup.call(learnt)
    assert setup.replayed(learnt)
    with torch.enable_grad(), pytest.raises(ValueError, match="A: requires grad"):
        setup.call(learnt)


def test_tangents_are_refused_after_a_repeated_call_too(setup):
    arguments = draw()
    assert setup.replayed(arguments)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(arguments["dt"], torch.ones_like(arguments["dt"]))
        with pytest.raises(ValueError, match="dt: has a tangent"):
            setup.call(arguments | {"dt": dual})


def test_a_broken_promise_is_named_every_time(setup):
    setup.call(draw())
    unaligned = torch.frombuffer(memoryview(bytearray(33))[1:], dtype=torch.float32)
    for _ in range(2):
        with pytest.raises(LaunchError, match="argument a of tiny_9b/sm_90/mamba_chunk_scan_combined/short/cumsum"):
            setup.call(draw() | {"A": unaligned})
    assert len(setup.programs()) == 1


def test_results_and_workspaces_are_filled_in_deterministic_mode(setup):
    arguments = draw()
    setup.call(arguments)
    torch.use_deterministic_algorithms(True)
    try:
        out, states = setup.call(arguments, return_final_states=True)
        (program,) = setup.programs()
        *_, block = program.allocate()
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.isnan().all()
    assert states.isnan().all()
    assert block[: block.numel() // 4 * 4].view(torch.float32).isnan().all()


def test_inference_tensors_and_modes(setup):
    arguments = draw(dtype=torch.bfloat16)
    with torch.inference_mode():
        inferred = draw(dtype=torch.bfloat16)
        assert setup.replayed(inferred)
        assert setup.call(inferred).is_inference()
    assert setup.replayed(arguments)
    assert not setup.call(arguments).is_inference()
    assert len(setup.programs()) == 1


def test_a_mode_that_watches_operators_sees_the_operator(setup):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Seen.names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    arguments = draw()
    setup.call(arguments)
    with Seen():
        setup.call(arguments)
    assert Seen.names == ["mamba_chunk_scan_combined.default"]


def test_torch_functions_that_are_switched_off_are_not_taken_for_absent(setup):
    with torch._C.DisableTorchFunction():
        setup.call(draw())
    assert isinstance(setup.programs()[0], str)


def test_the_stream_is_that_of_the_moment(setup):
    arguments = draw()
    setup.call(arguments)
    setup.stream = 88
    assert {m.stream for m in setup.launches(lambda: setup.call(arguments))} == {88}


def test_another_stream_than_the_current_one_is_not_repeated(setup):
    vars(setup.package._forward)["current_stream"] = lambda where: 99
    assert not setup.replayed(draw())
    assert "another stream" in setup.replay.why_not()[0]


def test_the_default_stream_runs_in_the_devices_context(setup):
    arguments = draw()
    setup.stream = 0
    setup.call(arguments)
    setup.cuda.current = [5]
    begun = len(setup.cuda.launches)
    setup.call(arguments)
    assert {each.context for each in setup.cuda.launches[begun:]} == {1000}
    assert setup.cuda.current == [5]


def test_a_failing_launch_is_named(setup):
    arguments = draw()
    setup.call(arguments)
    failed = CUresult.CUDA_ERROR_INVALID_VALUE
    for step, call in (("set", "cuGraphExecKernelNodeSetParams"), ("launch", "cuGraphLaunch")):
        setup.cuda.graph_results[step] = failed
        for _ in range(2):
            with pytest.raises(LaunchError, match=rf"tiny_9b/sm_90/.*/cumsum, tiny_9b/.*/output: {call} failed"):
                setup.call(arguments)
        setup.cuda.graph_results.clear()
        assert setup.replayed(arguments)
    setup.capturing = True
    setup.cuda.launch_result = failed
    with pytest.raises(LaunchError, match=r"tiny_9b/sm_90/.*/cumsum: cuLaunchKernel with grid .* failed"):
        setup.call(arguments)


def test_a_replayed_call_is_one_graph_of_its_stream_with_the_same_launches(setup):
    calls = [draw(), draw(2, 300, states=True), draw(tokens=30)]
    expected = [setup.slowly(each) for each in calls]
    seen = set()
    for stream in (77, 88):
        setup.stream = stream
        for arguments, launches in zip(calls, expected, strict=True):
            setup.call(arguments)
            begun = len(setup.cuda.launches)
            again = setup.launches(lambda arguments=arguments: setup.call(arguments))
            same(again, [replace(each, stream=stream) for each in launches], arguments)
            own = {(each.graph, each.context) for each in setup.cuda.launches[begun:]}
            assert len(own) == 1
            seen |= {(*own.pop(), stream, len(launches))}
    # a graph for a stream and a number of kernels, in the context of the device
    assert len({graph for graph, *_ in seen}) == len(seen) == 2 * len({len(launches) for launches in expected})
    assert {context for _, context, *_ in seen} == {1000}


def test_what_waits_keeps_the_arguments_it_was_launched_with(setup):
    first, second = draw(), draw()
    setup.call(first)
    begun = len(setup.cuda.launches)
    setup.call(first)
    count = len(setup.cuda.launches) - begun
    setup.call(second)
    made = [setup.made(each) for each in setup.cuda.launches[begun:]]
    assert [m.pointers["x"] for m in made if "x" in m.pointers and "out" in m.pointers] == [
        first["x"].data_ptr(),
        second["x"].data_ptr(),
    ]
    assert len(made) == 2 * count


def one_by_one(setup, arguments):
    """Whether a replayed call makes its launches one by one, as the package does."""
    assert setup.replayed(arguments)
    begun = len(setup.cuda.launches)
    launches = setup.launches(lambda: setup.call(arguments))
    same(launches, setup.slowly(arguments), arguments)
    kinds = {each.graph is None for each in setup.cuda.launches[begun : begun + len(launches)]}
    assert len(kinds) == 1
    return kinds.pop()


def test_what_takes_no_graph_is_launched_one_by_one(setup, monkeypatch):
    arguments = draw()
    assert not one_by_one(setup, arguments)
    # a capture, which would not take it
    setup.capturing = True
    assert one_by_one(setup, arguments)
    setup.capturing = False
    assert not one_by_one(setup, arguments)
    # what is asked about capturing is asked of the current device
    setup.device = 1
    assert one_by_one(setup, arguments)
    setup.device = 0
    # a stream of a green context
    setup.stream, setup.cuda.contexts[99] = 99, 5
    assert one_by_one(setup, arguments)
    # the default stream of another context
    setup.stream, setup.cuda.current = 0, [5]
    assert one_by_one(setup, arguments)
    setup.cuda.current = [1000]
    assert not one_by_one(setup, arguments)
    monkeypatch.setattr(driver, "_IS_BLOCKING", True)
    assert one_by_one(setup, arguments)


@pytest.mark.parametrize("step", ["create", "instantiate"])
def test_a_driver_that_makes_no_graph_launches_one_by_one(setup, step):
    setup.cuda.graph_results[step] = CUresult.CUDA_ERROR_INVALID_VALUE
    assert one_by_one(setup, draw())


def test_graphs_are_bounded_and_freed(setup, monkeypatch):
    monkeypatch.setattr(Chains, "KEPT", 3)
    arguments = draw()
    setup.call(arguments)
    for stream in range(100, 112):
        setup.stream = stream
        setup.call(arguments)
    assert len(setup.cuda.graphs) == 12
    assert len(setup.cuda.destroyed) >= 9
    assert len(set(setup.cuda.destroyed)) == len(setup.cuda.destroyed)


def test_numbers_are_told_apart_however_they_are_passed(setup):
    arguments = draw()
    for limit in ((0.0, 0.5), (float("0.0"), float("0.5")), (-0.0, 0.5), (0.0, float("0.25"))):
        setup.call(arguments, dt_limit=limit)
        for _ in range(2):
            launches = setup.launches(lambda limit=limit: setup.call(arguments, dt_limit=limit))
            assert struct.pack("<2f", *limit) == b"".join(launches[0].scalars[n] for n in ("dt_min", "dt_max"))
    assert len(setup.programs()) == 3


def test_negated_views_are_never_repeated(setup):
    arguments = draw()
    assert setup.replayed(arguments)
    negated = arguments | {"x": torch._neg_view(arguments["x"])}
    seen = []
    own, setup.replay._forward = setup.replay._forward, lambda *given: seen.append(1) or (torch.ones(1), None)
    try:
        setup.call(negated)
        setup.call(negated)
    finally:
        setup.replay._forward = own
    assert len(seen) == 2


def test_without_dynamos_guards_the_key_decides(setup, monkeypatch):
    monkeypatch.setattr(replay, "TensorGuards", None)
    test_every_difference_that_a_launch_could_show_is_another_key(setup)


@pytest.mark.parametrize("tokens", [100, 101])
def test_a_call_within_a_call_does_not_spoil_it(setup, tokens):
    # the same program, and another one on the same stream
    outer, inner = draw(), draw(tokens=tokens)
    setup.call(outer)
    setup.call(inner)
    assert setup.replayed(outer)
    launch_graph = setup.cuda.cuGraphLaunch
    nested = []

    def launch_(executable, stream):
        # as a finalizer that runs between setting and launching
        if not nested:
            nested.append(1)
            setup.call(inner)
        return launch_graph(executable, stream)

    setup.cuda.cuGraphLaunch = launch_
    launches = setup.launches(lambda: setup.call(outer))
    assert nested
    assert launches[0].pointers["dt"] == inner["dt"].data_ptr()
    assert [m.pointers["dt"] for m in launches if "dt" in m.pointers][-1] == outer["dt"].data_ptr()


def test_threads_do_not_share_programs(setup):
    wrong = []

    def work():
        with torch.no_grad():
            for turn in range(30):
                arguments = draw(tokens=50 + turn % 3)
                # kept, so that no address is used twice
                calls.append((arguments, setup.call(arguments)))
        wrong.extend(setup.replay.why_not())

    calls: list = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    pairs = {(arguments["x"].data_ptr(), out.data_ptr()) for arguments, out in calls}
    made = [setup.made(each) for each in setup.cuda.launches]
    launched = {(m.pointers["x"], m.pointers["out"]) for m in made if "out" in m.pointers}
    assert launched == pairs


def test_programs_are_bounded_and_keep_no_tensor(setup, monkeypatch):
    monkeypatch.setattr(replay, "KEPT", 4)
    for tokens in range(1, 12):
        setup.call(draw(tokens=tokens))
    assert len(setup.programs()) == 4
    assert setup.replayed(draw(tokens=11))
    arguments = draw(dtype=torch.bfloat16)
    kept = [weakref.ref(value) for value in arguments.values() if isinstance(value, torch.Tensor)]
    kept.append(weakref.ref(setup.call(arguments)))
    del arguments
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]


@pytest.mark.parametrize("module", ["_forward.py", "_arguments.py", "_values.py"])
def test_a_forward_edited_by_hand_is_not_replayed(setup, folder, tmp_path, module):
    shutil.copytree(folder / "tiny_9b", tmp_path / "tiny_9b")
    file = tmp_path / "tiny_9b" / module
    file.write_text(file.read_text() + "\n# mine\n")
    package = serving.open_package(tmp_path / "tiny_9b", "tiny", Archive(folder / "cubins"), Driver(setup.cuda))
    assert not hasattr(package.forward, "__self__")


def test_the_operator_of_torch_library_is_replayed_too(setup):
    arguments = draw()
    given_ = [arguments.get(n) for n in ("x", "dt", "A", "B", "C", "D", "dt_bias", "initial_states")]
    operator = setup.package._operator
    given_ += [None, None, 0.0, float("inf"), False]
    setup.launches(lambda: operator(*given_))
    launches = setup.launches(lambda: operator(*given_))
    assert isinstance(setup.programs()[0], Program)
    same(launches, setup.slowly(arguments), arguments)
