"""The tensors of a call: normal activations, time steps and decays by regime, memory by layout.

They are drawn on the CPU, so that a seed means the same numbers on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ssmgen.ops.mamba_chunk_scan_combined import Operator
    from ssmgen.verify.problems import Call

LAYOUTS = ("contiguous", "fused", "fused_odd", "offset", "transposed")
"""Where x, B, C and dt lie: apart; slices of one projection, aligned or not; at an odd offset; last axis strided."""


@dataclass(frozen=True)
class _Steps:
    """dt' (B, T, H) before any limit, A (H,), and dt_limit."""

    step: torch.Tensor
    decay: torch.Tensor
    limit: tuple[float, float] = (0.0, math.inf)


@dataclass(frozen=True)
class _Draw:
    """Sizes and a generator."""

    shape: tuple[int, int, int]
    generator: torch.Generator

    def uniform(self, *shape: int, low: float, high: float) -> torch.Tensor:
        """Uniform in (low, high)."""
        import torch

        return low + (high - low) * torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def steps(self, low: float, high: float) -> torch.Tensor:
        """Log-uniform time steps."""
        return self.uniform(*self.shape, low=math.log(low), high=math.log(high)).exp()

    def decays(self, low: float, high: float) -> torch.Tensor:
        """Log-uniform -A."""
        return -self.uniform(self.shape[2], low=math.log(low), high=math.log(high)).exp()

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """Uniform in [0, high)."""
        import torch

        return torch.randint(high, shape, generator=self.generator)


def _mild(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-3, 0.1), d.decays(1, 16))


def _mixed_horizons(d: _Draw) -> _Steps:
    # A dt' = -1 / horizon on average, a horizon a head
    horizons = d.uniform(d.shape[2], low=math.log(4), high=math.log(4096)).exp()
    return _Steps(d.steps(0.005, 0.02), -1 / (0.011 * horizons))


def _zero_decay(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-3, 0.1), d.decays(1e-10, 1e-9))


def _enormous_token(d: _Draw) -> _Steps:
    mild = _mild(d)
    step, (batch, tokens, heads) = mild.step.clone(), d.shape
    if tokens:
        at = d.integers(tokens, batch, 1, heads)
        step.scatter_(1, at, d.uniform(batch, 1, heads, low=math.log(1e3), high=math.log(1e5)).exp())
    return _Steps(step, mild.decay)


def _strong_decay(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-2, 1.0), d.decays(1e2, 1e9))


def _tiny_steps(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-12, 1e-6), d.decays(1, 16))


def _large_steps(d: _Draw) -> _Steps:
    # dt + dt_bias beyond 88, where a careless softplus overflows
    return _Steps(d.steps(60, 200), d.decays(1e-3, 1e-2))


def _padded(d: _Draw) -> _Steps:
    mild = _mild(d)
    step = mild.step.clone()
    # right padding: the last third of the tokens must not move the state
    step[:, d.shape[1] - d.shape[1] // 3 :] = 0.0
    return _Steps(step, mild.decay)


def _limited(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-4, 10.0), d.decays(1, 16), (1e-3, 0.1))


def _no_step(d: _Draw) -> _Steps:
    return _Steps(d.steps(1e-3, 0.1), d.decays(1, 16), (0.0, 0.0))


_REGIMES: dict[str, Callable[[_Draw], _Steps]] = {
    "mild": _mild,
    "mixed_horizons": _mixed_horizons,
    "zero_decay": _zero_decay,
    "enormous_token": _enormous_token,
    "strong_decay": _strong_decay,
    "tiny_steps": _tiny_steps,
    "large_steps": _large_steps,
    "padded": _padded,
    "limited": _limited,
    "no_step": _no_step,
}
REGIMES = tuple(_REGIMES)
"""Decays and time steps by name; `limited` and `no_step` limit nothing where a model takes no dt_limit."""


def steps(
    regime: str, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, tuple[float, float]]:
    """dt' (B, T, H) before any limit, A (H,), and dt_limit, of a regime; `shape` is (B, T, H); fp64."""
    drawn = _REGIMES[regime](_Draw(shape, generator))
    return drawn.step, drawn.decay, drawn.limit


