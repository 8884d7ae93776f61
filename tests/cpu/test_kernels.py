"""Generated kernels through the interpreter against the fp64 recurrence: drawn problems, and broken templates.

SSMGEN_EXAMPLES sets how many problems are drawn, SSMGEN_SEED from where; by default CI draws the same ones every time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import HealthCheck, given, seed, settings

from ssmgen import paths, render, testing
from ssmgen.errors import SanitizerError
from ssmgen.loading import interpreted
from ssmgen.verify import check, problems
from ssmgen.verify.check import Subject
from ssmgen.verify.inputs import REGIMES
from ssmgen.verify.problems import Call, Drawn, Problem

EXAMPLES = int(os.environ.get("SSMGEN_EXAMPLES", "25"))
SEED = os.environ.get("SSMGEN_SEED")


# four parts, so that test processes share them
@pytest.mark.parametrize("x", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("segments", [1, 2])
def test_drawn_problems(x: str, segments: int) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=SEED is None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(problem=testing.problems(x=x, segments=segments))
    def run(problem: Problem) -> None:
        testing.check(problem, compile=testing.has_compiler())

    if SEED is not None:
        run = seed(int(SEED))(run)
    run()


@pytest.mark.parametrize("text", [
    "groups=1,heads_per_group=14,head_dim=9,state=17,chunk=64,tokens=65",
    "groups=1,heads_per_group=12,head_dim=80,state=24,chunk=64,half_rows=True,segments=2,D=none,tokens=185",
    "groups=8,heads_per_group=1,head_dim=64,state=128,chunk=128,half_rows=True,tokens=129,initial_states=True",
    "groups=1,heads_per_group=1,head_dim=128,state=256,chunk=64,segments=4,tokens=200,layout=fused_odd",
    "groups=3,heads_per_group=1,head_dim=3,state=1,segments=16,chunk=16,tokens=100,x=float32",
    "groups=1,heads_per_group=2,head_dim=192,state=96,small_tiles=True,tokens=70,x=float16,dt=x",
])  # fmt: skip
def test_shapes_of_real_models_and_odd_ones(text: str) -> None:
    testing.check(problems.parse(text))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("segments", [1, 4])
def test_every_regime(regime: str, segments: int) -> None:
    # three chunks and a tail, the last segment short
    model = Drawn(groups=2, heads_per_group=3, head_dim=20, state=24, segments=segments, half_rows=True)
    for tokens in (75, 100):
        testing.check(Problem(model, Call(batch=2, tokens=tokens, initial_states=True, regime=regime)))


def test_nothing_to_do() -> None:
    package = interpreted(Drawn().spec(), Drawn().lock())
    for batch, tokens in ((0, 5), (2, 0)):
        subject = Subject(package, Drawn().operator, 32)
        assert check.run(subject, Call(batch=batch, tokens=tokens, initial_states=True)).passed


def test_two_runs_are_equal_to_the_bit() -> None:
    import torch

    from ssmgen.verify.inputs import arguments

    model = Drawn(groups=2, heads_per_group=3, head_dim=20, state=24, segments=2)
    package = interpreted(model.spec(), model.lock())
    drawn = arguments(model.operator, Call(tokens=75))
    first, second = (package.mamba_chunk_scan_combined(**drawn, chunk_size=1) for _ in range(2))
    assert torch.equal(first, second)


# ruff: noqa: E501
MUTATIONS = {
    "the decay's sign": ("state", "ct.exp2(l_last - l_tile)", "ct.exp2(l_tile - l_last)"),
    "the carried state dropped": ("state", "h * ct.exp2(l_last)[:, None])", "h * 0.0)"),
    "the state undecayed": ("state", "h * ct.exp2(l_last)[:, None])", "h)"),
    "the state half decayed": ("state", "h * ct.exp2(l_last)[:, None])", "h * ct.exp2(l_last * 0.5)[:, None])"),
    "the state stored after a decay": ("state", "h_piece = h.astype", "h_piece = (h * 0.5).astype"),
    "no time step": ("state", "weight = dt_tile * ", "weight = "),
    "groups tiled": ("state", "i_head // HEADS_PER_GROUP", "i_head % 2"),
    "P and S swapped in the store": ("state", "order=(0, 1, 2, 4, 3))", "order=(0, 1, 2, 3, 4))"),
    "the first token's weight for all": ("state", "weight = dt_tile * ct.exp2(l_last - l_tile)",
                                         "weight = dt_tile * ct.exp2(l_last - ct.extract(l_tile, index=(0,), shape=(1,)))"),
    "one chunk too few": ("state", "n_chunks = ct.cdiv(x.shape[1], CHUNK)", "n_chunks = x.shape[1] // CHUNK"),
    "one chunk too many": ("state", "n_chunks = ct.cdiv(x.shape[1], CHUNK)", "n_chunks = x.shape[1] // CHUNK + 1"),
    "the last segment cut short": ("state", "min((i_segment + 1) * n_segment, n_chunks)", "(i_segment + 1) * n_segment - 1"),
    "groups swapped": ("output", "first_head // HEADS_PER_GROUP", "1 - first_head // HEADS_PER_GROUP"),
    "not causal": ("output", ">= token[None, :]", "> token[None, :] - ROWS"),
    "the diagonal masked": ("output", ">= token[None, :]", "> token[None, :]"),
    "no entering state": ("output", "y = ct.mma(c_tile{{ c_to_h }}, h.transpose(), y)", "y = y"),
    "the entering state undecayed": ("output", "y = y * ct.exp2(l_m)[:, None]", "y = y"),
    "the previous chunk's state": ("output", "at_state, state_piece = (i_batch, i_head, i_chunk, ",
                                   "at_state, state_piece = (i_batch, i_head, max(i_chunk - 1, 0), "),
    "the first half weighs on itself": ("output", "ct.where(i_before < i_rows, ", "ct.where(i_before <= i_rows, "),
    "no pairs with the first half": ("output", "y = ct.mma(pairs, x_before{{ x_to_scaled }}, y)", "y = y"),
    "no skip": ("output", "y = y + ct.load(d", "y = y + 0.0 * ct.load(d"),
    "the skip of another head": ("output", "ct.load(d, (i_head,), (1,))", "ct.load(d, (first_head,), (1,))"),
    "the tail unmasked": ("cumsum", "(token < dt.shape[1])", "(token < dt.shape[1] + CHUNK)"),
    "no bias": ("cumsum", "step = step + ct.load(dt_bias", "step = step + 0.0 * ct.load(dt_bias"),
    "no softplus": ("cumsum", "(step > 20.0, step, soft)", "(step > 20.0, step, step * step)"),
    "a softplus that overflows": ("cumsum", "(step > 20.0, step, soft)", "(step > 2000.0, step, soft)"),
    "no clamp of the step": ("cumsum", "ct.minimum(ct.maximum(step, dt_min, propagate_nan=True), dt_max, propagate_nan=True)", "step"),
    "no bound on the decay": ("cumsum", "ct.maximum(rate * step, MIN_LOG2_DECAY, propagate_nan=True)", "rate * step"),
    "natural logarithm": ("cumsum", "* LOG2E", "* 1.0"),
    "the sum one token late": ("cumsum", "MIN_LOG2_DECAY, propagate_nan=True), axis=0)",
                               "MIN_LOG2_DECAY, propagate_nan=True), axis=0) - rate * step"),
    "segments in the wrong order": ("combine", "+ end_{{ s }}", "+ end_{{ 1 - s }}"),
    "segments undecayed": ("combine", "h = h * ct.exp2(ct.extract(total, index=({{ s }},), shape=(1,)))", "h = h"),
    "decay since the wrong chunk": ("combine", "i_chunk * CHUNK - 1)", "i_chunk * CHUNK)"),
    "initial states ignored": ("combine", "if has_initial_states != 0:", "if has_initial_states == 2:"),
    "a block stores for two": ("combine", "if i_tile == 0:", "if i_tile >= 0:"),
    "padding left undetermined": ("output", "x_tile = ct.load(x, at_x, x_piece, padding_mode=ZERO, ", "x_tile = ct.load(x, at_x, x_piece, "),
}  # fmt: skip


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Templates with one edit."""
    stage, right, wrong = MUTATIONS[request.param]
    folder = tmp_path / "templates"
    shutil.copytree(paths.templates_dir(), folder)
    path = folder / "mamba2" / f"{stage}.py.jinja"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    monkeypatch.setattr(paths, "templates_dir", lambda: folder)
    render.environment.cache_clear()
    yield
    render.environment.cache_clear()


