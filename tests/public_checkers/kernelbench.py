"""KernelBench: its static checks, then its trials of a module against a reference module, on bfloat16 inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.public_checkers.adapting import answer, changed, without_gpu
from tests.public_checkers.task import TOKENS, expected, inputs, returning

TRIALS = 5


class Reference(nn.Module):
    """Both results as one tensor: it compares one."""

    def forward(self, *tensors: Tensor) -> Tensor:
        return _one(expected(*_as_given(tensors)))


class Submitted(nn.Module):
    """The candidate."""

    def __init__(self) -> None:
        super().__init__()
        self._call = returning()

    def forward(self, *tensors: Tensor) -> Tensor:
        return _one(self._call(*_as_given(tensors)))


def _one(results: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat([each.float().flatten() for each in results])


def _as_given(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """It gives every input the one dtype; x, B and C are of it, the others float32."""
    x, dt, a, b, c, d, dt_bias = tensors
    return x, dt.float(), a.float(), b, c, d.float(), dt_bias.float()


def main(checkout: Path, incumbent: Path) -> None:
    """What both say of the candidate."""
    device = without_gpu()
    sys.path.insert(0, str(checkout / "src"))
    from kernelbench.eval import run_and_check_correctness
    from kernelbench.kernel_static_checker import validate_kernel_static

    said = []
    for name, text in changed(incumbent):
        # it knows no cuTile: none of its languages is asked for
        valid, errors, _ = validate_kernel_static(text, backend="cutile", precision="bf16")
        said += [] if valid else [f"static, {name}: {'; '.join(errors)}"]
    for tokens in TOKENS:
        try:
            result = run_and_check_correctness(
                Reference(), Submitted(), lambda t=tokens: list(inputs(t, device).values()), {}, TRIALS,
                device=torch.device(device), backend="cutile", precision=torch.bfloat16,
            )  # fmt: skip
        except Exception as e:
            answer(False, f"{type(e).__name__}: {e}", said)
            return
        if not result.correctness:
            said.append(f"trials of {tokens} tokens: {_reason(result.metadata)}")
    answer(not said, "correct", said)


def _reason(metadata: dict[str, object]) -> str:
    return str(metadata.get("runtime_error") or metadata.get("correctness_issue"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
