"""Committed packages on a real GPU, compiled here or launched from cubins, against the fp64 recurrence."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from ssmgen.bench.problems import inputs  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.reference.honest import honest_evaluation  # noqa: E402


def run(kernels, arguments, **more):
    with torch.no_grad():
        return kernels.mamba_chunk_scan_combined(**arguments, chunk_size=64, return_final_states=True, **more)


def check(kernels, arguments, **more):
    expected, expected_state = reference.mamba_chunk_scan_combined(**arguments, **more)
    out, state = run(kernels, arguments, **more)
    honest = honest_evaluation(**arguments, **more)
    assert tolerance.excess((out, state), (expected, expected_state), honest) <= 1


def draw(kernels, batch, tokens, *, states=False):
    arguments = inputs(kernels, batch, tokens)
    if states:
        shape = (batch, kernels.HEADS, kernels.HEAD_DIM, kernels.STATE)
        arguments["initial_states"] = torch.randn(shape, device="cuda")
    return arguments


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("states", [False, True])
def test_short_prompts_agree(kernels, tokens, states):
    check(kernels, draw(kernels, 2, tokens, states=states))


def test_a_long_prompt_agrees(kernels):
    check(kernels, draw(kernels, 1, 8192, states=True))


def test_nothing_to_do(kernels):
    out, state = run(kernels, draw(kernels, 0, 64))
    assert out.shape[0] == state.shape[0] == 0
    arguments = draw(kernels, 2, 0, states=True)
    assert torch.equal(run(kernels, arguments)[1], arguments["initial_states"])


@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_slices_of_one_projection_agree(any_kernels, offset):
    k = any_kernels
    arguments = draw(k, 2, 200, states=True)
    widths = {"x": (k.HEADS, k.HEAD_DIM), "B": (k.GROUPS, k.STATE), "C": (k.GROUPS, k.STATE)}
    total = offset + sum(a * b for a, b in widths.values())
    # an odd row length: no row but the first is aligned
    fused = torch.zeros(2, 200, total + offset % 2, dtype=arguments["x"].dtype, device="cuda")
    start = offset
    for name, (count, width) in widths.items():
        view = fused[..., start : start + count * width].unflatten(-1, (count, width))
        arguments[name] = view.copy_(arguments[name])
        start += count * width
    check(k, arguments)


def test_two_runs_are_bitwise_equal(any_kernels):
    arguments = draw(any_kernels, 2, 1000, states=True)
    first, second = run(any_kernels, arguments), run(any_kernels, arguments)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_streams_are_respected(any_kernels):
    arguments = draw(any_kernels, 2, 2000)
    expected = run(any_kernels, arguments)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    held = torch.zeros_like(arguments["x"])
    with torch.cuda.stream(stream):
        # what the kernels read is written late, and only on this stream
        torch.cuda._sleep(20_000_000)
        held.copy_(arguments["x"])
        got = run(any_kernels, arguments | {"x": held})
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("warm", [True, False])
def test_a_captured_graph_replays(any_kernels, warm):
    # without a warm-up call the first load of the kernels' variants happens inside the capture
    arguments = draw(any_kernels, 1, 500 if warm else 501)
    expected = run(any_kernels, arguments) if warm else None
    static = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    static["x"].zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(any_kernels, static)
    static["x"].copy_(arguments["x"])
    graph.replay()
    torch.cuda.synchronize()
    expected = expected or run(any_kernels, arguments)
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def test_fresh_threads_launch(any_kernels):
    arguments = draw(any_kernels, 1, 300)
    expected = run(any_kernels, arguments)
    torch.cuda.synchronize()
    answers = []

    def work():
        answers.append(run(any_kernels, arguments))
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(torch.equal(a[0], expected[0]) for a in answers)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one(any_kernels):
    arguments = draw(any_kernels, 1, 300)
    expected = run(any_kernels, arguments)
    there = {name: v.to("cuda:1") if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    out, state = run(any_kernels, there)
    assert torch.cuda.current_device() == 0
    assert torch.equal(out.cpu(), expected[0].cpu())
    assert torch.equal(state.cpu(), expected[1].cpu())


def sequences(tokens, inner=(3, 3)):
    """Of `tokens` // 3 twice an empty one lies between two others; rows behind the last."""
    offsets = [0, *(tokens // part for part in inner), tokens - 5]
    offsets = torch.tensor(offsets, device="cuda", dtype=torch.int32)
    return dict(cu_seqlens=offsets, return_varlen_states=True, state_dtype=torch.float32)


# few sequences of few heads are split into segments
@pytest.mark.parametrize("inner", [(), (3,), (3, 3)])
@pytest.mark.parametrize("tokens", [8, 65, 700])
@pytest.mark.parametrize("states", [False, True])
def test_packed_sequences_agree(kernels, tokens, states, inner):
    arguments = draw(kernels, 1, tokens)
    if states:
        shape = (len(inner) + 1, kernels.HEADS, kernels.HEAD_DIM, kernels.STATE)
        arguments["initial_states"] = torch.randn(shape, device="cuda")
    more = sequences(tokens, inner)
    out, _, of_all = run(kernels, arguments, **more)
    packed = arguments | {"cu_seqlens": more["cu_seqlens"]}
    expected = reference.mamba_chunk_scan_combined(**packed)
    assert tolerance.excess((out, of_all), expected, honest_evaluation(**packed)) <= 1
    assert not out[:, tokens - 5 :].count_nonzero()


@pytest.mark.parametrize("tokens", [65, 700])
def test_changes_of_sequence_agree(kernels, tokens):
    """By seq_idx alone, in two rows: one of them may be split into segments, and has a change in the middle of one."""
    changes = torch.zeros(2, tokens, device="cuda", dtype=torch.int32)
    changes[0, tokens // 2 :], changes[1, tokens // 5 :], changes[1, -3:] = 1, 1, 2
    arguments = draw(kernels, 2, tokens, states=True)
    check(kernels, arguments, seq_idx=changes)
    alone = {n: t[1:] if n in ("x", "dt", "B", "C", "initial_states") else t for n, t in arguments.items()}
    check(kernels, alone, seq_idx=changes[1:])


@pytest.mark.parametrize(("inner", "other"), [((3, 3), [0, 1, 250, 300]), ((), [0, 123])])
def test_a_captured_packed_call_takes_other_offsets(any_kernels, inner, other):
    """Nothing of a call waits for, or remembers, the values of its offsets."""
    arguments, more = draw(any_kernels, 1, 300), sequences(300, inner)
    run(any_kernels, arguments, **more)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(any_kernels, arguments, **more)
    more["cu_seqlens"].copy_(torch.tensor(other, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    expected = run(any_kernels, arguments, **more)
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def test_offsets_that_are_wrong_end_in_no_fault(any_kernels):
    arguments = draw(any_kernels, 1, 300)
    for values in ([0, 200, 100, 300], [-5, 300], [0, 10**9], [7, 2**31 - 1], [250, 10, 300]):
        offsets = torch.tensor(values, device="cuda", dtype=torch.int32)
        run(any_kernels, arguments, cu_seqlens=offsets)
        torch.cuda.synchronize()
        with pytest.raises(ValueError, match="cu_seqlens: found"):
            run(any_kernels, arguments, cu_seqlens=offsets, validate=True)


def test_compiled_whole(any_kernels):
    arguments = draw(any_kernels, 1, 300)

    def layer(**given):
        return any_kernels.mamba_chunk_scan_combined(
            **given | {"x": given["x"] * 2}, chunk_size=64, dt_softplus=True, return_final_states=True
        )

    del arguments["dt_softplus"]
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        for expected, got in zip(layer(**arguments), compiled(**arguments), strict=True):
            assert torch.equal(expected, got)
