"""One problem: the kernels' results beside the fp64 recurrence, in units of the tolerance."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ssmgen.ops.mamba_chunk_scan_combined import Operator
from ssmgen.verify.inputs import arguments
from ssmgen.verify.problems import Call, Chunks

if TYPE_CHECKING:
    import torch

    from ssmgen.reference.honest import Honest


@dataclass(frozen=True)
class Subject:
    """What is under test: the kernels of a model, its operator, and the shortest chunks that its schedules have."""

    kernels: ModuleType
    operator: Operator
    chunks: Chunks
    device: str = "cpu"


@dataclass(frozen=True)
class Result:
    """Errors relative to the recurrence, and how many times its limit the larger one is (at most 1 passes)."""

    call: Call
    out_error: float
    state_error: float
    excess: float
    seconds: float

    @property
    def passed(self) -> bool:
        return self.excess <= 1


def results(subject: Subject, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, and final states of all rows or sequences, of the operator for these arguments.

    They lie in memory that was NaN before: the interpreter sees to that, and on a GPU torch's deterministic mode.
    AssertionError where results contradict each other, or rows past the last sequence are not 0.
    """
    import torch

    packed = given.get("cu_seqlens") is not None
    more = dict(return_varlen_states=True, state_dtype=torch.float32) if packed else {}
    call = subject.kernels.mamba_chunk_scan_combined
    with torch.no_grad(), nullcontext() if subject.device == "cpu" else _NanFilled():
        out, *states = call(**given, chunk_size=64, return_final_states=True, **more)
    if subject.device != "cpu":
        torch.cuda.synchronize()
    if packed:
        final, of_all = states
        if not torch.equal(final, of_all[-1:]):
            raise AssertionError("the final states are not the last sequence's")
        if bool(out[:, int(given["cu_seqlens"][-1]) :].count_nonzero()):
            raise AssertionError("rows past the last sequence are not 0")
    return out, states[-1]


def honest(subject: Subject, given: Mapping[str, Any]) -> Honest:
    """What an honest evaluation makes of these arguments, with the deviations of its roundings."""
    import torch

    from ssmgen.reference.honest import honest_evaluation

    kept = getattr(torch, subject.operator.dtypes.chunk_state)
    packed = given.get("cu_seqlens") is not None or given.get("seq_idx") is not None
    chunk = subject.chunks.packed if packed else subject.chunks.unpacked
    return honest_evaluation(**given, chunk=chunk, chunk_state=kept)


def run(subject: Subject, call: Call) -> Result:
    """Call the operator, and compare; raises what the call raises."""
    from ssmgen.interpreter.launching import one_thread
    from ssmgen.reference import mamba_chunk_scan_combined as reference
    from ssmgen.reference import tolerance

    given = arguments(subject.operator, call, subject.device)
    start = time.perf_counter()
    out, state = results(subject, given)
    seconds = time.perf_counter() - start
    with one_thread():
        expected, expected_state = reference.mamba_chunk_scan_combined(**given)
        sigma = honest(subject, given)
    return Result(
        call,
        reference.error(out, expected),
        reference.state_error(state, expected_state),
        tolerance.excess((out, state), (expected, expected_state), sigma),
        seconds,
    )


class _NanFilled:
    """torch.empty gives NaN within it."""

    def __enter__(self) -> None:
        import torch

        self._mode: Any = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        torch.use_deterministic_algorithms(True, warn_only=True)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.use_deterministic_algorithms(self._mode[0], warn_only=self._mode[1])
