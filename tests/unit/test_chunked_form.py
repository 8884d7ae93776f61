"""The chunked form that the kernels compute equals the recurrence: proven on small symbolic sequences, with sympy.

Log decays, steps, activations and the initial state are symbols, so an equality holds for every value of them. The
formulas are those of the templates' docstrings; tests/cpu/test_kernels.py shows that the kernels compute them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import sympy as sp

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
