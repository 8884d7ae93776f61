"""The chunked form that the kernels compute equals the recurrence: proven on small symbolic sequences, with sympy.

Log decays, steps, activations and the initial state are symbols, so an equality holds for every value of them. The
formulas are those of the templates' docstrings; tests/cpu/test_kernels.py shows that the kernels compute them.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy as sp

from ssmgen import plans, render, spec
from ssmgen.stages import STAGES
from ssmgen.targets import target

HEAD_DIM, STATE = 2, 2


@dataclass(frozen=True)
class Sequence:
    """Log2 decays and steps by token, x (P,), B and C (S,) by token, D, and the state before the first."""

    decay: tuple[sp.Symbol, ...]
    step: tuple[sp.Symbol, ...]
    x: tuple[sp.Matrix, ...]
    b: tuple[sp.Matrix, ...]
    c: tuple[sp.Matrix, ...]
    skip: sp.Symbol
    initial: sp.Matrix

    @property
    def tokens(self) -> int:
        return len(self.decay)


def sequence(tokens: int) -> Sequence:
    def vector(name: str, length: int, t: int) -> sp.Matrix:
        return sp.Matrix(sp.symbols(f"{name}{t}_:{length}"))

    return Sequence(
        sp.symbols(f"a:{tokens}"),
        sp.symbols(f"s:{tokens}"),
        tuple(vector("x", HEAD_DIM, t) for t in range(tokens)),
        tuple(vector("b", STATE, t) for t in range(tokens)),
        tuple(vector("c", STATE, t) for t in range(tokens)),
        sp.Symbol("D"),
        sp.Matrix(HEAD_DIM, STATE, sp.symbols(f"h:{HEAD_DIM * STATE}")),
    )


def two_to(exponent: sp.Expr) -> sp.Expr:
    return sp.exp(exponent * sp.log(2))


def recurrence(q: Sequence) -> tuple[list[sp.Matrix], sp.Matrix]:
    """h_t = 2^a_t h_(t-1) + dt'_t x_t B_t^T, y_t = h_t C_t + D x_t."""
    h, outputs = q.initial, []
    for t in range(q.tokens):
        h = two_to(q.decay[t]) * h + q.step[t] * q.x[t] * q.b[t].T
        outputs.append(h * q.c[t] + q.skip * q.x[t])
    return outputs, h


def log_decay(q: Sequence, chunk: int) -> list[sp.Expr]:
    """L: the running sum of log2 decays, anew in each chunk."""
    return [sum(q.decay[t - t % chunk : t + 1], sp.Integer(0)) for t in range(q.tokens)]


def next_state(q: Sequence, h: sp.Matrix, rows: range, running: list[sp.Expr]) -> sp.Matrix:
    last = running[rows[-1]]
    own = sp.zeros(HEAD_DIM, STATE)
    for j in rows:
        own += two_to(last - running[j]) * q.step[j] * q.x[j] * q.b[j].T
    return two_to(last) * h + own


def pair(q: Sequence, i: int, j: int) -> sp.Expr:
    return (q.c[i].T * q.b[j])[0] * q.step[j]


def chunked(q: Sequence, chunk: int, halves: bool) -> tuple[list[sp.Matrix], sp.Matrix]:
    """What `state` and `output` compute: with `halves`, the pairs of a chunk's second half with its first factored."""
    running, h, outputs = log_decay(q, chunk), q.initial, []
    for first in range(0, q.tokens, chunk):
        rows = range(first, min(first + chunk, q.tokens))
        for i in rows:
            middle = first + chunk // 2
            factored = halves and i >= middle
            at_m = running[middle - 1] if factored else sp.Integer(0)
            y = two_to(at_m) * (h * q.c[i])
            for j in rows:
                if factored and j < middle:
                    y += two_to(at_m - running[j]) * pair(q, i, j) * q.x[j]
            y = two_to(running[i] - at_m) * y
            for j in rows:
                if (middle if factored else first) <= j <= i:
                    y += two_to(running[i] - running[j]) * pair(q, i, j) * q.x[j]
            outputs.append(y + q.skip * q.x[i])
        h = next_state(q, h, rows, running)
    return outputs, h