# halves of a chunk and segments both occur, the last of each is not full, and a head's state takes several tiles
MODEL = Drawn(
    groups=2, heads_per_group=3, head_dim=40, state=24, chunk=32, segments=2, half_rows=True, small_tiles=True
)
CALLS = (
    Call(batch=2, tokens=75, initial_states=True),
    Call(tokens=64),
    Call(tokens=100, initial_states=True),
    Call(tokens=50, regime="large_steps"),
    Call(tokens=50, regime="limited"),
    Call(tokens=75, regime="strong_decay"),
    Call(tokens=75, regime="enormous_token"),
)


# the sequential plan, and several heads a block
MODELS = (MODEL, replace(MODEL, segments=1), replace(MODEL, segments=1, small_tiles=False, head_dim=16))


def caught(model: Drawn, calls: tuple[Call, ...]) -> bool:
    package: Any = interpreted(model.spec(), model.lock())
    for call in calls:
        try:
            if not check.run(Subject(package, model.operator, model.chunk), call).passed:
                return True
        except SanitizerError:
            return True
    return False


def test_the_unbroken_templates_pass_what_catches_the_broken_ones() -> None:
    assert not any(caught(model, CALLS) for model in MODELS)


@pytest.mark.parametrize("broken", MUTATIONS, indirect=True)
def test_a_broken_template_is_found(broken: None) -> None:
    assert any(caught(model, CALLS) for model in MODELS)
