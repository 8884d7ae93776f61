"""The recurrence of mamba_chunk_scan_combined, one token after another in fp64, and the error against it.

    dt'_t = clamp(softplus(dt_t + dt_bias), *dt_limit)
    h_t = exp(A dt'_t) h_{t-1} + dt'_t x_t B_t^T
    y_t = h_t C_t + D x_t

(Dao and Gu 2024, arXiv:2405.21060.) It is not chunked, not fast, and knows no packed sequences and no gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, P) and final states (B, H, P, S), both fp64, on the device of x.

    x (B, T, H, P); dt (B, T, H); A (H,); B and C (B, T, G, S), head h reads group h // (H/G); D (H,) or (H, P);
    dt_bias (H,); initial_states (B, H, P, S); any floating dtype. Raises ValueError where H is no multiple of G.
    """
    batch, tokens, heads, head_dim = x.shape
    groups, state = B.shape[2:]
    if heads % groups:
        raise ValueError(f"B: found {groups} groups, expected a divisor of the {heads} heads of x")
    x, b, c = x.double(), B.double(), C.double()
    step = time_step(dt, dt_bias, dt_softplus, dt_limit)
    decay = torch.exp(A.double() * step)
    if initial_states is None:
        h = torch.zeros((batch, heads, head_dim, state), dtype=torch.float64, device=x.device)
    else:
        h = initial_states.double().clone()
    group = torch.arange(heads, device=x.device) // (heads // groups)
    out = torch.empty_like(x)
    for t in range(tokens):
        # a head's own copy of its group's row: one token's worth, never the whole sequence's
        b_t, c_t = b[:, t, group], c[:, t, group]
        h = decay[:, t, :, None, None] * h + (step[:, t, :, None] * x[:, t])[..., None] * b_t[:, :, None, :]
        out[:, t] = (h * c_t[:, :, None, :]).sum(-1)
    if D is not None:
        out += x * (D.double()[:, None] if D.dim() == 1 else D.double())
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
