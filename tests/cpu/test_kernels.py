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
from ssmgen.verify.problems import CUTS, Call, Drawn, Problem

EXAMPLES = int(os.environ.get("SSMGEN_EXAMPLES", "25"))
SEED = os.environ.get("SSMGEN_SEED")


# parts, so that test processes share them
@pytest.mark.parametrize("x", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("segments", "packed"), [(1, False), (2, False), (1, True), (4, True)])
def test_drawn_problems(x: str, segments: int, packed: bool) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=SEED is None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(problem=testing.problems(x=x, segments=segments, packed=packed))
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
    "groups=1,heads_per_group=14,head_dim=80,state=100,packed=True,z=silu,D=per_channel,tokens=150,sequences=both,cuts=many,layout=fused_odd",
    "groups=2,heads_per_group=1,head_dim=9,state=17,chunk=64,packed=True,tokens=200,sequences=seq_idx,cuts=many,batch=2,initial_states=True",
    "groups=1,heads_per_group=16,head_dim=64,state=128,chunk=64,segments=8,packed=True,tokens=700,sequences=both,cuts=two,initial_states=True",
    "groups=1,heads_per_group=2,head_dim=128,state=256,chunk=64,segments=8,packed=True,tokens=250,sequences=cu_seqlens,cuts=empty,layout=fused_odd",
    "groups=8,heads_per_group=2,head_dim=64,state=128,chunk=128,half_rows=True,packed=True,tokens=300,sequences=both,cuts=many,initial_states=True",
    "groups=1,heads_per_group=4,head_dim=128,state=256,chunk=128,half_rows=True,packed=True,tokens=300,sequences=cu_seqlens,cuts=empty,z=silu",
    "groups=3,heads_per_group=1,head_dim=3,state=1,segments=16,chunk=16,packed=True,tokens=600,sequences=seq_idx,cuts=many,batch=2,x=float32,initial_states=True",
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


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("segments", [1, 2])
def test_every_regime_in_packed_rows(regime: str, cuts: str, segments: int) -> None:
    model = Drawn(groups=2, heads_per_group=3, head_dim=20, state=24, packed=True, z="silu", D="per_channel")
    # segments of several chunks, or chunks in halves
    model = replace(model, segments=segments, chunk=16) if segments > 1 else replace(model, half_rows=True)
    # by turns, so that each stands beside each
    turn = REGIMES.index(regime) + CUTS.index(cuts)
    call = Call(
        batch=2, tokens=(75, 100)[turn % 2], initial_states=turn % 4 > 0, regime=regime, cuts=cuts, seed=turn % 4
    )
    testing.check(Problem(model, replace(call, sequences=("cu_seqlens", "both", "seq_idx")[turn % 3])))


def test_nothing_to_do() -> None:
    model = Drawn(packed=True)
    subject = Subject(interpreted(model.spec(), model.lock()), model.operator, model.chunks)
    for batch, tokens, sequences in ((0, 5, "no"), (2, 0, "no"), (0, 5, "seq_idx"), (2, 0, "seq_idx"), (1, 0, "both")):
        call = Call(batch=batch, tokens=tokens, initial_states=True, sequences=sequences, cuts="empty")
        assert check.run(subject, call).passed


@pytest.mark.parametrize("sequences", ["no", "both"])
def test_two_runs_are_equal_to_the_bit(sequences: str) -> None:
    import torch

    from ssmgen.verify.inputs import arguments

    model = Drawn(groups=2, heads_per_group=3, head_dim=20, state=24, segments=2, packed=sequences != "no")
    package = interpreted(model.spec(), model.lock())
    drawn = arguments(model.operator, Call(tokens=75, sequences=sequences, cuts="two"))
    first, second = (package.mamba_chunk_scan_combined(**drawn, chunk_size=1) for _ in range(2))
    assert torch.equal(first, second)


