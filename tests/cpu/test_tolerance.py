"""The tolerance follows the dtypes and the inputs, and a wrong kernel does not hide in it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402


def draw(dtype, tokens=150, heads=4, groups=2, head_dim=16, state=32):
    torch.manual_seed(0)
    return dict(
        x=torch.randn(2, tokens, heads, head_dim).to(dtype),
        dt=torch.randn(2, tokens, heads) - 3,
        A=-torch.exp(torch.rand(heads) * 2.7),
        B=torch.randn(2, tokens, groups, state).to(dtype),
        C=torch.randn(2, tokens, groups, state).to(dtype),
        D=torch.randn(heads),
        dt_bias=torch.randn(heads),
        dt_softplus=True,
        initial_states=torch.randn(2, heads, head_dim, state),
    )


@pytest.mark.parametrize(("dtype", "low", "high"), [
    (torch.bfloat16, 1e-3, 8e-3),
    (torch.float16, 1e-4, 2e-3),
    (torch.float32, 1e-4, 2e-3),
])  # fmt: skip
def test_an_honest_evaluation_errs_by_its_dtypes_rounding(dtype, low, high):
    arguments = draw(dtype)
    expected, expected_state = reference.mamba_chunk_scan_combined(**arguments)
    out, state = tolerance.honest(**arguments)
    assert low < reference.error(out, expected) < high
    assert reference.state_error(state, expected_state) < high


@pytest.mark.parametrize("wrong", ["decay", "carry", "skip", "groups", "bias"])
def test_a_missing_term_is_far_beyond_the_limit(wrong):
    arguments = draw(torch.bfloat16)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    limit = tolerance.limit(reference.error(tolerance.honest(**arguments)[0], expected))
    change = {
        "decay": {"A": arguments["A"] * 0.9},
        "carry": {"initial_states": None},
        "skip": {"D": None},
        # groups tiled over the heads instead of repeated
        "groups": {"B": arguments["B"].flip(2), "C": arguments["C"].flip(2)},
        "bias": {"dt_bias": None},
    }[wrong]
    mutant, _ = reference.mamba_chunk_scan_combined(**(arguments | change))
    assert reference.error(mutant, expected) > 10 * limit


def test_the_limit_grows_where_the_terms_cancel():
    arguments = draw(torch.bfloat16, tokens=1) | {"initial_states": None}
    coefficient = (arguments["B"] * arguments["C"]).double().sum(-1)[:, 0, 0]
    step = reference.time_step(arguments["dt"], arguments["dt_bias"], True, (0.0, float("inf")))
    # D takes all but a thousandth of the first head's output away
    arguments["D"][0] = float(-coefficient[0] * step[0, 0, 0] * 0.999)
    expected, _ = reference.mamba_chunk_scan_combined(**arguments)
    assert reference.error(tolerance.honest(**arguments)[0], expected) > 0.05
