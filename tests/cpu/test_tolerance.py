"""The tolerance follows the dtypes and the inputs, an honest evaluation always passes, and a wrong one never does."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.reference.honest import honest_evaluation  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def draw(dtype, *, tokens=150, heads=4, groups=2, head_dim=16, state=32, seed=0):  # noqa: PLR0913
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return dict(
        x=normal(2, tokens, heads, head_dim).to(dtype),
        dt=normal(2, tokens, heads) - 3,
        A=-torch.exp(torch.rand(heads, generator=generator) * 2.7),
        B=normal(2, tokens, groups, state).to(dtype),
        C=normal(2, tokens, groups, state).to(dtype),
        D=normal(heads),
        dt_bias=normal(heads),
        dt_softplus=True,
        initial_states=normal(2, heads, head_dim, state),
    )


def rms(values):
    return float(values.square().mean().sqrt())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_deviations_are_those_of_an_honest_evaluation(dtype):
    # they come from squares of the same products, the errors from rounding: nothing but the maths makes them agree
    arguments = draw(dtype)
    expected, expected_state = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    assert 0.5 < rms(honest.out - expected) / rms(honest.out_sigma) < 1.05
    assert 0.5 < rms(honest.state - expected_state) / rms(honest.state_sigma) < 1.05
    for head in range(4):
        assert 0.4 < rms((honest.out - expected)[:, :, head]) / rms(honest.out_sigma[:, :, head]) < 1.2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_dim", "state"), [(1, 1, 1), (1, 1, 16), (2, 3, 5), (65, 16, 16)])
def test_an_honest_evaluation_passes_whatever_the_draw(dtype, tokens, head_dim, state):
    # of one lane and one token, terms cancel in some draw; another chunk rounds in another order
    for seed in range(40):
        arguments = draw(dtype, tokens=tokens, head_dim=head_dim, state=state, seed=seed)
        expected, expected_state = reference.mamba_chunk_scan_combined(**arguments)
        honest, other = honest_evaluation(**arguments), honest_evaluation(**arguments, chunk=32)
        assert tolerance.out_excess(other.out, expected, honest.out_sigma) <= 0.8
        assert tolerance.state_excess(other.state, expected_state, honest.state_sigma) <= 0.8


@pytest.mark.parametrize("wrong", ["decay", "carry", "skip", "groups", "bias"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_missing_term_is_far_beyond_the_limit(dtype, wrong):
    arguments = draw(dtype)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    sigma = honest_evaluation(**arguments).out_sigma
    change = {
        "decay": {"A": arguments["A"] * 0.9},
        "carry": {"initial_states": None},
        "skip": {"D": None},
        # groups tiled over the heads instead of repeated
        "groups": {"B": arguments["B"].flip(2), "C": arguments["C"].flip(2)},
        "bias": {"dt_bias": None},
    }[wrong]
    mutant, _ = reference.mamba_chunk_scan_combined(**(arguments | change))
    assert tolerance.out_excess(mutant, expected, sigma) > 10


def test_operands_of_fewer_digits_than_the_dtype_has_do_not_pass():
    arguments = draw(torch.float32)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    sigma = honest_evaluation(**arguments).out_sigma
    coarse = {name: arguments[name].bfloat16().float() for name in ("x", "B", "C")}
    rounded, _ = reference.mamba_chunk_scan_combined(**(arguments | coarse))
    assert tolerance.out_excess(rounded, expected, sigma) > 1


def test_one_wrong_element_is_found():
    arguments = draw(torch.bfloat16)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    out = honest.out.clone()
    out[0, 70, 1, 3] += 20 * honest.out_sigma[0, 70, 1, 3]
    assert tolerance.out_excess(out, expected, honest.out_sigma) > 1
    out[0, 70, 1, 3] = math.nan
    assert tolerance.out_excess(out, expected, honest.out_sigma) == math.inf


def test_nothing_may_differ_where_nothing_is_rounded():
    arguments = draw(torch.bfloat16) | {"D": None, "initial_states": None}
    arguments["x"] = torch.zeros_like(arguments["x"])
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    sigma = honest_evaluation(**arguments).out_sigma
    assert tolerance.out_excess(expected, expected, sigma) == 0
    assert tolerance.out_excess(expected + 1e-41, expected, sigma) < 1
    assert tolerance.out_excess(expected + 1e-6, expected, sigma) > 1


def test_beyond_the_range_of_the_dtype_infinity_is_right():
    arguments = draw(torch.float16) | {"D": torch.tensor([1e6, 1.0, 1.0, 1.0])}
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    out = honest.out.half()
    assert torch.isinf(out[:, :, 0]).any()
    assert tolerance.out_excess(out, expected, honest.out_sigma) <= 1
    out[:, :, 0] = -out[:, :, 0]
    assert tolerance.out_excess(out, expected, honest.out_sigma) == math.inf
    out = honest.out.half()
    out[0, 0, 1, 0] = math.inf
    assert tolerance.out_excess(out, expected, honest.out_sigma) == math.inf


def packed(dtype, **sizes):
    """Two rows become one of five sequences, one of them empty, with a gate from shut to open and D by channel."""
    arguments = draw(dtype, **sizes)
    generator = torch.Generator().manual_seed(1)
    for name in ("x", "dt", "B", "C"):
        arguments[name] = arguments[name].flatten(0, 1)[None]
    x = arguments["x"]
    arguments["D"] = torch.randn(x.shape[2:], generator=generator)
    arguments["z"] = (3 * torch.randn(x.shape, generator=generator)).to(dtype)
    arguments["initial_states"] = torch.randn(5, *x.shape[2:], arguments["B"].shape[3], generator=generator)
    arguments["cu_seqlens"] = torch.tensor([0, 70, 70, 133, 140, x.shape[1]])
    return arguments


def test_a_state_below_what_fp32_holds_may_be_zero():
    arguments = draw(torch.bfloat16)
    # nothing comes in any more, and what is there decays beyond 2**-126, to where only fp64 sees it
    for name in ("x", "B", "C"):
        arguments[name][:, 10:] = 0
    arguments["A"] = torch.full((4,), -20.0)
    expected = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    assert 0 < expected[1].abs().max() < 2**-126
    assert tolerance.excess((expected[0], torch.zeros_like(expected[1])), expected, honest) <= 1
    assert tolerance.state_excess(torch.full_like(expected[1], 1e-36), expected[1], honest.state_sigma) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_deviations_of_packed_gated_rows(dtype):
    arguments = packed(dtype)
    expected, expected_state = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    assert 0.5 < rms(honest.out - expected) / rms(honest.out_sigma) < 1.05
    other = honest_evaluation(**arguments, chunk=32)
    assert tolerance.excess((other.out, other.state), (expected, expected_state), honest) <= 0.8
    # of an empty sequence nothing is rounded
    assert not honest.state_sigma[1].any()
    for n in (0, 2, 3, 4):
        assert 0.5 < rms((honest.state - expected_state)[n]) / rms(honest.state_sigma[n]) < 1.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", ["gate", "skip", "state", "cut", "joined"])
def test_a_missing_term_of_packed_gated_rows_is_far_beyond_the_limit(dtype, wrong):
    arguments = packed(dtype)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    sigma = honest_evaluation(**arguments).out_sigma
    change = {
        "gate": {"z": arguments["z"].roll(1, 2)},
        "skip": {"D": arguments["D"].mean(1)},
        "state": {"initial_states": arguments["initial_states"].roll(1, 0)},
        "cut": {"cu_seqlens": torch.tensor([0, 71, 71, 133, 140, 300])},
        "joined": {"cu_seqlens": torch.tensor([0, 70, 133, 133, 140, 300])},
    }[wrong]
    mutant, _ = reference.mamba_chunk_scan_combined(**(arguments | change))
    assert tolerance.out_excess(mutant, expected, sigma) > 10


def test_seq_idx_is_sequences_from_nothing():
    arguments = packed(torch.bfloat16)
    offsets = arguments["cu_seqlens"]
    del arguments["initial_states"]
    by_offsets = honest_evaluation(**arguments)
    del arguments["cu_seqlens"]
    seq_idx = torch.arange(5).repeat_interleave(offsets.diff())[None]
    by_index = honest_evaluation(**arguments, seq_idx=seq_idx)
    for name in ("out", "out_sigma"):
        assert torch.equal(getattr(by_offsets, name), getattr(by_index, name))
    for name in ("state", "state_sigma"):
        assert torch.equal(getattr(by_offsets, name)[-1:], getattr(by_index, name))
