"""The Mamba-2 forward of the red team's model as a task for other checkers: inputs, expected results, a candidate.

Inputs are of a model's scale, as the author of a good task would have them; the reference is the fp64 recurrence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssmgen.check.contracts.mamba_chunk_scan_combined import Forward
from ssmgen.check.runner import opened, run_of
from ssmgen.verify.problems import Call
from tests.adversarial import MODEL

TENSORS = ("x", "dt", "A", "B", "C", "D", "dt_bias")
TOKENS = (64, 128)
"""Of the calls that are listed."""
CANDIDATE, ARCHIVE = "SSMGEN_CANDIDATE", "SSMGEN_CANDIDATE_CUBINS"
"""Environment variables: the candidate's package, and where there is a GPU its cubins."""
CALLS = 60
"""What stands for a timer where there is no GPU: about as many calls as those make."""
_CONTRACT = Forward()


def inputs(tokens: int, device: str = "cpu") -> dict[str, Tensor]:
    """Tensors of a call of batch 2, by torch's own generator: whoever seeds that gets the same ones."""
    seed = int(torch.randint(2**31, (1,)))
    given = _CONTRACT.given(MODEL.operator, Call(batch=2, tokens=tokens, seed=seed), device)
    return {name: given[name] for name in TENSORS}


def expected(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """(out, final_states) by the fp64 recurrence, in the operator's dtypes."""
    found = _CONTRACT.reference(_given(tensors))
    return found["out"].to(tensors[0].dtype), found["final_states"].float()


def filling() -> Callable[..., None]:
    """The candidate, as a function of the tensors and of (out, final_states), which it fills."""
    run = run_of(_package())

    def fill(*given: Tensor) -> None:
        *tensors, out, final_states = given
        run(**_CONTRACT.arguments(_given(tensors)), out=out, final_states=final_states)

    return fill


def returning() -> Callable[..., tuple[Tensor, Tensor]]:
    """The candidate, as a function of the tensors that returns (out, final_states)."""
    forward = vars(_package()._forward)["forward"]
    names = forward.__code__.co_varnames[: forward.__code__.co_argcount]

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = _CONTRACT.arguments(_given(tensors))
        out, final_states = forward(**{name: given.get(name, False) for name in names})
        return out, final_states

    return call


def _package() -> Any:
    return opened(Path(os.environ[CANDIDATE]), os.environ.get(ARCHIVE))


def _given(tensors: Any) -> dict[str, Any]:
    names = dict(zip(TENSORS, tensors, strict=True))
    return _CONTRACT.given(MODEL.operator, Call(batch=2, tokens=1)) | names
