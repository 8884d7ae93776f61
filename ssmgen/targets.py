"""The GPUs kernels are generated for, and what of each bounds a schedule.

Facts from NVIDIA's compute-capability tables; it asks no device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ssmgen.errors import SpecError


@dataclass(frozen=True)
class Target:
    """One compute capability: `smem_bytes` a block may use, `sms` of the part first derived for, `tma` or not."""

    name: str
    capability: tuple[int, int]
    smem_bytes: int
    sms: int
    tma: bool
    gpu: str


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("sm_80", (8, 0), 163 * 1024, 108, False, "A100"),
        Target("sm_90", (9, 0), 227 * 1024, 132, True, "H100, H200"),
        Target("sm_100", (10, 0), 227 * 1024, 148, True, "B200, GB200"),
        Target("sm_103", (10, 3), 227 * 1024, 148, True, "B300, GB300"),
        Target("sm_120", (12, 0), 99 * 1024, 188, True, "RTX PRO 6000, RTX 5090"),
    )
}


def target(name: str) -> Target:
    """The target of that name; SpecError lists the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise SpecError(
            f"unknown target {name!r}",
            found=name,
            expected="one of " + ", ".join(TARGETS),
            next="give one of these",
        ) from None
