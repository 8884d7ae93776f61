"""One step of the gated delta rule in fp64, from packed q, k and v, and what it leaves in the state pool.

    q, k <- q / sqrt(|q|^2 + 1e-6), likewise k, where asked; q <- scale q
    g = -exp(A_log) softplus(a + dt_bias),  beta = beta_scale sigmoid(b)
    h <- exp(g) h;  u = beta (v - h k);  h <- h + u k^T;  out = h q

(Yang et al. 2024, arXiv:2412.06464.) Names and shapes are those of vLLM's packed decode; nothing is updated in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ssmgen.reference.mamba_chunk_scan_combined import time_step

if TYPE_CHECKING:
    from torch import Tensor

# of the norms of q and k
EPSILON = 1e-6
_ANY = (float("-inf"), float("inf"))


def gated_delta_rule_packed_decode(  # noqa: PLR0913, PLR0917
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,  # noqa: N803
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    ssm_state_indices: Tensor,
    *,
    key_heads: int,
    use_qk_l2norm_in_kernel: bool = False,
    beta_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Output (B, 1, Hv, V), and the pool (N, Hv, V, K) after the step; fp64, on the device of mixed_qkv.

    mixed_qkv (B, 2 Hk K + Hv V), q | k | v; a and b (B, Hv); A_log and dt_bias (Hv,); initial_state the pool
    (N, Hv, V, K); ssm_state_indices (B,): the slot of each row; a slot <= 0 is null: its row gives 0 and no state is
    touched. Value head h reads key head h // (Hv/Hk). softplus is in full: the threshold of 20, above which peers take
    it for the identity, changes it by 2e-9. Raises ValueError for a width that is no q | k | v of these sizes, where Hk
    does not divide Hv, and where two rows share a slot.
    """
    value_heads, value_dim, key_dim = initial_state.shape[1:]
    widths = [key_heads * key_dim] * 2 + [value_heads * value_dim]
    if mixed_qkv.shape[1] != sum(widths) or value_heads % key_heads:
        found = f"mixed_qkv: found width {mixed_qkv.shape[1]}"
        raise ValueError(f"{found}, expected {sum(widths)}: {key_heads} key heads for {value_heads} value heads")
    rows = (ssm_state_indices > 0).nonzero()[:, 0]
    used = ssm_state_indices[rows].long()
    if len(used.unique()) < len(used):
        raise ValueError(f"ssm_state_indices: found {ssm_state_indices.tolist()}, expected every slot at most once")
    q, k, v = mixed_qkv[rows].double().split(widths, 1)
    group = torch.arange(value_heads, device=q.device) // (value_heads // key_heads)
    q, k = (part.unflatten(1, (key_heads, key_dim)) for part in (q, k))
    if use_qk_l2norm_in_kernel:
        q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + EPSILON) for part in (q, k))
    q, k, v = scale * q[:, group], k[:, group], v.unflatten(1, (value_heads, value_dim))
    g = -torch.exp(A_log.double()) * time_step(a[rows], dt_bias, True, _ANY)
    beta = beta_scale * torch.sigmoid(b[rows].double())
    pool = initial_state.double()
    h = torch.exp(g)[..., None, None] * pool[used]
    u = beta[..., None] * (v - (h * k[:, :, None, :]).sum(-1))
    h = h + u[..., None] * k[:, :, None, :]
    out = torch.zeros((len(mixed_qkv), 1, value_heads, value_dim), dtype=torch.float64, device=q.device)
    out = out.index_copy(0, rows, (h * q[:, :, None, :]).sum(-1)[:, None])
    return out, pool.index_copy(0, used, h)
