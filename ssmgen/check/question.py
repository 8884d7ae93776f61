"""What is asked of the checker: on which problem, how hard it tries, what the machine's noise is. Plain data, checked.

It answers nothing: `compare` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ssmgen.check import physics, statistics
from ssmgen.check.contracts import CONTRACTS
from ssmgen.check.contracts.base import Contract
from ssmgen.check.samples import Plan
from ssmgen.check.statistics import Estimate
from ssmgen.errors import UsageError

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Problem:
    """What is compared: an operator of a model, the call that is timed, calls that must be right beside drawn ones."""

    operator_name: str
    operator: Any
    """The operator's entry in a spec."""
    timed: Any
    listed: tuple[Any, ...] = ()
    device: str = "cuda"
    host_bound: bool = False
    """Whether a call may be so short that the host's time is most of it."""
    baseline_us: float | None = None
    """Microseconds that one of the contract's baselines takes for the timed call, where that was measured here."""

    def __post_init__(self) -> None:
        if self.operator_name not in CONTRACTS:
            raise UsageError(f"no contract of {self.operator_name!r}", expected=" or ".join(CONTRACTS))
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}", expected=" or ".join(DEVICES))

    @property
    def contract(self) -> Contract[Any, Any]:
        return CONTRACTS[self.operator_name]

    def check_device(self) -> None:
        """UsageError where it is not here."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("device 'cuda': there is no CUDA device here", next="ask on device='cpu', interpreted")


@dataclass(frozen=True)
class Settings:
    """How much is tried. No setting loosens a limit."""

    secret: int = 6
    """Drawn calls."""
    looks: tuple[int, ...] = (8, 4, 4)
    """Pairs of processes that each look adds, while it cannot be told."""
    plan: Plan = field(default_factory=Plan)
    alpha: float = statistics.ALPHA
    hardware: physics.Hardware | None = None
    """The GPU's peaks; without them those of its kind, and what a copy and a product reach on it just now."""

    def __post_init__(self) -> None:
        # how processes differ is known of two of them
        if not self.looks or self.looks[0] < 2 or min(self.looks) < 1:
            raise UsageError(f"looks {self.looks}", expected="one or more, the first of at least 2 pairs of processes")
        if self.secret < 0 or not 0 < self.alpha < 1:
            raise UsageError(
                f"secret {self.secret}, alpha {self.alpha}", expected="no fewer than 0 calls, alpha between 0 and 1"
            )


@dataclass(frozen=True)
class Floor:
    """What this machine calls a difference between an implementation and itself, on a problem."""

    noise: float
    """As a log ratio."""
    void: bool
    estimate: Estimate
