"""The recurrence of mamba_chunk_scan_combined, one token after another in fp64, and the error against it.

    dt'_t = clamp(softplus(dt_t + dt_bias), *dt_limit)
    h_t = exp(A dt'_t) h_{t-1} + dt'_t x_t B_t^T
    out_t = (h_t C_t + D x_t) * z_t / (1 + exp(-z_t)), without z the first factor

(Dao and Gu 2024, arXiv:2405.21060.) It is not chunked and not fast. A packed row is its sequences, one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


def mamba_chunk_scan_combined(  # noqa: PLR0913
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
) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, P) and final states (B, H, P, S), both fp64, on the device of x.

    x (B, T, H, P); dt (B, T, H); A (H,); B and C (B, T, G, S), head h reads group h // (H/G); D (H,) or (H, P);
    z as x; dt_bias (H,); initial_states (B, H, P, S); any floating dtype. Raises ValueError where G does not divide H.

    seq_idx (B, T): where it changes, a sequence starts from a zero state; the final state is the last one's. cu_seqlens
    (N + 1,), with B = 1: N sequences, each from its own of initial_states (N, H, P, S) to its own final state; rows
    past the last offset give 0.
    """
    heads, groups = x.shape[2], B.shape[2]
    if heads % groups:
        raise ValueError(f"B: found {groups} groups, expected a divisor of the {heads} heads of x")
    step = time_step(dt, dt_bias, dt_softplus, dt_limit)
    # decay to 0 is a start from nothing
    decay = torch.exp(A.double() * step) * ~starts(x, seq_idx, cu_seqlens)[..., None]
    size = (x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, heads, x.shape[3], B.shape[3])
    h = torch.zeros(size, dtype=torch.float64, device=x.device)
    if initial_states is not None:
        h = h + initial_states.double()
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for rows, tokens, entries in pieces(x, cu_seqlens):
        t = slice(tokens.start, tokens.stop)
        parts = (x[rows, t], step[rows, t], decay[rows, t], B[rows, t], C[rows, t])
        out[rows, t], h[entries] = _recurrence(*parts, h[entries])
    if D is not None:
        out += x.double() * (D.double()[:, None] if D.dim() == 1 else D.double())
    if z is not None:
        out = out * silu(z)
    if cu_seqlens is not None:
        out[:, int(cu_seqlens[-1]) :] = 0.0
    return out, h


class Piece(NamedTuple):
    """Rows that share their tokens, those tokens, and the entries of the states that go with the rows."""

    rows: slice
    tokens: range
    entries: slice


def pieces(x: Tensor, cu_seqlens: Tensor | None) -> Iterator[Piece]:
    """All rows of x (B, T, ...) at once, or the sequences of its one row."""
    if cu_seqlens is None:
        yield Piece(slice(0, x.shape[0]), range(x.shape[1]), slice(0, x.shape[0]))
        return
    offsets = cu_seqlens.tolist()
    for n, (start, stop) in enumerate(itertools.pairwise(offsets)):
        yield Piece(slice(0, 1), range(start, stop), slice(n, n + 1))


def starts(x: Tensor, seq_idx: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """(B, T): where a sequence starts from a zero state; where offsets are given they say it, with the states."""
    at = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    if seq_idx is not None and cu_seqlens is None:
        at[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    return at


def silu(z: Tensor) -> Tensor:
    """z / (1 + exp(-z)) in fp64."""
    return z.double() * torch.sigmoid(z.double())


def _recurrence(x: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    heads = x.shape[2]
    group = torch.arange(heads, device=x.device) // (heads // b.shape[2])
    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    for t in range(x.shape[1]):
        # a head's own copy of its group's row: one token's worth, never the whole sequence's
        b_t, c_t = b[:, t].double()[:, group], c[:, t].double()[:, group]
        h = decay[:, t, :, None, None] * h + (step[:, t, :, None] * x[:, t].double())[..., None] * b_t[:, :, None, :]
        out[:, t] = (h * c_t[:, :, None, :]).sum(-1)
    return out, h


def time_step(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Tensor:
    """dt' (B, T, H) in fp64; softplus in full, with no threshold above which it is taken for the identity."""
    step = dt.double()
    if dt_bias is not None:
        step = step + dt_bias.double()
    if dt_softplus:
        # log(1 + e^s) = max(s, 0) + log1p(e^-|s|): no overflow for large s, no lost digits for small
        step = step.clamp(min=0.0) + torch.log1p(torch.exp(-step.abs()))
    return step.clamp(*dt_limit)


def error(actual: Tensor, expected: Tensor, *, block: int = 64) -> float:
    """The largest rms(actual - expected) / rms(expected) over each (batch, head, `block` tokens) of two (B, T, H, P).

    inf for a NaN or infinity in `actual` that `expected` does not share, and where a wholly zero piece is not met;
    0.0 for empty tensors. Raises ValueError where the shapes differ.
    """
    _check_shapes(actual, expected)
    worst = 0.0
    for start in range(0, actual.shape[1], block):
        rows = slice(start, start + block)
        worst = max(worst, _relative(actual[:, rows], expected[:, rows], (1, 3)))
    return worst


def state_error(actual: Tensor, expected: Tensor) -> float:
    """The largest rms(actual - expected) / rms(expected) over each (batch, head) of two (B, H, P, S); see `error`."""
    _check_shapes(actual, expected)
    return _relative(actual, expected, (2, 3))


def _check_shapes(actual: Tensor, expected: Tensor) -> None:
    if actual.shape != expected.shape:
        raise ValueError(f"actual: found a {tuple(actual.shape)} tensor, expected {tuple(expected.shape)}")


def _relative(actual: Tensor, expected: Tensor, axes: tuple[int, int]) -> float:
    if actual.numel() == 0:
        return 0.0
    actual, expected = actual.double(), expected.double()
    # a shared infinity has no difference; inf - inf would be NaN
    difference = torch.where(actual == expected, 0.0, actual - expected).square().mean(axes).sqrt()
    scale = expected.square().mean(axes).sqrt()
    ratio = torch.where(difference == 0.0, 0.0, difference / scale)
    return float(torch.nan_to_num(ratio, nan=torch.inf, posinf=torch.inf).max())
