"""What an honest kernel at these dtypes makes of a call: values, and the deviations that its roundings give them.

It evaluates the chunked form in fp64 and rounds only where a kernel at these dtypes cannot avoid it: operands of
the matrix products, stored chunk states, the output. Beside each value it carries the deviation that those roundings
give it, each taken as independent and uniform (Higham, Accuracy and Stability of Numerical Algorithms, §2.8):
squares of the same products, multiplied by the variance of one rounding. Where terms cancel, that grows with the terms
and not with their sum, and it stays right for a problem of one token and one lane, where a single honest evaluation may
be exact by luck. The decay is fp32 in its exponents, as in any kernel, and never rounded further.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ssmgen.reference.mamba_chunk_scan_combined import pieces, silu, starts, time_step
from ssmgen.reference.tolerance import FP32, MAX_LOG2_DECAY, OPERAND, STORED, UNDERFLOW

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Honest:
    """Output (B, T, H, P) and the states of all rows or sequences, honestly evaluated, and their deviations; fp64."""

    out: Tensor
    state: Tensor
    out_sigma: Tensor
    state_sigma: Tensor


def honest_evaluation(  # noqa: PLR0913 - the arguments of the operator it evaluates
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    *,
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    chunk: int = 64,
    chunk_state: torch.dtype | None = None,
) -> Honest:
    """The honest evaluation; arguments as the reference's.

    bfloat16 activations round to bfloat16; float16 and float32 to tfloat32, in which their products run. `chunk_state`
    is the dtype of stored chunk states, by default bfloat16 for bfloat16 activations and otherwise float32. Chunks of
    packed sequences are those of their row: one that starts inside has part of it, and its initial state stored there.
    """
    stored = chunk_state or (torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)
    heads = x.shape[2]
    group = torch.arange(heads, device=x.device) // (heads // B.shape[2])
    step = time_step(dt, dt_bias, dt_softplus, dt_limit)
    roundings = _roundings(x.dtype, stored)
    entries = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    final = _Value(*(torch.zeros((entries, heads, x.shape[3], B.shape[3])).double().to(x.device) for _ in range(2)))
    if initial_states is not None:
        final.mean.copy_(initial_states)
    y = _Value(*(torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(2)))
    for run in _runs(x, seq_idx, cu_seqlens):
        carried = final.at(run.entries)
        if run.from_nothing:
            carried = _Value(torch.zeros_like(carried.mean), torch.zeros_like(carried.variance))
        for part in run.parts(chunk):
            rows = (run.rows, part)
            piece = _chunk(x[rows], B[rows][:, :, group], C[rows][:, :, group], A, step[rows])
            entering = _Value(_rounded(carried.mean.to(stored).double(), x.dtype), carried.variance)
            own = _output(piece, entering, carried.mean, roundings)
            y.put(rows, own.mean.transpose(1, 2), own.variance.transpose(1, 2))
            carried = _state(piece, carried, roundings)
        final.put(run.entries, carried.mean, carried.variance)
    out = _finished(y, x, D, z)
    if cu_seqlens is not None:
        out.put((slice(None), slice(int(cu_seqlens[-1]), None)), 0.0, 0.0)
    return Honest(out.mean.to(x.dtype).double(), final.mean, out.variance.sqrt(), final.variance.sqrt())


@dataclass(frozen=True)
class _Run:
    """Tokens of one sequence, in rows that share them; whether it starts from a zero state instead of its entry's."""

    rows: slice
    tokens: range
    entries: slice
    from_nothing: bool = False

    def parts(self, chunk: int) -> Iterator[slice]:
        """Its tokens by chunks of the row."""
        at = self.tokens.start
        while at < self.tokens.stop:
            end = min((at // chunk + 1) * chunk, self.tokens.stop)
            yield slice(at, end)
            at = end


def _runs(x: Tensor, seq_idx: Tensor | None, cu_seqlens: Tensor | None) -> Iterator[_Run]:
    if seq_idx is None or cu_seqlens is not None:
        yield from (_Run(*piece) for piece in pieces(x, cu_seqlens))
        return
    for row, begins in enumerate(starts(x, seq_idx, None)):
        cuts = [0, *begins.nonzero()[:, 0].tolist(), x.shape[1]]
        for n, (start, stop) in enumerate(itertools.pairwise(cuts)):
            yield _Run(slice(row, row + 1), range(start, stop), slice(row, row + 1), n > 0)


def _finished(y: _Value, x: Tensor, D: Tensor | None, z: Tensor | None) -> _Value:  # noqa: N803
    """With the skip and the gate, rounded to x's dtype at last."""
    mean, variance = y.mean, y.variance
    if D is not None:
        mean = mean + x.double() * (D.double()[:, None] if D.dim() == 1 else D.double())
    if z is not None:
        mean, variance = mean * silu(z), variance * silu(z) ** 2
    last = (STORED[x.dtype] * mean.abs().clamp(min=torch.finfo(x.dtype).tiny)) ** 2 / 3
    return _Value(mean, variance + last)


@dataclass(frozen=True)
class _Value:
    """What roundings make of a value, and the variance of that."""

    mean: Tensor
    variance: Tensor

    def at(self, where: Any) -> _Value:
        """A part of it."""
        return _Value(self.mean[where], self.variance[where])

    def put(self, where: Any, mean: Tensor | float, variance: Tensor | float) -> None:
        """Write a part of it."""
        self.mean[where], self.variance[where] = mean, variance


@dataclass(frozen=True)
class _Roundings:
    """Variances, relative to the square of what is rounded: an operand, float32 made one, a state stored and read."""

    dtype: torch.dtype
    operand: float
    cast: float
    stored: float


@dataclass(frozen=True)
class _Chunk:
    """A chunk, heads before tokens: activations, the same as operands, dt', L, and the relative loss of 2^L."""

    x: Tensor
    b: Tensor
    x_operand: Tensor
    b_operand: Tensor
    c_operand: Tensor
    step: Tensor
    log: Tensor
    lost: Tensor


def _roundings(x: torch.dtype, stored: torch.dtype) -> _Roundings:
    operand = OPERAND[x] ** 2 / 3
    cast = operand if x == torch.float32 else 0.0
    kept = operand if stored == torch.float32 else max(operand, STORED[stored] ** 2 / 3)
    return _Roundings(x, operand, cast, kept + cast)


def _chunk(x: Tensor, b: Tensor, c: Tensor, A: Tensor, step: Tensor) -> _Chunk:  # noqa: N803
    wide = tuple(t.double().transpose(1, 2) for t in (x, b, c))
    x_o, b_o, c_o = (t if x.dtype != torch.float32 else _rounded(t, x.dtype) for t in wide)
    step = step.transpose(1, 2)
    log = torch.cumsum(A.double()[:, None] * step, dim=2)
    return _Chunk(wide[0], wide[1], x_o, b_o, c_o, step, log, _exponent_loss(A, step))


def _output(p: _Chunk, entering: _Value, exact_state: Tensor, r: _Roundings) -> _Value:
    """(C h) 2^L + ((C B^T) 2^(L_i - L_j) dt') x."""
    decay = torch.exp((p.log[..., :, None] - p.log[..., None, :]).clamp(max=0.0)).tril() * p.step[..., None, :]
    pairs = (p.c_operand @ p.b_operand.transpose(2, 3)) * decay
    scale = torch.exp(p.log)[..., None]
    mean = scale * (p.c_operand @ entering.mean.transpose(2, 3)) + _rounded(pairs, r.dtype) @ p.x_operand
    # another chunk takes the pair through a stored state, which rounds each of the products that make up C . B
    terms = (p.c_operand**2 @ (p.b_operand**2).transpose(2, 3)) * decay**2
    variance = (pairs**2 + terms) * (r.operand + p.lost[..., :, None] ** 2 + p.lost[..., None, :] ** 2)
    variance = variance + pairs**2 * r.cast + terms * 2 * r.cast
    squares = exact_state**2
    through = p.c_operand**2 @ (entering.variance + squares * r.stored).transpose(2, 3)
    through = through + p.lost[..., None] ** 2 * (p.c_operand**2 @ squares.transpose(2, 3))
    return _Value(mean, variance @ p.x_operand**2 + scale**2 * through)


def _state(p: _Chunk, h: _Value, r: _Roundings) -> _Value:
    """2^L_last h + sum of 2^(L_last - L_j) dt'_j x_j B_j^T."""
    last = torch.exp(p.log[..., -1])[..., None, None]
    weighted = p.b * (torch.exp(p.log[..., -1:] - p.log) * p.step)[..., None]
    spread = r.operand + r.cast + p.lost[..., None] ** 2 + p.lost[..., -1:, None] ** 2
    variance = last**2 * (h.variance + h.mean**2 * p.lost[..., -1, None, None] ** 2)
    variance = variance + (p.x_operand**2).transpose(2, 3) @ (weighted**2 * spread) + UNDERFLOW**2
    return _Value(last * h.mean + p.x_operand.transpose(2, 3) @ _rounded(weighted, r.dtype), variance)


def _exponent_loss(A: Tensor, step: Tensor) -> Tensor:  # noqa: N803
    """The relative error of a decay whose exponent is an fp32 running sum: (B, H, T of the chunk)."""
    log2 = (A.double().abs()[:, None] * step / math.log(2)).clamp(max=MAX_LOG2_DECAY)
    return 2 * FP32 * math.log(2) * torch.cumsum(log2, dim=2) / math.sqrt(3)


def _rounded(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """`operand` with the digits a matrix product's operand keeps for activations of `dtype`."""
    if dtype == torch.bfloat16:
        return operand.to(torch.bfloat16).double()
    # tfloat32 has float16's digits and float32's range: scale each binade away, round, scale back
    mantissa, exponent = torch.frexp(operand)
    return torch.ldexp(torch.round(mantissa * 2048) / 2048, exponent)
