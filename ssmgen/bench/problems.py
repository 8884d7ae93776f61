"""The forward problems that ssmgen is measured on: a committed model and its run-time shape.

Shapes only; inputs are drawn by `inputs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Forward:
    """One call: `chunk` is the config's chunk size, which peers use and ssmgen ignores.

    `sequences` of drawn lengths lie in a row, the N of route conditions; 0 for a call without packed sequences.
    """

    model: str
    batch: int
    tokens: int
    chunk: int
    sequences: int = 0


FORWARD = {
    "blog": Forward("mamba2_blog", 4, 16384, 128),
    "nemotron_h_8b": Forward("nemotron_h_8b", 1, 8192, 128),
    "mamba2_2p7b": Forward("mamba2_2p7b", 1, 8192, 256),
    "mamba2_130m": Forward("mamba2_130m", 8, 2048, 256),
    "falcon_h1_7b": Forward("falcon_h1_7b", 1, 8192, 128),
    "nemotron_3_super_tp8": Forward("nemotron_3_super_120b_a12b_tp8", 1, 8192, 128),
    "nemotron_3_super_tp8_2k": Forward("nemotron_3_super_120b_a12b_tp8", 1, 2048, 128),
    "granite_h_small_2k": Forward("granite_4p0_h_small", 1, 2048, 256),
    "nemotron_nano_9b": Forward("nemotron_nano_9b_v2", 1, 8192, 128),
    "mamba2_2p7b_train": Forward("mamba2_2p7b", 8, 4096, 256),
    "nemotron_h_8b_packed_1": Forward("nemotron_h_8b", 1, 8192, 128, sequences=1),
    "nemotron_h_8b_packed_8": Forward("nemotron_h_8b", 1, 8192, 128, sequences=8),
    "nemotron_h_8b_packed_64": Forward("nemotron_h_8b", 1, 8192, 128, sequences=64),
    "falcon_h1_7b_packed_8": Forward("falcon_h1_7b", 1, 8192, 128, sequences=8),
    "nemotron_nano_9b_packed_8": Forward("nemotron_nano_9b_v2", 1, 8192, 128, sequences=8),
    "nemotron_3_super_tp8_packed_1": Forward("nemotron_3_super_120b_a12b_tp8", 1, 8192, 128, sequences=1),
    "nemotron_3_super_tp8_packed_2": Forward("nemotron_3_super_120b_a12b_tp8", 1, 8192, 128, sequences=2),
    "nemotron_3_super_tp8_packed_8": Forward("nemotron_3_super_120b_a12b_tp8", 1, 8192, 128, sequences=8),
}


def sequences(tokens: int, count: int) -> dict[str, Any]:
    """seq_idx (1, T) and cu_seqlens (count + 1,) of `count` sequences that fill a row, on the current CUDA device."""
    import torch

    generator = torch.Generator().manual_seed(count)
    cuts = torch.randperm(tokens - 1, generator=generator)[: count - 1].sort().values + 1
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([tokens])])
    seq_idx = torch.arange(count).repeat_interleave(offsets.diff())[None]
    return dict(seq_idx=seq_idx.int().cuda(), cu_seqlens=offsets.int().cuda())


def inputs(kernels: Any, batch: int, tokens: int, *, seed: int = 0, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Keyword arguments of mamba_chunk_scan_combined for a generated package, drawn on the current CUDA device.

    x (B,T,H,P), B and C (B,T,G,S) normal; dt (B,T,H) about softplus(N(-4, 1)) once dt_bias is added; A in (-16, -1).
    """
    import torch

    heads, groups, head_dim, state = kernels.HEADS, kernels.GROUPS, kernels.HEAD_DIM, kernels.STATE
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    kind = dtype or torch.bfloat16
    bias = normal(heads) * 0.5
    return dict(
        x=normal(batch, tokens, heads, head_dim).to(kind),
        dt=normal(batch, tokens, heads) - 4.0 - bias,
        A=-torch.exp(torch.rand(heads, device="cuda", generator=generator) * 2.77),
        B=normal(batch, tokens, groups, state).to(kind),
        C=normal(batch, tokens, groups, state).to(kind),
        D=normal(heads),
        dt_bias=bias,
        dt_softplus=True,
    )
