"""One step of the Mamba-2 recurrence in fp64, and what it leaves in the state pool.

    dt' = softplus(dt + dt_bias) or dt + dt_bias
    h <- exp(A dt') h + dt' x B^T,  out = (h C + D x) * z / (1 + exp(-z)), without z the first factor

(Dao and Gu 2024, arXiv:2405.21060, one token.) Names and shapes are those of mamba_ssm's function; nothing is updated
in place here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ssmgen.reference.mamba_chunk_scan_combined import silu, time_step

if TYPE_CHECKING:
    from torch import Tensor


def selective_state_update(  # noqa: PLR0913, PLR0917
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (B, H, P), and the pool (N, H, P, S) after the step; fp64, on the device of x.

    state (N, H, P, S); x, dt and z (B, H, P); A (H, P, S), D and dt_bias (H, P), tied: of a head all the same; B and C
    (B, G, S), head h reads group h // (H/G); state_batch_indices (B,): the slot of each row, without it row b's is b.
    A slot < 0 is padding: its row gives 0 and no state is touched. Any floating dtype. Raises ValueError where G does
    not divide H, where A or dt differs within a head, and where two rows share a slot.
    """
    batch, heads = x.shape[:2]
    if heads % B.shape[1]:
        raise ValueError(f"B: found {B.shape[1]} groups, expected a divisor of the {heads} heads of x")
    slots = torch.arange(batch, device=x.device) if state_batch_indices is None else state_batch_indices.long()
    rows = (slots >= 0).nonzero()[:, 0]
    used = slots[rows]
    if len(used.unique()) < len(used):
        raise ValueError(f"state_batch_indices: found {slots.tolist()}, expected every slot at most once")
    group = torch.arange(heads, device=x.device) // (heads // B.shape[1])
    step = time_step(_tied("dt", dt, 1), None if dt_bias is None else _tied("dt_bias", dt_bias, 1), dt_softplus, _ANY)
    decay = torch.exp(_tied("A", A, 2).double() * step)
    added = (step[..., None] * x.double())[..., None] * B.double()[:, group][:, :, None, :]
    pool = state.double()
    h = decay[rows][..., None, None] * pool[used] + added[rows]
    pool = pool.index_copy(0, used, h)
    y = (h * C.double()[rows][:, group][:, :, None, :]).sum(-1)
    if D is not None:
        y = y + x.double()[rows] * D.double()
    if z is not None:
        y = y * silu(z[rows])
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    return out.index_copy(0, rows, y), pool


# dt_limit does not apply in decode, as in the peers
_ANY = (float("-inf"), float("inf"))


def _tied(name: str, value: Tensor, axes: int) -> Tensor:
    """One element a head of what is the same for all of a head: the last `axes` axes."""
    first = value[(..., *(slice(0, 1),) * axes)]
    if not torch.equal(value, first.expand_as(value)):
        raise ValueError(f"{name}: found values that differ within a head, expected it tied over the head")
    return first.reshape(value.shape[: value.dim() - axes])
