"""How large an error may be: that of an honest evaluation at the same dtypes, on the same inputs, times MARGIN.

The honest evaluation is the chunked form in fp64, with a rounding only where a kernel at these dtypes cannot avoid one:
operands of the matrix products, stored chunk states, the output. The decay is never rounded. No flat tolerance exists:
where the terms of an output cancel, its relative error is large for everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ssmgen.reference.mamba_chunk_scan_combined import time_step

if TYPE_CHECKING:
    from torch import Tensor

# two evaluations that round the same products in another order differ by about sqrt(2); a kernel also sums in fp32
MARGIN = 2.0
# errors below this are fp32's own: sums of a few hundred terms, exponentials of sums
FLOOR = 2e-5


def limit(honest_error: float) -> float:
    """The largest error that passes where the honest evaluation has `honest_error`."""
    return MARGIN * honest_error + FLOOR


def honest(  # noqa: PLR0913 - the arguments of the operator it evaluates
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
    chunk: int = 64,
    chunk_state: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, P) and final states (B, H, P, S), fp64 holding what x's dtype can: arguments as the reference's.

    bfloat16 activations round to bfloat16; float16 and float32 to tfloat32, in which their products run. `chunk_state`
    is the dtype of stored chunk states, by default bfloat16 for bfloat16 activations and otherwise float32.
    """
    stored = chunk_state or (torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)
    batch, tokens, heads, head_dim = x.shape
    group = torch.arange(heads, device=x.device) // (heads // B.shape[2])
    step = time_step(dt, dt_bias, dt_softplus, dt_limit)
    h = torch.zeros((batch, heads, head_dim, B.shape[3]), dtype=torch.float64, device=x.device)
    if initial_states is not None:
        h = initial_states.double()
    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    for first in range(0, tokens, chunk):
        rows = slice(first, first + chunk)
        # bfloat16 and float16 are operands as they are; float32 loses digits on the way
        x_k = x[:, rows].double().transpose(1, 2)
        b, c = (t[:, rows].double()[:, :, group].transpose(1, 2) for t in (B, C))
        x_operand, b_operand, c_operand = (
            (t if x.dtype != torch.float32 else _rounded(t, x.dtype)) for t in (x_k, b, c)
        )
        dt_k = step[:, rows].transpose(1, 2)
        log = torch.cumsum(A.double()[:, None] * dt_k, dim=2)
        decay = torch.exp((log[..., :, None] - log[..., None, :]).clamp(max=0.0)).tril()
        pairs = _rounded((c_operand @ b_operand.transpose(2, 3)) * decay * dt_k[..., None, :], x.dtype)
        entering = _rounded(h.to(stored).double(), x.dtype)
        y = torch.exp(log)[..., None] * (c_operand @ entering.transpose(2, 3)) + pairs @ x_operand
        if D is not None:
            y = y + D.double()[:, None, None] * x_k
        out[:, rows] = y.to(x.dtype).double().transpose(1, 2)
        weight = torch.exp(log[..., -1:] - log) * dt_k
        h = torch.exp(log[..., -1])[..., None, None] * h
        h = h + x_operand.transpose(2, 3) @ _rounded(b * weight[..., None], x.dtype)
    return out, h


def _rounded(operand: Tensor, dtype: torch.dtype) -> Tensor:
    """`operand` with the digits a matrix product's operand keeps for activations of `dtype`."""
    if dtype == torch.bfloat16:
        return operand.to(torch.bfloat16).double()
    # tfloat32 has float16's digits and float32's range: scale each binade away, round, scale back
    mantissa, exponent = torch.frexp(operand)
    return torch.ldexp(torch.round(mantissa * 2048) / 2048, exponent)
