"""The fp64 reference against closed forms and numbers worked by hand."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from ssmgen.reference.mamba_chunk_scan_combined import (  # noqa: E402
    error,
    mamba_chunk_scan_combined,
    state_error,
    time_step,
)

LN2 = math.log(2.0)


def problem(tokens=37, *, batch=2, heads=6, groups=2, head_dim=3, state=5):
    """Arguments of a small problem in fp64."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return {
        "x": draw(batch, tokens, heads, head_dim),
        "dt": draw(batch, tokens, heads),
        "A": -draw(heads).exp(),
        "B": draw(batch, tokens, groups, state),
        "C": draw(batch, tokens, groups, state),
        "D": draw(heads),
        "dt_bias": draw(heads),
        "initial_states": draw(batch, heads, head_dim, state),
        "dt_softplus": True,
    }


def one(*values):
    """(1, T, 1, 1) from T numbers."""
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1, 1)


def test_three_tokens_by_hand():
    # a = exp(-ln2 dt) = 1/2, 1/4, 1/2
    out, final = mamba_chunk_scan_combined(
        x=one(1, 2, -1),
        dt=torch.tensor([[[1.0], [2.0], [1.0]]]),
        A=torch.tensor([-LN2], dtype=torch.float64),
        B=one(1, 3, 2),
        C=one(2, 1, 10),
        D=torch.tensor([10.0]),
        initial_states=one(4.0),
    )
    # h: 4/2 + 1*1*1 = 3; 3/4 + 2*2*3 = 12.75; 12.75/2 - 1*1*2 = 4.375
    torch.testing.assert_close(out.flatten(), torch.tensor([6 + 10, 12.75 + 20, 43.75 - 10], dtype=torch.float64))
    torch.testing.assert_close(final.flatten(), torch.tensor([4.375], dtype=torch.float64))
    assert out.dtype == final.dtype == torch.float64


def test_no_decay_is_causal_linear_attention():
    p = problem()
    p |= {"A": torch.zeros(6), "D": None, "initial_states": None, "dt_softplus": False}
    p["dt"], p["dt_bias"] = p["dt"].abs(), None
    out, final = mamba_chunk_scan_combined(**p)
    b, c = (p[name].repeat_interleave(3, dim=2) for name in ("B", "C"))
    scores = torch.einsum("bihs,bjhs->bhij", c, b).tril()
    torch.testing.assert_close(out, torch.einsum("bhij,bjh,bjhp->bihp", scores, p["dt"], p["x"]))
    torch.testing.assert_close(final, torch.einsum("bth,bthp,bths->bhps", p["dt"], p["x"], b))


def test_the_closed_form_with_decay():
    p = problem()
    out, final = mamba_chunk_scan_combined(**p)
    step = torch.nn.functional.softplus(p["dt"] + p["dt_bias"], threshold=1e9)
    total = (p["A"] * step).cumsum(1)
    b, c = (p[name].repeat_interleave(3, dim=2) for name in ("B", "C"))
    decay = (total[:, :, None] - total[:, None]).exp().permute(0, 3, 1, 2)
    scores = (torch.einsum("bihs,bjhs->bhij", c, b) * decay).tril()
    expected = torch.einsum("bhij,bjh,bjhp->bihp", scores, step, p["x"]) + p["D"][:, None] * p["x"]
    expected += torch.einsum("bih,bhps,bihs->bihp", total.exp(), p["initial_states"], c)
    torch.testing.assert_close(out, expected)
    assert state_error(final, mamba_chunk_scan_combined(**p)[1]) == 0.0


@pytest.mark.parametrize("split", [0, 1, 16, 36, 37])
def test_a_split_prompt_equals_the_whole(split):
    p = problem()
    whole, final = mamba_chunk_scan_combined(**p)

    def piece(rows, state):
        cut = {name: p[name][:, rows] for name in ("x", "dt", "B", "C")}
        return mamba_chunk_scan_combined(**p | cut | {"initial_states": state})

    first, middle = piece(slice(0, split), p["initial_states"])
    second, last = piece(slice(split, None), middle)
    assert torch.equal(torch.cat((first, second), dim=1), whole)
    assert torch.equal(last, final)