def segmented(q: Sequence, chunk: int, segments: int) -> tuple[list[sp.Matrix], sp.Matrix]:
    """What `state`, `combine` and `output` compute: each segment from a zero state, what enters it added where used."""
    running, chunks = log_decay(q, chunk), -(-q.tokens // chunk)
    per_segment = -(-chunks // segments)
    outputs, entering = [], q.initial
    for segment in range(segments):
        h, since_start = sp.zeros(HEAD_DIM, STATE), sp.Integer(0)
        for k in range(segment * per_segment, min((segment + 1) * per_segment, chunks)):
            rows = range(k * chunk, min(k * chunk + chunk, q.tokens))
            for i in rows:
                y = two_to(running[i]) * (two_to(since_start) * (entering * q.c[i]) + h * q.c[i])
                for j in range(rows[0], i + 1):
                    y += two_to(running[i] - running[j]) * pair(q, i, j) * q.x[j]
                outputs.append(y + q.skip * q.x[i])
            h = next_state(q, h, rows, running)
            since_start += running[rows[-1]]
        entering = two_to(since_start) * entering + h
    return outputs, entering


def zero(difference: sp.Matrix) -> bool:
    return all(sp.expand(sp.powsimp(sp.expand(entry))) == 0 for entry in difference)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("chunk", "halves"), [(2, False), (4, False), (4, True)])
def test_chunks_equal_the_recurrence(tokens: int, chunk: int, halves: bool) -> None:
    q = sequence(tokens)
    expected, state = recurrence(q)
    outputs, end = chunked(q, chunk, halves)
    assert all(zero(y - e) for y, e in zip(outputs, expected, strict=True))
    assert zero(end - state)


@pytest.mark.parametrize("tokens", [1, 3, 5, 6])
@pytest.mark.parametrize("segments", [2, 4])
def test_segments_equal_the_recurrence(tokens: int, segments: int) -> None:
    q = sequence(tokens)
    expected, state = recurrence(q)
    outputs, end = segmented(q, 2, segments)
    assert all(zero(y - e) for y, e in zip(outputs, expected, strict=True))
    assert zero(end - state)


def test_the_proof_sees_a_wrong_form() -> None:
    q = sequence(3)
    expected, _ = recurrence(q)
    outputs, _ = chunked(q, 2, halves=False)
    assert not zero(outputs[2] - expected[2] - q.step[1] * q.x[1])
    assert not zero(outputs[2].subs(q.decay[1], 2 * q.decay[1]) - expected[2])


PACKED = """\
schema: 1
model: {name: packed, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 4, groups: 2, head_dim: 16, state: 16}
    dtypes: {x: float32, dt: float32, chunk_state: float32, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime, packed: true}
    routes:
      all: {when: "B >= 1", plan: three_stage}
      packed: {when: "B >= 1", plan: packed}
targets: [sm_90]
"""
Sums = tuple[int, Any]
"""Whether a sequence starts in a stretch, and the sum since its last start."""


def _restarting_sum() -> Callable[..., Sums]:
    """The function of the generated kernel itself, on numbers and symbols."""
    operator = spec.loads(PACKED, Path("packed.yaml")).operators.mamba_chunk_scan_combined
    assert operator is not None
    schedule = plans.derive("packed", operator, "packed", target("sm_90"))
    problem = plans.problem("packed", operator, target("sm_90"), plans.PLANS["packed"], schedule.plan)
    stage = STAGES["cumsum"]
    text = render.render(stage.template, stage.context(schedule.stage("cumsum"), problem))
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "restarting_sum"]
    names = {"ct": SimpleNamespace(maximum=max, where=lambda condition, one, other: one if condition else other)}
    exec(compile(ast.Module(functions, []), "cumsum.py", "exec"), names)
    found: Any = names["restarting_sum"]
    return found


restarting_sum = _restarting_sum()


def scanned(rows: list[Sums]) -> list[Sums]:
    """Running sums that restart, one row after another."""
    return list(itertools.accumulate(rows, lambda total, row: restarting_sum(*total, *row)))


def bracketings(rows: list[Sums]) -> list[Sums]:
    """The sum of all rows in every order in which neighbours can be combined."""
    if len(rows) == 1:
        return rows
    return [
        restarting_sum(*one, *other)
        for cut in range(1, len(rows))
        for one in bracketings(rows[:cut])
        for other in bracketings(rows[cut:])
    ]


@dataclass(frozen=True)
class Packed:
    """What `cumsum` tells of rows of sequences, by token: L, where in the chunk its sequence starts (-1: it came in;
    `chunk`: past the last), and whose initial state it starts from."""

    running: list[sp.Expr]
    start: list[int]
    which: list[int]


