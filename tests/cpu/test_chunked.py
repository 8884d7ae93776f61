"""The fast fp64 evaluation is the recurrence, and its deviations are those of the honest one, in every regime."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ssmgen.reference import chunked  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference.honest import honest_evaluation  # noqa: E402
from ssmgen.verify.inputs import REGIMES, arguments  # noqa: E402
from ssmgen.verify.problems import Call, Drawn  # noqa: E402

MODEL = Drawn(groups=2, heads_per_group=3, head_dim=20, state=24, z="silu", D="per_channel")


def relative(actual, expected):
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-300))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("tokens", "model"), [
    (200, MODEL), (64, replace(MODEL, x="float16", z="none")), (1, MODEL), (130, replace(MODEL, x="float32", D="none")),
])  # fmt: skip
def test_it_is_the_recurrence(regime, tokens, model):
    for states in (False, True):
        call = Call(batch=2, tokens=tokens, regime=regime, initial_states=states, layout="fused_odd")
        given = arguments(model.operator, call)
        kept = getattr(torch, model.operator.dtypes.chunk_state)
        out, state = reference.mamba_chunk_scan_combined(**given)
        honest = honest_evaluation(**given, chunk_state=kept)
        made = chunked.evaluate(**given, chunk_state=kept)
        for token in range(0, tokens, 16):
            # by pieces: a quiet stretch must not hide behind a loud one
            rows = slice(token, token + 16)
            assert relative(made.out[:, rows], out[:, rows]) < 1e-11
            assert relative(made.out_sigma[:, rows], honest.out_sigma[:, rows]) < 0.02
        assert relative(made.state, state) < 1e-11
        assert relative(made.state_sigma, honest.state_sigma) < 0.02


def test_heads_in_slabs_are_the_same(monkeypatch):
    given = arguments(MODEL.operator, Call(batch=2, tokens=150, initial_states=True))
    whole = chunked.evaluate(**given)
    monkeypatch.setattr(chunked, "_MOST", 2 * 3 * 64 * 64 * 2)
    for a, b in zip(chunked.evaluate(**given), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


@pytest.mark.parametrize(("batch", "tokens"), [(2, 0), (0, 5)])
def test_nothing_to_do(batch, tokens):
    given = arguments(MODEL.operator, Call(batch=batch, tokens=tokens, initial_states=True))
    made = chunked.evaluate(**given)
    assert made.out.shape == (batch, tokens, 6, 20)
    assert torch.equal(made.state, given["initial_states"].double())


def test_it_sees_a_term_that_is_missing():
    given = arguments(MODEL.operator, Call(batch=1, tokens=150, initial_states=True, regime="mixed_horizons"))
    out, _ = reference.mamba_chunk_scan_combined(**given)
    for name in ("D", "z", "dt_bias", "initial_states"):
        assert relative(chunked.evaluate(**given | {name: None}).out, out) > 1e-3