def test_heads_read_their_groups():
    p = problem()
    out, _ = mamba_chunk_scan_combined(**p)
    for head in range(6):
        own = {name: p[name][:, :, head : head + 1] for name in ("x", "dt")}
        own |= {name: p[name][head : head + 1] for name in ("A", "D", "dt_bias")}
        own |= {name: p[name][:, :, head // 3 : head // 3 + 1] for name in ("B", "C")}
        own["initial_states"] = p["initial_states"][:, head : head + 1]
        torch.testing.assert_close(mamba_chunk_scan_combined(**p | own)[0][:, :, 0], out[:, :, head])
    with pytest.raises(ValueError, match="4 groups"):
        mamba_chunk_scan_combined(**p | {name: torch.zeros(2, 37, 4, 5) for name in ("B", "C")})


def test_d_per_channel_and_none():
    p = problem()
    plain, _ = mamba_chunk_scan_combined(**p | {"D": None})
    torch.testing.assert_close(mamba_chunk_scan_combined(**p | {"D": torch.full((6, 3), 2.0)})[0], plain + 2.0 * p["x"])


def test_time_steps():
    dt = torch.tensor([0.0, 1e-12, 90.0, -800.0])
    soft = time_step(dt, None, True, (0.0, math.inf))
    assert soft[0] == LN2
    assert soft[2] == 90.0
    assert soft[3] == 0.0
    assert time_step(torch.tensor([-40.0]), None, True, (0.0, math.inf)).item() == pytest.approx(math.exp(-40.0))
    assert time_step(dt, torch.tensor([1.0]), False, (0.5, 10.0)).tolist() == pytest.approx([1.0, 1.0, 10.0, 0.5])


def test_extremes_stay_finite_and_empty_prompts_keep_the_state():
    p = problem()
    p["A"] = torch.tensor([-1e9, -1e2, -1e-9, -1.0, -1.0, 0.0])
    assert all(t.isfinite().all() for t in mamba_chunk_scan_combined(**p))
    p = problem(0)
    out, final = mamba_chunk_scan_combined(**p)
    assert out.shape == (2, 0, 6, 3)
    assert torch.equal(final, p["initial_states"])
    assert final.data_ptr() != p["initial_states"].data_ptr()


def test_low_precision_arguments_are_read_exactly():
    p = problem()
    low = {name: value.bfloat16() for name, value in p.items() if isinstance(value, torch.Tensor)}
    exact = {name: value.double() for name, value in low.items()}
    assert torch.equal(mamba_chunk_scan_combined(**p | low)[0], mamba_chunk_scan_combined(**p | exact)[0])


def test_the_error_is_of_the_worst_head_and_block():
    expected = torch.ones(1, 130, 2, 4, dtype=torch.float64)
    expected[:, :, 1] = 1e-3
    actual = expected.clone()
    assert error(actual, expected) == 0.0
    # a quiet head's last block of 2 tokens: half of its 8 values off by the whole
    actual[:, 128:, 1, :2] = 0.0
    assert error(actual, expected) == pytest.approx(math.sqrt(0.5))
    # its first block: 1 value of 256
    actual = expected.clone()
    actual[0, 5, 1, 0] = 2e-3
    assert error(actual, expected) == pytest.approx(1 / 16)


def test_the_error_of_a_nan_is_infinite():
    expected = torch.ones(1, 70, 2, 4)
    for bad in (math.nan, math.inf):
        actual = expected.clone()
        actual[0, 69, 1, 3] = bad
        assert error(actual, expected) == math.inf
    zero = torch.zeros(1, 3, 1, 2)
    assert error(zero, zero) == 0.0
    assert error(zero + 1e-30, zero) == math.inf
    assert error(zero, torch.full_like(zero, math.nan)) == math.inf
    assert error(torch.zeros(1, 0, 1, 2), torch.zeros(1, 0, 1, 2)) == 0.0
    with pytest.raises(ValueError, match="actual"):
        error(zero, zero[:, :2])


def test_the_state_error_is_of_the_worst_head():
    expected = torch.tensor([[[[1.0, 1.0]], [[1e-3, 1e-3]]]])
    actual = expected.clone()
    actual[0, 1, 0, 0] = 0.0
    assert state_error(actual, expected) == pytest.approx(math.sqrt(0.5))


def test_a_gate_by_hand():
    given = dict(x=one(3.0), dt=torch.ones(1, 1, 1), A=torch.tensor([-1.0]), B=one(2.0), C=one(5.0))
    # h = 6, y = 30 + 10 * 3; silu(0) = 0, silu(ln 3) = ln 3 * 3/4
    for z, expected in ((0.0, 0.0), (math.log(3.0), 60 * math.log(3.0) * 0.75)):
        out, _ = mamba_chunk_scan_combined(**given, D=torch.tensor([[10.0]]), z=one(z))
        torch.testing.assert_close(out, one(expected))


def test_d_by_channel_is_d_by_head_where_it_is_the_same():
    given = problem()
    expected, _ = mamba_chunk_scan_combined(**given)
    given["D"] = given["D"][:, None].expand(-1, 3)
    assert torch.equal(mamba_chunk_scan_combined(**given)[0], expected)


def test_packed_sequences_are_their_own_problems():
    given = problem(batch=1)
    offsets = (0, 5, 5, 36)
    states = torch.randn(3, 6, 3, 5, dtype=torch.float64)
    packed = given | {"initial_states": states, "cu_seqlens": torch.tensor(offsets)}
    out, final = mamba_chunk_scan_combined(**packed)
    for n, (start, stop) in enumerate(((0, 5), (5, 5), (5, 36))):
        own = {name: t[:, start:stop] if name in ("x", "dt", "B", "C") else t for name, t in given.items()}
        expected, expected_state = mamba_chunk_scan_combined(**own | {"initial_states": states[n : n + 1]})
        assert torch.equal(out[:, start:stop], expected)
        assert torch.equal(final[n : n + 1], expected_state)
    assert not out[:, 36:].any()


def test_seq_idx_starts_from_nothing_where_it_changes():
    given = problem(tokens=9)
    # each row changes where it likes, back to an earlier number too
    seq_idx = torch.tensor([[4, 4, 4, 0, 0, 4, 4, 4, 4], [1, 2, 2, 2, 2, 2, 2, 2, 2]])
    out, final = mamba_chunk_scan_combined(**given, seq_idx=seq_idx)
    for row, cuts in enumerate(((0, 3, 5, 9), (0, 1, 9))):
        for n, (start, stop) in enumerate(itertools.pairwise(cuts)):
            own = {k: t[row : row + 1, start:stop] if k in ("x", "dt", "B", "C") else t for k, t in given.items()}
            own["initial_states"] = given["initial_states"][row : row + 1] * (n == 0)
            expected, state = mamba_chunk_scan_combined(**own)
            torch.testing.assert_close(out[row : row + 1, start:stop], expected)
        torch.testing.assert_close(final[row : row + 1], state)
