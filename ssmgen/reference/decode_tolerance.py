"""What roundings do to one decode step: the deviations by which `tolerance` bounds its errors.

A kernel computes a step in fp32 and rounds twice: the output, in its own dtype, and the state, when it is stored. The
output comes from the unrounded state. Each rounding is independent and uniform, as in `tolerance`, whose table holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ssmgen.reference.tolerance import FP32, STORED, UNDERFLOW

if TYPE_CHECKING:
    from torch import Tensor

# roundings of fp32 on the way to one term: exponentials, softplus, their arguments, products
_TERM = 8


class Step(NamedTuple):
    """The terms of h <- kept + u k^T, o = sum of h q, for the rows that have a slot; fp64."""

    kept: Tensor
    """(B, H, P, S): the decayed state."""
    exponent: Tensor
    """(B, H): of the decay, not positive."""
    added: Tensor
    """(B, H, P, S): what the step adds to it."""
    added_terms: Tensor
    """(B, H, P, S): root of the sum of squares of the terms that make up `added`; its size where it is one product."""
    read: Tensor
    """(B, H, 1, S): what reads the state."""


def deviations(step: Step, out: Tensor, x: torch.dtype, state: torch.dtype) -> tuple[Tensor, Tensor]:
    """Standard deviations of `out` (B, H, P) and of the state (B, H, P, S) as it is stored; fp64."""
    relative = FP32 * (_TERM + step.exponent.abs())[..., None, None]
    h = step.kept + step.added
    unrounded = (step.kept * relative) ** 2 + (step.added_terms * _TERM * FP32) ** 2 + UNDERFLOW**2
    stored = (STORED[state] * h.abs().clamp(min=torch.finfo(state).tiny)) ** 2 / 3
    through = (step.read**2 * (unrounded + (_TERM * FP32 * h) ** 2)).sum(-1)
    last = (STORED[x] * out.abs().clamp(min=torch.finfo(x).tiny)) ** 2 / 3
    return (through + last).sqrt(), (unrounded + stored).sqrt()