def told(q: Sequence, chunk: int, offsets: tuple[int, ...], by_offsets: bool) -> Packed:
    """`cumsum`: sequence n has the tokens from offsets[n] to offsets[n + 1], those past the last have no step."""
    start, which, running = [], [], []
    for first in range(0, q.tokens, chunk):
        rows = range(first, min(first + chunk, q.tokens))
        for t in rows:
            # where offsets say so, a chunk's first token finds its state at the chunk's start; a change clears it there
            before = first if by_offsets else max(first - 1, 0)
            inside = [n for n, at in enumerate(offsets[:-1]) if before < at <= t]
            past = t >= offsets[-1]
            start.append(chunk if past else max((offsets[n] - first for n in inside), default=-1))
            which.append(max(inside, default=-1) if by_offsets and not past else -1)
        decays = [q.decay[t] if start[t] < chunk else sp.Integer(0) for t in rows]
        sums = [(int(start[t] == t - first), decay) for t, decay in zip(rows, decays, strict=True)]
        running += [total for _, total in scanned(sums)]
    return Packed(running, start, which)


def met(span: tuple[int, int], chunk: int) -> range:
    """The chunks that a sequence has tokens in."""
    first, end = span
    return range(first // chunk, -(-end // chunk) if end > first else first // chunk)


def own_part(q: Sequence, by_token: Packed, first: int, at_last: int) -> sp.Matrix:
    """What a chunk's tokens of one sequence, up to its last there, add to the state; the chunk starts at `first`."""
    own, last = sp.zeros(HEAD_DIM, STATE), by_token.running[at_last]
    for j in range(first + max(by_token.start[at_last], 0), at_last + 1):
        own += two_to(last - by_token.running[j]) * q.step[j] * q.x[j] * q.b[j].T
    return own


@dataclass(frozen=True)
class Cut:
    """How a row is cut, and whether offsets say where sequences start."""

    chunk: int
    segments: int
    by_offsets: bool = True


def carried(
    q: Sequence, chunk: int, by_token: Packed, span: tuple[int, int], initial: sp.Matrix, by_offsets: bool
) -> tuple[dict[int, sp.Matrix], sp.Matrix]:
    """`state`: one block's walk over `span`; the states that it stores by chunk, and the one at its end."""
    (first, end), h, stored = span, initial, {}
    for k in met(span, chunk):
        if k * chunk >= first:
            stored[k] = h
        at_last = min(end, k * chunk + chunk) - 1
        kept = two_to(by_token.running[at_last]) if by_token.start[at_last] < 0 or by_offsets else sp.Integer(0)
        h = kept * h + own_part(q, by_token, k * chunk, at_last)
    return stored, h


def in_segments(
    q: Sequence, cut: Cut, by_token: Packed, span: tuple[int, int], initial: sp.Matrix
) -> tuple[dict[int, sp.Matrix], sp.Matrix]:
    """`state` and `combine`: the same in segments, from a zero state each but where the sequence starts.

    The states by chunk are as `packed_output` takes them: what entered the segment added, scaled by the decay since.
    """
    chunks, stored = -(-q.tokens // cut.chunk), {}
    n_segment = -(-chunks // cut.segments)
    walk = met(span, cut.chunk)
    first_segment = min(walk.start, chunks - 1) // n_segment
    last_segment = max((walk.stop - 1) // n_segment, first_segment)
    # the state of whoever meets no chunk at all
    entering = initial
    for segment in range(first_segment, last_segment + 1):
        starts = segment == first_segment
        h, since = (initial if starts else sp.zeros(HEAD_DIM, STATE)), sp.Integer(int(not starts))
        for k in range(max(walk.start, segment * n_segment), min(segment * n_segment + n_segment, walk.stop)):
            if k * cut.chunk >= span[0]:
                stored[k] = h + since * entering
            at_last = min(span[1], k * cut.chunk + cut.chunk) - 1
            unchanged = by_token.start[at_last] < 0
            decay = two_to(by_token.running[at_last])
            h = (decay if unchanged or cut.by_offsets else 0) * h + own_part(q, by_token, k * cut.chunk, at_last)
            # combine asks only whether a sequence starts: of offsets none does where something entered the segment
            since *= decay if unchanged else 0
        entering = since * entering + h
    return stored, entering


def packed_outputs(
    q: Sequence, chunk: int, by_token: Packed, states: dict[int, sp.Matrix], initial: list[sp.Matrix]
) -> list[sp.Matrix]:
    """`packed_output`: what entered the chunk, or an own initial state, and the tokens of the same sequence."""
    outputs = []
    for i in range(q.tokens):
        first, at = i - i % chunk, by_token.running[i]
        y = sp.zeros(HEAD_DIM, 1)
        if by_token.start[i] < 0:
            y += two_to(at) * (states[i // chunk] * q.c[i])
        for j in range(first, i + 1):
            if j - first >= by_token.start[i]:
                y += two_to(at - by_token.running[j]) * pair(q, i, j) * q.x[j]
        if by_token.which[i] >= 0:
            y += two_to(at) * (initial[by_token.which[i]] * q.c[i])
        outputs.append(y + (q.skip * q.x[i] if by_token.start[i] < chunk else sp.zeros(HEAD_DIM, 1)))
    return outputs


def offsets_form(
    q: Sequence, chunk: int, offsets: tuple[int, ...], initial: list[sp.Matrix], segments: int = 1
) -> tuple[list[sp.Matrix], list[sp.Matrix]]:
    """A packed plan with cu_seqlens: outputs by token, final states by sequence."""
    by_token = told(q, chunk, offsets, by_offsets=True)
    states: dict[int, sp.Matrix] = {}
    ends = []
    for n, span in enumerate(itertools.pairwise(offsets)):
        if segments > 1:
            stored, end = in_segments(q, Cut(chunk, segments), by_token, span, initial[n])
        else:
            stored, end = carried(q, chunk, by_token, span, initial[n], by_offsets=True)
        # two blocks never store one chunk's state
        assert not states.keys() & stored.keys()
        states |= stored
        ends.append(end)
    return packed_outputs(q, chunk, by_token, states, initial), ends


def changes_form(
    q: Sequence, chunk: int, offsets: tuple[int, ...], segments: int = 1
) -> tuple[list[sp.Matrix], sp.Matrix]:
    """A packed plan with seq_idx: only the row has an initial state, and only its last sequence a final one."""
    by_token = told(q, chunk, offsets, by_offsets=False)
    if segments > 1:
        states, end = in_segments(q, Cut(chunk, segments, by_offsets=False), by_token, (0, q.tokens), q.initial)
    else:
        states, end = carried(q, chunk, by_token, (0, q.tokens), q.initial, by_offsets=False)
    return packed_outputs(q, chunk, by_token, states, []), end


def part(q: Sequence, first: int, end: int, initial: sp.Matrix) -> Sequence:
    """One sequence of a row."""
    of = {name: getattr(q, name)[first:end] for name in ("decay", "step", "x", "b", "c")}
    return replace(q, **of, initial=initial)


def one_by_one(
    q: Sequence, offsets: tuple[int, ...], initial: list[sp.Matrix]
) -> tuple[list[sp.Matrix], list[sp.Matrix]]:
    """The recurrence of each sequence on its own; nothing past the last."""
    outputs, ends = [], []
    for (first, end), h in zip(itertools.pairwise(offsets), initial, strict=True):
        own, state = recurrence(part(q, first, end, h))
        outputs += own
        ends.append(state)
    return outputs + [sp.zeros(HEAD_DIM, 1)] * (q.tokens - offsets[-1]), ends


def initial_states(count: int) -> list[sp.Matrix]:
    return [sp.Matrix(HEAD_DIM, STATE, sp.symbols(f"h{n}_:{HEAD_DIM * STATE}")) for n in range(count)]


TOKENS = 5
BOUNDARIES = [inner for count in range(TOKENS) for inner in itertools.combinations(range(1, TOKENS), count)]
"""Every way to cut a row, a boundary at each place inside it or not."""


def test_the_combine_of_restarting_sums_is_associative() -> None:
    totals = sp.symbols("p q r")
    for flags in itertools.product((0, 1), repeat=3):
        one, two, three = zip(flags, totals, strict=True)
        left = restarting_sum(*restarting_sum(*one, *two), *three)
        right = restarting_sum(*one, *restarting_sum(*two, *three))
        assert left[0] == right[0] == max(flags)
        assert sp.expand(left[1] - right[1]) == 0
        # what the scan is started from changes nothing
        assert restarting_sum(0, sp.Integer(0), *one) == one


def test_restarting_sums_are_those_since_the_last_start() -> None:
    decays = sp.symbols(f"a:{TOKENS}")
    for flags in itertools.product((0, 1), repeat=TOKENS):
        rows = list(zip(flags, decays, strict=True))
        for t, (_, total) in enumerate(scanned(rows)):
            since = max((at for at in range(t + 1) if flags[at]), default=0)
            assert sp.expand(total - sum(decays[since : t + 1])) == 0
        # the hardware chooses the order
        assert len({(first, sp.expand(total)) for first, total in bracketings(rows)}) == 1


CUT = pytest.mark.parametrize(("chunk", "segments"), [(2, 1), (4, 1), (2, 2), (2, 4), (4, 2)])


@CUT
@pytest.mark.parametrize("inner", BOUNDARIES, ids=str)
def test_packed_sequences_equal_each_ones_recurrence(chunk: int, segments: int, inner: tuple[int, ...]) -> None:
    q, offsets = sequence(TOKENS), (0, *inner, TOKENS)
    initial = initial_states(len(offsets) - 1)
    expected, ends = one_by_one(q, offsets, initial)
    outputs, states = offsets_form(q, chunk, offsets, initial, segments)
    assert all(zero(y - e) for y, e in zip(outputs, expected, strict=True))
    assert all(zero(h - e) for h, e in zip(states, ends, strict=True))


@CUT
@pytest.mark.parametrize("offsets", [
    (0, 0, 5), (0, 5, 5), (0, 3, 3, 5), (0, 2, 2, 5), (0, 4, 4, 4, 5), (0, 3), (0, 1, 4), (0, 4, 4), (0, 2), (0, 0),
], ids=str)  # fmt: skip
def test_empty_sequences_and_tokens_past_the_last(chunk: int, segments: int, offsets: tuple[int, ...]) -> None:
    q, initial = sequence(TOKENS), initial_states(len(offsets) - 1)
    expected, ends = one_by_one(q, offsets, initial)
    outputs, states = offsets_form(q, chunk, offsets, initial, segments)
    assert all(zero(y - e) for y, e in zip(outputs, expected, strict=True))
    assert all(zero(h - e) for h, e in zip(states, ends, strict=True))


@CUT
@pytest.mark.parametrize("inner", BOUNDARIES, ids=str)
def test_changes_of_sequence_equal_each_ones_recurrence(chunk: int, segments: int, inner: tuple[int, ...]) -> None:
    q, offsets = sequence(TOKENS), (0, *inner, TOKENS)
    initial = [q.initial, *[sp.zeros(HEAD_DIM, STATE)] * len(inner)]
    expected, ends = one_by_one(q, offsets, initial)
    outputs, state = changes_form(q, chunk, offsets, segments)
    assert all(zero(y - e) for y, e in zip(outputs, expected, strict=True))
    assert zero(state - ends[-1])


def test_the_proof_of_packed_segments_sees_a_wrong_form() -> None:
    q, offsets, initial = sequence(TOKENS), (0, 1, TOKENS), initial_states(2)
    _, ends = one_by_one(q, offsets, initial)
    right, cut = told(q, 2, offsets, by_offsets=True), Cut(2, 2)
    _, end = in_segments(q, cut, right, (1, TOKENS), initial[1])
    assert zero(end - ends[1])
    # another initial state, and a decay that passes a change of sequence
    _, end = in_segments(q, cut, right, (1, TOKENS), initial[0])
    assert not zero(end - ends[1])
    by_change = told(q, 2, (0, 3, TOKENS), by_offsets=False)
    leaking = replace(by_change, start=[-1] * TOKENS)
    one, other = (
        in_segments(q, replace(cut, by_offsets=False), t, (0, TOKENS), q.initial) for t in (by_change, leaking)
    )
    assert not zero(one[1] - other[1])


def test_the_packed_proof_sees_a_wrong_form() -> None:
    q, offsets, initial = sequence(TOKENS), (0, 3, TOKENS), initial_states(2)
    expected, ends = one_by_one(q, offsets, initial)
    right = told(q, 4, offsets, by_offsets=True)
    states, _ = carried(q, 4, right, (0, 3), initial[0], by_offsets=True)
    second, _ = carried(q, 4, right, (3, 5), initial[1], by_offsets=True)
    # sums that do not restart, a state that another sequence sees, and one that it started from forgotten
    unbroken = replace(right, running=log_decay(q, 4))
    leaking = replace(right, start=[-1] * TOKENS)
    forgetful = replace(right, which=[-1] * TOKENS)
    for wrong in (unbroken, leaking, forgetful):
        outputs = packed_outputs(q, 4, wrong, states | second, initial)
        assert not zero(outputs[3] - expected[3])
    _, end = carried(q, 4, right, (3, 5), initial[1], by_offsets=False)
    assert not zero(end - ends[1])