def arguments(operator: Operator, call: Call, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of mamba_chunk_scan_combined, but for chunk_size: those that the operator takes.

    Sequences in a row are given as the call says, whether or not the operator takes them.
    """
    import torch

    shape, dtypes, chosen = operator.shape, operator.dtypes, operator.options
    generator = torch.Generator().manual_seed(call.seed)
    draw = _Draw((call.rows, call.tokens, shape.heads), generator)
    steps = _REGIMES[call.regime](draw)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    kind, step_kind, heads = getattr(torch, dtypes.x), getattr(torch, dtypes.dt), shape.heads
    bias = normal(heads) * 0.5 if chosen.dt_bias else torch.zeros(heads)
    raw = before_softplus(steps.step) if chosen.dt_softplus else steps.step
    dense = {
        "x": normal(call.rows, call.tokens, heads, shape.head_dim).to(kind),
        "B": normal(call.rows, call.tokens, shape.groups, shape.state).to(kind),
        "C": normal(call.rows, call.tokens, shape.groups, shape.state).to(kind),
        "dt": (raw - bias.double()).clamp(max=torch.finfo(step_kind).max / 2).to(step_kind),
    }
    if chosen.z != "none":
        # gates from shut to wide open
        dense["z"] = (3 * normal(*dense["x"].shape)).to(kind)
    drawn: dict[str, Any] = _laid_out({name: t.to(device) for name, t in dense.items()}, call.layout)
    drawn |= {"A": steps.decay.float().to(device), "dt_softplus": chosen.dt_softplus}
    if chosen.dt_limit == "runtime":
        drawn["dt_limit"] = steps.limit
    if chosen.D != "none":
        drawn["D"] = normal(*((heads,) if chosen.D == "per_head" else (heads, shape.head_dim))).to(device)
    if chosen.dt_bias:
        drawn["dt_bias"] = bias.to(device)
    sequences = _sequences(draw, call)
    drawn |= {name: t.to(device) for name, t in sequences.items()}
    if call.initial_states:
        entries = len(sequences["cu_seqlens"]) - 1 if call.offsets else call.rows
        drawn["initial_states"] = normal(entries, heads, shape.head_dim, shape.state).to(device)
    return drawn


def _sequences(draw: _Draw, call: Call) -> dict[str, torch.Tensor]:
    """seq_idx and cu_seqlens, as far as the call has them, of either integer dtype."""
    import torch

    if call.sequences == "no":
        return {}
    kind = torch.int64 if call.seed % 2 else torch.int32
    rows, tokens = call.rows, call.tokens
    offsets = [_offsets(draw, call.cuts, tokens) for _ in range(rows)]
    given = {}
    if call.sequences != "cu_seqlens":
        # two values in turn, as a sequence is where they change
        changes = torch.zeros(rows, tokens + 1, dtype=torch.int64)
        for row, of_row in enumerate(offsets):
            changes[row, sorted(set(of_row))] = 1
        given["seq_idx"] = (changes[:, :tokens].cumsum(1) % 2).to(kind)
    if call.offsets:
        given["cu_seqlens"] = torch.tensor(offsets[0], dtype=kind)
    return given


def _offsets(draw: _Draw, cuts: str, tokens: int) -> list[int]:
    """Where each sequence starts, and where the last one ends; see `problems.CUTS`."""

    def anywhere(count: int) -> list[int]:
        return sorted(draw.integers(tokens + 1, count).tolist())

    at = anywhere(1)
    return {
        "one": [0, tokens],
        "two": [0, *at, tokens],
        "many": [0, *anywhere(max(2, tokens // 12)), tokens],
        # those between stand beside others that start in the same chunk
        "empty": [0, 0, max(at[0] - 3, 0), *at * 3, min(at[0] + 3, tokens), tokens, tokens],
        "tokens": [*range(min(tokens, 20) + 1), tokens],
        "borders": [*range(0, tokens, 16), tokens],
        "short": [0, *anywhere(3)],
    }[cuts]


def before_softplus(step: torch.Tensor) -> torch.Tensor:
    """s with log(1 + e^s) = step; 0 becomes -200, whose softplus fp32 cannot tell from 0."""
    import torch

    small = torch.log(torch.expm1(step.clamp(max=40.0)))
    return torch.where(step > 40.0, step, small.clamp(min=-200.0))


def _laid_out(dense: dict[str, torch.Tensor], layout: str) -> dict[str, torch.Tensor]:
    if layout == "transposed":
        return {
            name: t.transpose(1, 3).contiguous().transpose(1, 3) if t.dim() == 4 else t for name, t in dense.items()
        }
    if layout == "offset":
        return {name: _offset(t) for name, t in dense.items()}
    if layout == "contiguous" or not dense["dt"].numel():
        return dense
    result: dict[str, torch.Tensor] = {}
    for kind in dict.fromkeys(t.dtype for t in dense.values()):
        result |= _fused({name: t for name, t in dense.items() if t.dtype == kind}, odd=layout == "fused_odd")
    return result


def _fused(parts: dict[str, torch.Tensor], *, odd: bool) -> dict[str, torch.Tensor]:
    """Slices of one projection, in the order in which models lay them out; odd: no row but the first is aligned."""
    import torch

    widths = {name: t[0, 0].numel() for name, t in parts.items()}
    padded = {name: width if odd else -(-width // 8) * 8 for name, width in widths.items()}
    total = sum(padded.values()) + odd
    some = next(iter(parts.values()))
    size = (*some.shape[:2], total + (total + odd) % 2)
    fused = torch.full(size, math.nan, dtype=some.dtype, device=some.device)
    start = int(odd)
    result: dict[str, torch.Tensor] = {}
    for name, t in parts.items():
        view = fused[..., start : start + widths[name]].unflatten(-1, t.shape[2:])
        result[name] = view.copy_(t)
        start += padded[name]
    return result


def _offset(t: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor whose address is a multiple of nothing but its element."""
    import torch

    base = torch.full((t.numel() + 1,), math.nan, dtype=t.dtype, device=t.device)
    return base[1:].view(t.shape).copy_(t)
