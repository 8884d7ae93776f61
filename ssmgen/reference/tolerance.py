"""How large an error may be: the one table of tolerances, for every test, verification and benchmark.

What roundings do to a result is `honest`'s to say: deviations (`chunked` is faster, `decode_tolerance` of one step).
A result passes where its error is at most 1 in the units of `out_excess` and `state_excess`:

| error | of | at most |
|---|---|---|
| rms | a head's 64 tokens, or its state | MARGIN * (1 + 4 / sqrt(2 n)) * rms(deviations) + FLOOR * rms(values) |
| one | an element of such a piece | ELEMENT * widened(elements) * (its deviation + FLOOR * rms(values)) |

n counts what is rounded on its own: the tokens of a piece, the columns of a state. The lanes of one token are not:
where one earlier token is most of it, they share the rounding of that pair. Of more elements, one errs further: what is
at most ELEMENT deviations in a million, in 99 of 100 draws, is `widened` in more than that, by 1.1 in sixteen million.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ssmgen.reference.honest import Honest

# a kernel may round a product twice where the honest evaluation does once (C B^T kept in bfloat16), and sums in fp32
MARGIN = 1.5
# of one element: in a million, a normal error passes 5.7 deviations in one of a hundred draws, and a doubly rounded
# one is 1.4 times as large
ELEMENT = 8.0
_ELEMENTS, _BEYOND = 1_000_000, 0.005
# fp32's own: sums of a few hundred terms, exponentials of sums
FLOOR = 2e-5

FP32 = 2.0**-24
UNDERFLOW = 2.0**-126  # fp32's smallest normal: what a state decays to below it is lost
# unit roundoffs: of what a matrix product reads, and of what is stored
OPERAND = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-11}
STORED = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
# the kernels' own bound on one token's log2 decay
MAX_LOG2_DECAY = 126.0


def widened(elements: int) -> float:
    """By how much the largest of so many normal errors exceeds that of a million, each with a probability of 1 %."""
    normal = NormalDist()
    # of the lower tail: the upper one is 1 to the last digit
    return max(1.0, normal.inv_cdf(_BEYOND / max(elements, 1)) / normal.inv_cdf(_BEYOND / _ELEMENTS))


def out_excess(actual: Tensor, expected: Tensor, sigma: Tensor, *, block: int = 64, among: int = 1) -> float:
    """How many times its limit the largest error of a (B, T, H, P) output is: at most 1 where it passes.

    inf for a NaN, and for an infinity where the expected value fits actual's dtype; 0.0 for empty tensors. `among` is
    of how many such outputs it is one, where many are looked at. Raises ValueError where the shapes differ.
    """
    _check_shapes(actual, expected)
    tokens = actual.shape[1]
    whole = tokens // block * block
    parts = []
    if whole:
        # all whole blocks at once, each a row of its own
        a, e, s = (t[:, :whole].reshape(-1, block, *t.shape[2:]) for t in (actual, expected, sigma))
        parts.append(_excess(a, e, s, _Piece((1, 3), block, among * actual.numel())))
    if tokens > whole:
        piece = _Piece((1, 3), tokens - whole, among * actual.numel())
        parts.append(_excess(actual[:, whole:], expected[:, whole:], sigma[:, whole:], piece))
    return max(parts, default=0.0)


def state_excess(actual: Tensor, expected: Tensor, sigma: Tensor, *, among: int = 1) -> float:
    """The same of (B, H, P, S) states."""
    _check_shapes(actual, expected)
    return _excess(actual, expected, sigma, _Piece((2, 3), actual.shape[3], among * actual.numel()))


def excess(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], of: Honest) -> float:
    """The larger of the two, of (output, final states)."""
    return max(out_excess(actual[0], expected[0], of.out_sigma), state_excess(actual[1], expected[1], of.state_sigma))


def _check_shapes(actual: Tensor, expected: Tensor) -> None:
    if actual.shape != expected.shape:
        raise ValueError(f"actual: found a {tuple(actual.shape)} tensor, expected {tuple(expected.shape)}")


class _Piece(NamedTuple):
    """Axes of one, what of it is rounded on its own, and the elements of all that are looked at."""

    axes: tuple[int, int]
    apart: int
    elements: int


def _excess(actual: Tensor, expected: Tensor, sigma: Tensor, piece: _Piece) -> float:
    if actual.numel() == 0:
        return 0.0
    # beyond the dtype's range infinity of the right sign is the right answer, and has no error to speak of
    beyond = expected.abs() + ELEMENT * sigma > torch.finfo(actual.dtype).max
    right = beyond & torch.isinf(actual) & (actual.sign() == expected.sign())
    actual, expected, sigma = (torch.where(right, 0.0, t.double()) for t in (actual, expected, sigma))
    if not bool(torch.isfinite(actual).all()):
        return math.inf
    error = (actual - expected).abs()
    values = expected.square().mean(piece.axes, keepdim=True).sqrt()
    margin = MARGIN * (1 + 4 / math.sqrt(2 * piece.apart))
    whole = error.square().mean(piece.axes, keepdim=True).sqrt()
    limit = margin * sigma.square().mean(piece.axes, keepdim=True).sqrt() + FLOOR * values
    each = ELEMENT * widened(piece.elements) * (sigma + FLOOR * values)
    return max(_ratio(whole, limit), _ratio(error, each))


def _ratio(error: Tensor, limit: Tensor) -> float:
    # nothing may differ where nothing is rounded
    ratio = torch.where(error == 0.0, 0.0, error / limit)
    return float(torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf).max())
