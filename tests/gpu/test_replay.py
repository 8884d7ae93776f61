"""Calls that are replayed on a real GPU: the bits of those that are not, on any tensors, streams and graphs."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.test_forward import draw  # noqa: E402


@contextmanager
def unreplayed(kernels):
    """The package's own `forward` in its place."""
    own = kernels.forward
    vars(kernels)["forward"] = own.__self__._forward
    try:
        yield
    finally:
        vars(kernels)["forward"] = own


def run(kernels, arguments, **more):
    with torch.no_grad():
        return kernels.mamba_chunk_scan_combined(**arguments, chunk_size=64, return_final_states=True, **more)


def agree(kernels, arguments, **more):
    got = run(kernels, arguments, **more)
    with unreplayed(kernels):
        expected = run(kernels, arguments, **more)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def drawn(kernels, tokens, states, seed):
    arguments = draw(kernels, 2, tokens, states=states)
    torch.manual_seed(seed)
    return arguments | {"x": torch.randn_like(arguments["x"]), "dt": arguments["dt"] - torch.rand_like(arguments["dt"])}


@pytest.mark.parametrize("tokens", [1, 64, 333, 2000])
@pytest.mark.parametrize("states", [False, True])
def test_other_tensors_than_those_recorded(kernels, tokens, states):
    for seed in range(3):
        agree(kernels, drawn(kernels, tokens, states, seed))
    assert not kernels.forward.__self__.why_not()


def test_copies_are_made_anew(any_kernels):
    for seed in range(3):
        arguments = drawn(any_kernels, 200, True, seed)
        arguments |= {name: (arguments[name] * (1 + seed)).bfloat16() for name in ("A", "D", "dt_bias")}
        agree(any_kernels, arguments | {"x": arguments["x"].transpose(2, 3).contiguous().transpose(2, 3)})


def test_shapes_in_turn_on_two_streams(any_kernels):
    every = [drawn(any_kernels, tokens, False, tokens) for tokens in (100, 101, 700)]
    expected = [run(any_kernels, each) for each in every]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    answers = []
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 2]):
            answers.append((turn % 3, run(any_kernels, every[turn % 3])))
    torch.cuda.synchronize()
    for which, answer in answers:
        assert all(torch.equal(a, b) for a, b in zip(answer, expected[which], strict=True))


def test_calls_that_wait_for_the_gpu_keep_their_arguments(any_kernels):
    every = [drawn(any_kernels, 200 + turn % 3, turn % 2 == 0, turn) for turn in range(30)]
    expected = [run(any_kernels, each) for each in every]
    torch.cuda.synchronize()
    torch.cuda._sleep(300_000_000)
    asleep = torch.cuda.Event()
    asleep.record()
    answers = [run(any_kernels, each) for each in every]
    assert not asleep.query()
    torch.cuda.synchronize()
    for answer, right in zip(answers, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(answer, right, strict=True))


def test_threads_launch_on_streams_of_their_own(any_kernels):
    every = [drawn(any_kernels, 300 + turn % 2, False, turn) for turn in range(40)]
    expected = [run(any_kernels, each) for each in every]
    torch.cuda.synchronize()

    def work(mine):
        with torch.cuda.stream(torch.cuda.Stream()):
            answers = [run(any_kernels, each) for each in mine]
            torch.cuda.current_stream().synchronize()
        return answers

    with ThreadPoolExecutor(4) as pool:
        answers = [*itertools.chain(*pool.map(work, [every[i::4] for i in range(4)]))]
    order = [index for i in range(4) for index in range(i, 40, 4)]
    for index, answer in zip(order, answers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(answer, expected[index], strict=True))


def test_memory_that_nobody_wrote_is_never_read(any_kernels):
    # deterministic mode fills what is allocated with NaN
    arguments = drawn(any_kernels, 333, False, 0)
    expected = run(any_kernels, arguments)
    torch.use_deterministic_algorithms(True)
    try:
        got = run(any_kernels, arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_graph_of_a_replayed_call(any_kernels):
    arguments = drawn(any_kernels, 500, True, 0)
    run(any_kernels, arguments)
    static = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(any_kernels, static)
    for seed in range(3):
        other = drawn(any_kernels, 500, True, seed)
        for name in ("x", "dt", "initial_states"):
            static[name].copy_(other[name])
        # what is between two replays is the graph's own memory, and stays what it is
        junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
        graph.replay()
        torch.cuda.synchronize()
        expected = run(any_kernels, static)
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
        del junk