# ruff: noqa: E501
MUTATIONS = {
    "the decay's sign": ("state", "ct.exp2(l_last - l_tile)", "ct.exp2(l_tile - l_last)"),
    "the carried state dropped": ("state", "h * {{ kept }}[:, None])", "h * 0.0)"),
    "the state undecayed": ("state", "h * {{ kept }}[:, None])", "h)"),
    "the state half decayed": ("state", "h * {{ kept }}[:, None])", "h * ct.exp2(l_last * 0.5)[:, None])"),
    "the state stored after a decay": ("state", "h_piece = h.astype", "h_piece = (h * 0.5).astype"),
    "no time step": ("state", "weight = dt_tile * ", "weight = "),
    "groups tiled": ("state", "i_head // HEADS_PER_GROUP", "i_head % 2"),
    "P and S swapped in the store": ("state", "order=(0, 1, 2, 4, 3))", "order=(0, 1, 2, 3, 4))"),
    "the first token's weight for all": ("state", "        weight = dt_tile * ct.exp2(l_last - l_tile)",
                                         "        weight = dt_tile * ct.exp2(l_last - ct.extract(l_tile, index=(0,), shape=(1,)))"),
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
    "the first half weighs on itself": ("_first_half", "ct.where({{ paired }}, ", "ct.where(i_before <= i_rows, "),
    "no pairs with the first half": ("_first_half", "y = ct.mma(pairs, x_before{{ x_to_scaled }}, y)", "y = y"),
    "no skip": ("output", "y = y + ct.load(d", "y = y + 0.0 * ct.load(d"),
    "the skip of another head": ("output", "ct.load(d, (i_head,), (1,))", "ct.load(d, (first_head,), (1,))"),
    "the tail unmasked": ("cumsum", "(token < dt.shape[1])", "(token < dt.shape[1] + CHUNK)"),
    "no bias": ("cumsum", "step = step + ct.load(dt_bias", "step = step + 0.0 * ct.load(dt_bias"),
    "no softplus": ("cumsum", "(step > 20.0, step, soft)", "(step > 20.0, step, step * step)"),
    "a softplus that overflows": ("cumsum", "(step > 20.0, step, soft)", "(step > 2000.0, step, soft)"),
    "no clamp of the step": ("cumsum", "ct.minimum(ct.maximum(step, dt_min, propagate_nan=True), dt_max, propagate_nan=True)", "step"),
    "no bound on the decay": ("cumsum", "ct.maximum(rate * step, MIN_LOG2_DECAY, propagate_nan=True)", "rate * step"),
    "natural logarithm": ("cumsum", "* LOG2E", "* 1.0"),
    "the sum one token late": ("cumsum", "ct.cumsum(decay, axis=0)", "ct.cumsum(decay, axis=0) - decay"),
    "segments in the wrong order": ("combine", "+ end_{{ s }}", "+ end_{{ 1 - s }}"),
    "segments undecayed": ("combine", "h = h * ct.exp2(ct.extract(total, index=({{ s }},), shape=(1,)))", "h = h"),
    "decay since the wrong chunk": ("combine", "i_chunk * CHUNK - 1)", "i_chunk * CHUNK)"),
    "initial states ignored": ("combine", "if has_initial_states != 0:", "if has_initial_states == 2:"),
    "a block stores for two": ("combine", "if i_tile == 0:", "if i_tile >= 0:"),
    "the gate without its sigmoid": ("_gate", "y * (gate / (1.0 + ct.exp(-gate)))", "y * gate"),
    "the gate of another head": ("_gate", "ct.load(z, (i_batch, i_rows, i_head, i_dim)", "ct.load(z, (i_batch, i_rows, first_head, i_dim)"),
    "the skip of another channel": ("output", "ct.load(d, (i_head, i_dim), ", "ct.load(d, (i_head, 0), "),
    "sequences run on": ("cumsum", "valid = token < end\n", "valid = token < n_tokens\n"),
    "an offset one off": ("cumsum", "(offset <= token[:, None])", "(offset < token[:, None])"),
    "a border is no start": ("cumsum", "offset > i_chunk * CHUNK)", "offset > i_chunk * CHUNK + 1)"),
    "one tile of offsets": ("cumsum", "range(ct.cdiv(n_sequences, SEQUENCE_TILE))", "range(1)"),
    "the initial state of an empty sequence": ("cumsum", "ct.max(ct.where(inside, i_sequence[None, :], -1), axis=1))", "ct.max(ct.where(inside, i_sequence[None, :], -1), axis=1) - 1)"),
    "the running sum never restarts": ("cumsum", "ct.where(start == row, 1, 0)", "ct.where(start == row, 0, 0)"),
    "the running sum restarts one late": ("cumsum", "ct.where(start == row, 1, 0)", "ct.where(start + 1 == row, 1, 0)"),
    "seq_idx compared with itself": ("cumsum", "(i_batch, token - 1), mask=inside)", "(i_batch, token), mask=inside)"),
    "seq_idx of the first row": ("cumsum", "own = ct.gather(seq_idx, (i_batch, token), mask", "own = ct.gather(seq_idx, (0, token), mask"),
    "the state of another sequence's tokens": ("state", "(row >= start) & (row <= last)", "(row <= last)"),
    "the state of tokens to come": ("state", "(row >= start) & (row <= last)", "(row >= start)"),
    "the state runs into the next sequence": ("state", "(start < 0) | (has_cu_seqlens != 0)", "(start < 0) | True"),
    "no state over a border": ("state", "(start < 0) | (has_cu_seqlens != 0)", "(start < 0)"),
    "an initial state in another's place": ("state", "i_chunk if i_chunk * CHUNK >= first else slot", "i_chunk"),
    "initial states of the first sequence": ("state", "at_end, end_piece = ({{ i_entry }}, i_head, i_state, i_dim), (1, 1, STATE_TILE, HEAD_DIM_TILE)\n        h =", "at_end, end_piece = (0, i_head, i_state, i_dim), (1, 1, STATE_TILE, HEAD_DIM_TILE)\n        h ="),
    "no state behind the last sequence": ("state", "if {{ stored }}:", "if slot < 0:"),
    "no state of an empty sequence": ("state", " | (end == first)", ""),
    "the state at another sequence's end": ("state", "(i_batch, i_head, at_last)).reshape", "(i_batch, i_head, i_chunk * CHUNK + CHUNK - 1)).reshape"),
    "an empty sequence takes a chunk": ("_span", "ct.cdiv(end, CHUNK) if end > first else first // CHUNK", "ct.cdiv(end, CHUNK) + (1 if end == first else 0)"),
    "every row enters with h": ("packed_output", "ct.where(start < 0, ct.exp2(l_tile{{ since_m }}), 0.0)", "ct.exp2(l_tile{{ since_m }})"),
    "pairs across sequences": ("packed_output", " & (row[None, :] >= start[:, None])", ""),
    "a sequence does not see its first token": ("packed_output", "row[None, :] >= start[:, None]", "row[None, :] > start[:, None]"),
    "one initial state too few": ("_begun", "range(first_entry, end_entry)", "range(first_entry + 1, end_entry)"),
    "initial states for all rows": ("_begun", "ct.where(which == i_entry, ct.exp2(l_tile), 0.0)", "ct.exp2(l_tile)"),
    "another sequence's initial state": ("_begun", "n_chunks + i_entry, i_dim", "n_chunks + first_entry, i_dim"),
    "output past the last sequence": ("packed_output", "skip * ct.where(start < ROWS, 1.0, 0.0)[:, None]", "skip * 1.0"),
    "pairs not causal": ("packed_output", "(row[:, None] >= row[None, :]) & ", ""),
    "starts counted from the chunk's first half": ("packed_output", "(1, ROWS)).reshape((ROWS,)){{ in_rows }}", "(1, ROWS)).reshape((ROWS,))"),
    "the packed first half weighs on itself": ("packed_output", "ct.where(i_before < i_rows, ct.gather(begin, (i_batch, at_m)), ROWS)", "ct.gather(begin, (i_batch, at_m))"),
    "pairs with another sequence's first half": ("_first_half", "ct.where({{ paired }}, dt_before * ct.exp2(l_m - l_before), 0.0)", "dt_before * ct.exp2(l_m - l_before)"),
    "h passes a start in the first half": ("packed_output", "ct.where((i_before < i_rows) & (start_m >= 0), 0.0, ct.exp2(l_m))", "ct.exp2(l_m)"),
    "h undecayed over the first half": ("packed_output", "0.0, ct.exp2(l_m))", "0.0, 1.0)"),
    "the first half decays for itself": ("packed_output", "l_m = ct.where(i_before < i_rows, ct.gather(log_decay, (i_batch, i_head, at_m)), 0.0)", "l_m = ct.gather(log_decay, (i_batch, i_head, at_m))"),
    "exponents that overflow": ("packed_output", "ct.exp2(ct.minimum(l_tile[:, None] - l_tile[None, :], 0.0))", "ct.exp2(l_tile[:, None] - l_tile[None, :])"),
    "initial states not brought": ("packed_output", "begun(i_head, i_dim, l_tile, y))", "y)"),
    "no packed gate": ("packed_output", '# % include "mamba2/_gate.py.jinja"\n', ""),
    "the packed skip of another channel": ("packed_output", "ct.load(d, (i_head, i_dim), ", "ct.load(d, (i_head, 0), "),
    "a state that nobody stored": ("packed_output", "ct.where(ct.min(start) < ROWS, i_chunk, n_chunks)", "i_chunk"),
    "padding left undetermined": ("output", "x_tile = ct.load(x, at_x, x_piece, padding_mode=ZERO, ", "x_tile = ct.load(x, at_x, x_piece, "),
}  # fmt: skip
# of packed rows in segments
SPLIT_MUTATIONS = {
    "a last empty sequence has no segment": ("_span", "min(first // CHUNK, n_chunks - 1) // n_segment", "first // CHUNK // n_segment"),
    "an empty sequence has no segment": ("_span", "max((n_met - 1) // n_segment, first_segment)", "(n_met - 1) // n_segment"),
    "a segment too many": ("_span", "(n_met - 1) // n_segment", "n_met // n_segment"),
    "every sequence starts in the first segment": ("state", "starts = i_segment == first_segment", "starts = i_segment == 0"),
    "every segment has the initial state": ("state", "if {{ starts }}:", "if has_initial_states != 0:"),
    "no initial state behind the chunks": ("state", "if {{ stored }}:", "if i_segment < 0:"),
    "chunks before the sequence": ("state", "max(first // CHUNK, i_segment * n_segment)", "i_segment * n_segment"),
    "chunks before the segment": ("state", "max(first // CHUNK, i_segment * n_segment)", "first // CHUNK"),
    "chunks behind the sequence": ("state", "min((i_segment + 1) * n_segment, n_met)", "(i_segment + 1) * n_segment"),
    "chunks behind the segment": ("state", "min((i_segment + 1) * n_segment, n_met)", "n_met"),
    "segments of all sequences in one place": ("state", "slot - n_chunks + i_segment", "i_segment"),
    "a state of segments before the sequence": ("state", "(i_segment >= first_segment) & ", ""),
    "a state of segments behind the sequence": ("state", " & (i_segment <= last_segment)", ""),
    "the first segment of the first sequence": ("combine", "slot - n_chunks + first_segment", "first_segment"),
    "segments of the first sequence": ("combine", "slot - n_chunks + max(", "max("),
    "segments before the sequence": ("combine", "max(min({{ s }}, last_segment), first_segment)", "min({{ s }}, last_segment)"),
    "segments behind the sequence": ("combine", "max(min({{ s }}, last_segment), first_segment)", "max({{ s }}, first_segment)"),
    "nobody tells of the chunks behind the last": ("combine", "n_chunks if (has_cu_seqlens != 0) & (i_entry + 2 == cu_seqlens.shape[0]) else n_met", "n_met"),
    "everybody tells of the chunks behind the last": ("combine", "(has_cu_seqlens != 0) & (i_entry + 2 == cu_seqlens.shape[0])", "(has_cu_seqlens != 0)"),
    "what enters the first segment": ("combine", "(i_segment > first_segment)", "(i_segment >= first_segment)"),
    "decay behind the sequence": ("combine", "ct.minimum(i_chunk * CHUNK + CHUNK, end) - 1", "i_chunk * CHUNK + CHUNK - 1"),
    "decay of chunks behind the sequence": ("combine", " & (i_chunk < n_met)", " & (i_chunk < n_chunks)"),
    "a segment's state passes a change": ("combine", "padding_value=-1) < 0, own, CLEARED)", "padding_value=-1) < 0, own, own)"),
    "a chunk's input passes a change": ("combine", "ct.where(start < 0, previous, CLEARED)", "previous"),
    "changes where there is no chunk": ("combine", "mask=inside, padding_value=-1)", "mask=inside)"),
    "changes before the segment": ("combine", "mask=after, padding_value=-1)", "mask=after)"),
    "decay before the segment": ("combine", "after = inside & (nth > 0)", "after = inside"),
    "changes of the first row": ("combine", "ct.gather(begin, (i_batch, last)", "ct.gather(begin, (0, last)"),
    "changes of the first row before a chunk": ("combine", "ct.gather(begin, (i_batch, i_chunk", "ct.gather(begin, (0, i_chunk"),
    "what enters where nothing does": ("combine", "ct.where(inside, before[:, None] + ct.cumsum(previous, axis=1), CLEARED)", "before[:, None] + ct.cumsum(previous, axis=1)"),
    "a chunk that the sequence starts inside": ("combine", "ct.cdiv(first, CHUNK)", "first // CHUNK"),
    "chunks told by any sequence": ("combine", "(i_chunk >= ct.cdiv(first, CHUNK)) & ", ""),
    "decays of the last tile alone": ("combine", "total = total + ct.sum", "total = ct.sum"),
    "decays since a tile's start": ("combine", "before = before + ct.sum(previous, axis=1)", "before = before"),
    "inputs in one place": ("combine", "inputs + {{ s }}", "inputs"),
    "a sequence enters segments before it": ("combine", "(first_segment < {{ s }}) & ", ""),
    "a sequence enters segments behind it": ("combine", " & (last_segment >= {{ s }})", ""),
    "another segment's input": ("packed_output", "SEGMENTS + i_chunk // ct.cdiv(n_chunks, SEGMENTS)", "SEGMENTS + i_chunk // ct.cdiv(n_chunks, SEGMENTS) - 1"),
    "inputs that nobody stored": ("packed_output", "i_input = ct.where(", "_ = ct.where("),
    "no input": ("packed_output", "> {{ cleared }}, i_input, slot)", "> 0.0, i_input, slot)"),
    "the input undecayed": ("packed_output", "none) * ct.exp2(since_start)", "none)"),
    "the input decayed as another head's": ("packed_output", "ct.gather(chunk_decay, (i_batch, i_head, i_chunk))", "ct.gather(chunk_decay, (i_batch, first_head, i_chunk))"),
    "the input dropped": ("packed_output", "h.transpose(), {{ entered }})", "h.transpose(), none)"),
}  # fmt: skip


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Templates with one edit."""
    stage, right, wrong = (MUTATIONS | SPLIT_MUTATIONS)[request.param]
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
MODELS = (
    MODEL,
    replace(MODEL, segments=1, z="silu", D="per_channel"),
    replace(MODEL, segments=1, small_tiles=False, head_dim=16, z="silu"),
)
# rows of packed sequences: starts inside chunks and on borders, empty ones, rows behind them
PACKED_MODEL = replace(MODEL, segments=1, packed=True, z="silu", D="per_channel")
PACKED_CALLS = (
    Call(tokens=100, initial_states=True, sequences="cu_seqlens", cuts="many"),
    Call(tokens=100, sequences="cu_seqlens", cuts="short"),
    Call(tokens=75, initial_states=True, sequences="cu_seqlens", cuts="empty", seed=1),
    Call(tokens=96, initial_states=True, sequences="cu_seqlens", cuts="borders"),
    Call(batch=2, tokens=100, initial_states=True, sequences="seq_idx", cuts="many"),
    Call(tokens=100, sequences="cu_seqlens", cuts="two", regime="strong_decay"),
)


# segments of two chunks, the last of one: sequences of less than a chunk and of several segments, borders of segments
SPLIT_MODEL = replace(PACKED_MODEL, segments=4, chunk=16, head_dim=20, state=12)
SPLIT_CALLS = (
    Call(tokens=100, initial_states=True, sequences="both", cuts="two", regime="mixed_horizons", seed=1),
    Call(batch=2, tokens=100, initial_states=True, sequences="seq_idx", cuts="two", regime="mixed_horizons"),
    Call(tokens=128, initial_states=True, sequences="cu_seqlens", cuts="empty", regime="mixed_horizons", seed=2),
    Call(tokens=100, sequences="cu_seqlens", cuts="short", regime="mixed_horizons"),
    Call(tokens=96, initial_states=True, sequences="cu_seqlens", cuts="borders"),
    # fewer chunks than segments
    Call(tokens=33, initial_states=True, sequences="cu_seqlens", cuts="two"),
    Call(batch=2, tokens=100, sequences="seq_idx", cuts="many", regime="strong_decay"),
)


SUITE = (
    *((model, CALLS) for model in MODELS),
    (PACKED_MODEL, PACKED_CALLS),
    (SPLIT_MODEL, SPLIT_CALLS),
    # several heads a block
    (replace(SPLIT_MODEL, small_tiles=False), SPLIT_CALLS[:3]),
    # more chunks in a segment than one tile of decays holds
    (
        Drawn(packed=True, head_dim=8, state=1, chunk=16, segments=2),
        (Call(tokens=2500, initial_states=True, sequences="both", regime="mixed_horizons"),),
    ),
    # more sequences than one tile of offsets holds
    (Drawn(packed=True, head_dim=8, state=1), (Call(tokens=800, sequences="cu_seqlens", cuts="many"),)),
)


def caught(model: Drawn, calls: tuple[Call, ...]) -> bool:
    package: Any = interpreted(model.spec(), model.lock())
    for call in calls:
        try:
            if not check.run(Subject(package, model.operator, model.chunks), call).passed:
                return True
        except (SanitizerError, AssertionError):
            return True
    return False


def test_the_unbroken_templates_pass_what_catches_the_broken_ones() -> None:
    assert not any(caught(model, calls) for model, calls in SUITE)


@pytest.mark.parametrize("broken", MUTATIONS, indirect=True)
def test_a_broken_template_is_found(broken: None) -> None:
    assert any(caught(model, calls) for model, calls in SUITE)


@pytest.mark.parametrize("broken", SPLIT_MUTATIONS, indirect=True)
def test_a_broken_template_of_packed_segments_is_found(broken: None) -> None:
    assert any(caught(model, calls) for model, calls in SUITE if model.packed and model.segments > 1)
