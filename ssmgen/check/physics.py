"""Whether the hardware allows so short a time: faster than it can read is rejected, near its best is looked at again.

Peaks are the vendors' data sheets'; what was measured on the machine itself, where it was, is for suspicion only. It
measures nothing, and of a GPU that it does not know it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ssmgen.check.contracts.base import Work
from ssmgen.check.verdict import Finding, Stage

COLD_BYTES = 128 << 20
"""What a batch's calls hold at least, where none may find its inputs in L2: twice the largest there is."""
# of a measured peak, beyond which a result has to be seen twice
_NEAR = 0.95
# times the baseline, and the incumbent
_OVER_BASELINE, _OVER_INCUMBENT = 10.0, 3.0
# what clocks and counters may be off by
_SLACK = 1e-3


@dataclass(frozen=True)
class Hardware:
    """A GPU's peaks: bytes a second from memory, FLOPs a second of dense matrix products by dtype."""

    name: str
    bandwidth: float
    flops: Mapping[str, float]
    copied: float | None = None
    """Bytes a second, read and written, of a copy on the machine itself; None where none was measured."""
    multiplied: Mapping[str, float] = field(default_factory=dict)
    """FLOPs a second of a large matrix product on the machine itself, by dtype."""


def _flops(bfloat16: float, tfloat32: float, float64: float) -> dict[str, float]:
    return {"bfloat16": bfloat16, "float16": bfloat16, "float32": tfloat32, "float64": float64}


# as the vendor states them, dense; float32 products run as tfloat32
_KNOWN = {
    "A100-SXM4-80GB": Hardware("A100", 2.039e12, _flops(312e12, 156e12, 19.5e12)),
    "H100 80GB HBM3": Hardware("H100", 3.35e12, _flops(989e12, 495e12, 67e12)),
    "H200": Hardware("H200", 4.8e12, _flops(989e12, 495e12, 67e12)),
    "B200": Hardware("B200", 8.0e12, _flops(2250e12, 1125e12, 37e12)),
}


def known(name: str) -> Hardware | None:
    """The GPU that CUDA calls `name`; None for one whose peaks are not listed here."""
    return next((each for part, each in _KNOWN.items() if name.removeprefix("NVIDIA ") == part), None)


@dataclass(frozen=True)
class Claim:
    """Microseconds of one call on the GPU, with cold caches, and of what it is compared with, where there is that."""

    time_us: float
    incumbent_us: float | None = None
    baseline_us: float | None = None
    empty_us: float = 0.0
    """Of a launch that does nothing."""


def impossible(claim: Claim, work: Work, hardware: Hardware) -> Iterator[Finding]:
    """Why a time cannot be true."""
    seconds = claim.time_us * 1e-6 * (1 + _SLACK)
    least_read = work.read / hardware.bandwidth
    if seconds < least_read:
        yield _finding(
            f"{claim.time_us:.2f} us for {work.read} bytes that must be read: "
            f"{hardware.name} takes {least_read * 1e6:.2f} us at {hardware.bandwidth / 1e12:.2f} TB/s"
        )
    dtype = str(work.matrix_dtype).removeprefix("torch.")
    least_products = work.flops / hardware.flops[dtype]
    if seconds < least_products:
        yield _finding(
            f"{claim.time_us:.2f} us for {work.flops} FLOPs: {hardware.name} takes {least_products * 1e6:.2f} us "
            f"at {hardware.flops[dtype] / 1e12:.0f} TFLOP/s of {dtype}"
        )
    if claim.time_us * (1 + _SLACK) < claim.empty_us:
        yield _finding(f"{claim.time_us:.2f} us, less than a launch that does nothing takes: {claim.empty_us:.2f} us")


def suspicious(claim: Claim, work: Work, hardware: Hardware) -> Iterator[Finding]:
    """Why a time has to be seen again, in other processes and on other values, before it is believed."""
    seconds = claim.time_us * 1e-6
    moved = work.read + work.written
    if hardware.copied is not None and seconds < moved / (_NEAR * hardware.copied):
        yield _finding(
            f"{moved / seconds / 1e12:.2f} TB/s, more than {_NEAR:.0%} of what a copy moves here "
            f"({hardware.copied / 1e12:.2f})"
        )
    dtype = str(work.matrix_dtype).removeprefix("torch.")
    measured = hardware.multiplied.get(dtype)
    if measured is not None and seconds < work.flops / (_NEAR * measured):
        yield _finding(
            f"{work.flops / seconds / 1e12:.0f} TFLOP/s, more than {_NEAR:.0%} of a matrix product's here "
            f"({measured / 1e12:.0f})"
        )
    for what, other, most in (
        ("baseline", claim.baseline_us, _OVER_BASELINE),
        ("incumbent", claim.incumbent_us, _OVER_INCUMBENT),
    ):
        if other is not None and other > most * claim.time_us:
            yield _finding(f"{other / claim.time_us:.1f} times as fast as the {what}, more than {most:g} times")


def _finding(what: str) -> Finding:
    return Finding(Stage.PHYSICS, what)
