"""The fp64 references of decode: by hand, by the forward reference, and by what the mathematics says must hold."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from ssmgen.reference.gated_delta_rule_packed_decode import gated_delta_rule_packed_decode  # noqa: E402
from ssmgen.reference.mamba_chunk_scan_combined import mamba_chunk_scan_combined  # noqa: E402
from ssmgen.reference.selective_state_update import selective_state_update  # noqa: E402


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def update(batch=3, heads=4, groups=2, head_dim=5, state=6, pool=7):
    return dict(
        state=normal(pool, heads, head_dim, state),
        x=normal(batch, heads, head_dim),
        dt=normal(batch, heads)[..., None].expand(-1, -1, head_dim),
        A=-normal(heads).exp()[:, None, None].expand(-1, head_dim, state),
        B=normal(batch, groups, state),
        C=normal(batch, groups, state, seed=1),
        D=normal(heads, seed=2)[:, None].expand(-1, head_dim),
        z=normal(batch, heads, head_dim, seed=3),
        dt_bias=normal(heads, seed=4)[:, None].expand(-1, head_dim),
        dt_softplus=True,
        state_batch_indices=torch.tensor([4, -1, 0]),
    )


def test_an_update_by_hand():
    def one(value, *shape):
        return torch.full(shape, value, dtype=torch.float64)

    out, state = selective_state_update(
        one(2.0, 1, 1, 1, 1), one(3.0, 1, 1, 1), one(0.5, 1, 1, 1), one(-2.0, 1, 1, 1), one(5.0, 1, 1, 1),
        one(7.0, 1, 1, 1), one(11.0, 1, 1), dt_bias=one(0.25, 1, 1),
    )  # fmt: skip
    h = math.exp(-2.0 * 0.75) * 2.0 + 0.75 * 3.0 * 5.0
    assert state.item() == pytest.approx(h, rel=1e-15)
    assert out.item() == pytest.approx(h * 7.0 + 11.0 * 3.0, rel=1e-15)


def test_an_update_is_a_forward_call_of_one_token():
    given = update()
    out, state = selective_state_update(**given)
    rows, slots = [0, 2], [4, 0]
    expected, final = mamba_chunk_scan_combined(
        given["x"][rows, None], given["dt"][rows, None, :, 0], given["A"][:, 0, 0],
        given["B"][rows, None], given["C"][rows, None],
        D=given["D"][:, 0], z=given["z"][rows, None], dt_bias=given["dt_bias"][:, 0],
        initial_states=given["state"][slots], dt_softplus=True, dt_limit=(-math.inf, math.inf),
    )  # fmt: skip
    torch.testing.assert_close(out[rows], expected[:, 0], rtol=1e-13, atol=0)
    torch.testing.assert_close(state[slots], final, rtol=1e-13, atol=0)
    # padding gives zero, and no other slot is touched
    assert not out[1].any()
    others = [slot for slot in range(7) if slot not in slots]
    assert torch.equal(state[others], given["state"][others])


def test_without_slots_every_row_has_its_own():
    given = update() | {"state_batch_indices": None}
    own = update() | {"state_batch_indices": torch.arange(3)}
    for a, b in zip(selective_state_update(**given), selective_state_update(**own), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("change", "said"), [
    (dict(A=-torch.rand(4, 5, 6)), "A: found values that differ within a head"),
    (dict(dt=torch.rand(3, 4, 5)), "dt: found values that differ within a head"),
    (dict(B=torch.rand(3, 3, 6)), "B: found 3 groups"),
    (dict(state_batch_indices=torch.tensor([1, 2, 1])), "every slot at most once"),
])  # fmt: skip
def test_an_update_refuses(change, said):
    with pytest.raises(ValueError, match=said):
        selective_state_update(**update() | change)


def delta(batch=3, key_heads=2, value_heads=6, key_dim=4, value_dim=5, pool=8):
    return dict(
        mixed_qkv=normal(batch, 2 * key_heads * key_dim + value_heads * value_dim),
        a=normal(batch, value_heads),
        b=normal(batch, value_heads, seed=1),
        A_log=normal(value_heads),
        dt_bias=normal(value_heads, seed=1),
        scale=0.5,
        initial_state=normal(pool, value_heads, value_dim, key_dim),
        ssm_state_indices=torch.tensor([5, 0, 2]),
        key_heads=key_heads,
        use_qk_l2norm_in_kernel=True,
    )


def test_a_delta_step_by_hand():
    out, pool = gated_delta_rule_packed_decode(
        torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[0.5]]), torch.tensor([[-1.0]]), torch.tensor([0.25]),
        torch.tensor([0.75]), 0.125, torch.tensor([1.0, 7.0]).reshape(2, 1, 1, 1), torch.tensor([1]), key_heads=1,
    )  # fmt: skip
    h = math.exp(-math.exp(0.25) * math.log1p(math.exp(1.25))) * 7.0
    h += (5.0 - h * 3.0) / (1 + math.exp(1.0)) * 3.0
    assert pool.flatten().tolist() == pytest.approx([1.0, h], rel=1e-7)
    assert out.item() == pytest.approx(h * 2.0 * 0.125, rel=1e-7)


def test_a_beta_of_one_writes_the_value_where_the_key_reads_it():
    # |k| = 1, so that h k = v after the step, whatever h was
    given = delta() | {"b": torch.full((3, 6), torch.inf, dtype=torch.float64)}
    _, pool = gated_delta_rule_packed_decode(**given)
    _, k, v = given["mixed_qkv"].split([8, 8, 30], 1)
    k = torch.nn.functional.normalize(k.unflatten(1, (2, 4)), dim=-1)[:, torch.arange(6) // 3]
    for row, slot in ((0, 5), (2, 2)):
        read = torch.einsum("hvk,hk->hv", pool[slot], k[row])
        # the 1e-6 under the root of the norm is all that is between them
        torch.testing.assert_close(read, v[row].unflatten(0, (6, 5)), rtol=0, atol=1e-5)


def test_twice_the_beta_reflects():
    # h k = h' k + 2 |k|^2 (v - h' k), h' the decayed state and |k|^2 a millionth less than 1
    given = delta() | {"b": torch.full((3, 6), torch.inf, dtype=torch.float64), "beta_scale": 2.0}
    decayed = gated_delta_rule_packed_decode(**given | {"b": torch.full((3, 6), -torch.inf, dtype=torch.float64)})[1]
    _, pool = gated_delta_rule_packed_decode(**given)
    k = given["mixed_qkv"][:, 8:16].unflatten(1, (2, 4))
    k = (k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6))[:, torch.arange(6) // 3]
    v = given["mixed_qkv"][:, 16:].unflatten(1, (6, 5))
    read = torch.einsum("hvk,hk->hv", pool[5], k[0])
    before = torch.einsum("hvk,hk->hv", decayed[5], k[0])
    expected = before + 2 * k[0].square().sum(-1, keepdim=True) * (v[0] - before)
    torch.testing.assert_close(read, expected, rtol=1e-12, atol=1e-12)


def test_slots_of_the_delta_rule():
    given = delta()
    out, pool = gated_delta_rule_packed_decode(**given)
    assert not out[1].any()
    others = [0, 1, 3, 4, 6, 7]
    assert torch.equal(pool[others], given["initial_state"][others])
    # alone, a row gives what it gives among others
    one = {n: given[n][2:] for n in ("mixed_qkv", "a", "b", "ssm_state_indices")}
    alone, _ = gated_delta_rule_packed_decode(**given | one)
    assert torch.equal(alone[0], out[2])


@pytest.mark.parametrize(("change", "said"), [
    (dict(mixed_qkv=torch.rand(3, 45)), "mixed_qkv: found width 45, expected 46"),
    (dict(key_heads=4), "4 key heads for 6 value heads"),
    (dict(ssm_state_indices=torch.tensor([5, 5, 2])), "every slot at most once"),
])  # fmt: skip
def test_the_delta_rule_refuses(change, said):
    with pytest.raises(ValueError, match=said):
        gated_delta_rule_packed_decode(**delta() | change)
