"""mamba_chunk_scan_combined in fp64 for many tokens at once, with the deviations of an honest evaluation.

The same values as the recurrence of `mamba_chunk_scan_combined`, and the same deviations as `honest`, in
matrix products over all chunks of some heads: for whoever compares call after call on a GPU. It takes no packed
sequences. Those two are what is to be believed where they differ; tests hold this one to them.

    within a chunk   y_i = sum over j <= i of (C_i . B_j) 2^(L_i - L_j) dt'_j x_j
    between chunks   h_n = sum over m < n of 2^(T_(n-1) - T_m) d_m, d_m what chunk m adds, T the sums of whole chunks

(Dao and Gu 2024, arXiv:2405.21060, section 6.) Every exponent is at most 0, or masked before it is raised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from ssmgen.reference.mamba_chunk_scan_combined import silu, time_step
from ssmgen.reference.tolerance import FP32, MAX_LOG2_DECAY, OPERAND, STORED, UNDERFLOW

if TYPE_CHECKING:
    from torch import Tensor

# the exponent of what fp64 takes for zero
_NOTHING = -750.0
# elements of one intermediate, of which some fifteen are alive at once: of fp64, 16 GiB in all
_MOST = 1 << 27


class Evaluated(NamedTuple):
    """Output (B, T, H, P), final states (B, H, P, S), and the standard deviations of both; fp64."""

    out: Tensor
    state: Tensor
    out_sigma: Tensor
    state_sigma: Tensor


def evaluate(  # noqa: PLR0913 - the arguments of the operator it evaluates
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
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    chunk: int = 64,
    chunk_state: torch.dtype | None = None,
) -> Evaluated:
    """Values and deviations, on the device of x; arguments as the reference's and `honest`'s."""
    heads, tokens = x.shape[2], x.shape[1]
    stored = chunk_state or (torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32)
    step = time_step(dt, dt_bias, dt_softplus, dt_limit)
    out, out_variance = (torch.empty(x.shape, dtype=torch.float64, device=x.device) for _ in range(2))
    size = (x.shape[0], heads, x.shape[3], B.shape[3])
    state, state_variance = (torch.empty(size, dtype=torch.float64, device=x.device) for _ in range(2))
    group = torch.arange(heads, device=x.device) // (heads // B.shape[2])
    for part in _slabs(x, B, chunk):
        h0 = torch.zeros((), device=x.device) if initial_states is None else initial_states[:, part].double()
        chunks = _Chunks(x[:, :, part], B[:, :, group[part]], C[:, :, group[part]], A[part], step[:, :, part], chunk)
        rounded = _Rounded(chunks, h0.expand(size[0], len(range(*part.indices(heads))), *size[2:]), x.dtype, stored)
        out[:, :, part], out_variance[:, :, part] = (t[:, :tokens] for t in rounded.outputs())
        state[:, part], state_variance[:, part] = rounded.final()
    if D is not None:
        out += x.double() * (D.double()[:, None] if D.dim() == 1 else D.double())
    if z is not None:
        out, out_variance = out * silu(z), out_variance * silu(z) ** 2
    out_variance += (STORED[x.dtype] * out.abs().clamp(min=torch.finfo(x.dtype).tiny)) ** 2 / 3
    return Evaluated(out, state, out_variance.sqrt(), state_variance.sqrt())


def _slabs(x: Tensor, B: Tensor, chunk: int) -> Iterator[slice]:  # noqa: N803
    """Heads by as many as leave memory for the rest."""
    batch, tokens, heads, head_dim = x.shape
    chunks = -(-tokens // chunk)
    each = batch * chunks * max(chunk * max(chunk, head_dim, B.shape[3]), head_dim * B.shape[3])
    count = max(1, _MOST // max(each, 1))
    yield from (slice(start, min(start + count, heads)) for start in range(0, heads, count))


class _Chunks:
    """Some heads' tokens by chunk, (B, H, chunks, Q, …), fp64; tokens beyond the last add nothing and decay nothing."""

    def __init__(self, x: Tensor, b: Tensor, c: Tensor, A: Tensor, step: Tensor, chunk: int) -> None:  # noqa: N803
        # at least one, so that without tokens the state is what it was
        count = max(1, -(-x.shape[1] // chunk))
        self.size = (count, chunk)
        self.x, self.b, self.c = (self._by_chunk(t) for t in (x, b, c))
        self.step = self._by_chunk(step)
        # one enormous token must not take the digits of the others: what it leaves is zero all the same
        decay = (A.double()[:, None, None] * self.step).clamp(min=_NOTHING)
        self.log = decay.cumsum(3)
        log2 = (decay.abs() / math.log(2)).clamp(max=MAX_LOG2_DECAY)
        # squared: the relative loss of a decay whose exponent is an fp32 running sum
        self.lost = (2 * FP32 * math.log(2) * log2.cumsum(3)) ** 2 / 3

    def _by_chunk(self, tensor: Tensor) -> Tensor:
        count, chunk = self.size
        padded = tensor.new_zeros((tensor.shape[0], count * chunk, *tensor.shape[2:]), dtype=torch.float64)
        padded[:, : tensor.shape[1]] = tensor
        return padded.unflatten(1, self.size).movedim(3, 1).contiguous()

    def together(self, by_chunk: Tensor) -> Tensor:
        """(B, T, H, P) of what is (B, H, chunks, Q, P)."""
        return by_chunk.movedim(1, 3).flatten(1, 2)


class _Rounded:
    """What roundings do to some heads; variances stand beside values."""

    def __init__(self, chunks: _Chunks, h0: Tensor, x: torch.dtype, stored: torch.dtype) -> None:
        self._c = chunks
        self._operand = OPERAND[x] ** 2 / 3
        self._cast = self._operand if x == torch.float32 else 0.0
        kept = self._operand if stored == torch.float32 else max(self._operand, STORED[stored] ** 2 / 3)
        self._stored = kept + self._cast
        self._h0 = h0.double()
        self._carry()

    def _carry(self) -> None:
        """States at the start of every chunk, and at the end: (B, H, chunks + 1, P, S), by products over chunks."""
        c = self._c
        weight = (torch.exp(c.log[..., -1:] - c.log) * c.step)[..., None] * c.b
        added = c.x.transpose(3, 4) @ weight
        spread = self._operand + self._cast + c.lost[..., None] + c.lost[..., -1:, None]
        noise = (c.x**2).transpose(3, 4) @ (weight**2 * spread) + UNDERFLOW**2
        del weight
        total = torch.nn.functional.pad(c.log[..., -1].cumsum(2), (1, 0))
        # from the end of chunk m, column m + 1, to the start of chunk n; column 0 is the initial state
        gap = (total[..., :, None] - total[..., None, :]).clamp(max=0.0)
        carried = torch.exp(gap).tril()
        shape = (*added.shape[:2], total.shape[2], *added.shape[3:])
        given = torch.cat([self._h0[:, :, None], added], 2).flatten(3)
        self.states = (carried @ given).unflatten(3, added.shape[3:])
        # a chunk's decay loses digits of the state that it decays
        after = torch.exp(2 * c.log[..., -1])[..., None, None] * self.states[:, :, :-1] ** 2
        noise = noise + after * c.lost[..., -1, None, None]
        given = torch.cat([torch.zeros_like(self._h0)[:, :, None], noise], 2).flatten(3)
        self.noise = (carried**2 @ given).view(shape)

    def outputs(self) -> tuple[Tensor, Tensor]:
        """Of every token, before skip and gate, and its variance: (B, T, H, P), with the tokens that fill up chunks."""
        c, entering, noise = self._c, self.states[:, :, :-1], self.noise[:, :, :-1]
        scale = torch.exp(c.log)[..., None]
        out = scale * (c.c @ entering.transpose(3, 4))
        squares = entering**2
        through = c.c**2 @ (noise + squares * self._stored).transpose(3, 4)
        through += c.lost[..., None] * (c.c**2 @ squares.transpose(3, 4))
        variance = scale**2 * through
        del squares, through
        decay = torch.exp((c.log[..., :, None] - c.log[..., None, :]).clamp(max=0.0)).tril() * c.step[..., None, :]
        terms = (c.c**2 @ (c.b**2).transpose(3, 4)) * decay**2
        pairs = (c.c @ c.b.transpose(3, 4)) * decay
        out += pairs @ c.x
        pairs = pairs**2
        each = (pairs + terms) * (self._operand + c.lost[..., :, None] + c.lost[..., None, :])
        each += (pairs + 2 * terms) * self._cast
        variance += each @ c.x**2
        return c.together(out), c.together(variance)

    def final(self) -> tuple[Tensor, Tensor]:
        """Final states and their variance: (B, H, P, S)."""
        return self.states[:, :, -1], self.noise[:, :, -1]
