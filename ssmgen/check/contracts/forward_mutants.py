"""What the forward pass would be without a term: the reference of another call, or of a call in pieces.

The reference itself knows of no mutants; cut nowhere and changed in nothing, these are the reference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmgen.reference import mamba_chunk_scan_combined as reference

# tokens of the chunks that a mutant carries no state across
CHUNK = 64
Given = Mapping[str, Any]
Results = dict[str, Tensor]


def scan(given: Given) -> Results:
    """The reference's results, by name."""
    out, states = reference.mamba_chunk_scan_combined(**given)
    return {"out": out, "final_states": states}


def _changed(**changes: Callable[[Given], Any]) -> Callable[[Given], Results]:
    """The reference of a call with some arguments changed; None takes one away."""
    return lambda given: scan({**given, **{name: change(given) for name, change in changes.items()}})


@dataclass(frozen=True)
class _Sequence:
    """Tokens [start, stop) of a row, and the state before them: of a packed row, or a row as a whole."""

    given: Given
    row: int
    start: int
    stop: int
    h: Tensor

    def scan(self, start: int, stop: int, h: Tensor) -> tuple[Tensor, Tensor]:
        """Output and final state of some of its tokens, from the state `h`."""
        given, tokens = self.given, (slice(self.row, self.row + 1), slice(start, stop))
        by_token = {name: given[name][tokens] for name in ("x", "dt", "B", "C", "z") if given.get(name) is not None}
        rest = {name: given[name] for name in ("A", "D", "dt_bias", "dt_softplus", "dt_limit") if name in given}
        results = scan(rest | by_token | {"initial_states": h[None]})
        return results["out"][0], results["final_states"][0]


def _sequences(given: Given) -> Iterator[_Sequence]:
    """Row by row, in order."""
    x, offsets, states = given["x"], given.get("cu_seqlens"), given.get("initial_states")
    nothing = torch.zeros((x.shape[2], x.shape[3], given["B"].shape[3]), dtype=torch.float64)
    for row in range(x.shape[0]):
        if offsets is not None:
            cuts = offsets.tolist()
        else:
            starts = reference.starts(x, given.get("seq_idx"), None)[row].nonzero()[:, 0].tolist()
            cuts = [0, *starts, x.shape[1]]
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            entry = number if offsets is not None else row
            own = states is not None and (offsets is not None or number == 0)
            yield _Sequence(given, row, start, stop, states[entry].double() if own and states is not None else nothing)


def _by_entry(given: Given, states: list[Tensor]) -> Tensor:
    """Final states as the operator returns them, from those of all sequences: of rows, the last one's."""
    if given.get("cu_seqlens") is not None:
        return torch.stack(states)
    last = {sequence.row: state for sequence, state in zip(_sequences(given), states, strict=True)}
    return torch.stack(list(last.values()))


def _without_carry(given: Given) -> Results:
    out, states = torch.zeros(given["x"].shape, dtype=torch.float64), []
    for sequence in _sequences(given):
        h = sequence.h
        borders = [t for t in range(sequence.start + 1, sequence.stop) if t % CHUNK == 0]
        for start, stop in itertools.pairwise([sequence.start, *borders, sequence.stop]):
            entering = h if start == sequence.start else torch.zeros_like(h)
            out[sequence.row, start:stop], h = sequence.scan(start, stop, entering)
        states.append(h)
    return {"out": out, "final_states": _by_entry(given, states)}


def _without_last_chunk(given: Given) -> Results:
    states = []
    for sequence in _sequences(given):
        stop = max(sequence.start, (sequence.stop - 1) // CHUNK * CHUNK)
        states.append(sequence.scan(sequence.start, stop, sequence.h)[1])
    return scan(given) | {"final_states": _by_entry(given, states)}


def _without_reset(given: Given) -> Results:
    out, states = torch.zeros(given["x"].shape, dtype=torch.float64), []
    row, h = -1, torch.empty(0)
    for sequence in _sequences(given):
        h = h if sequence.row == row else sequence.h
        row, tokens = sequence.row, slice(sequence.start, sequence.stop)
        out[row, tokens], h = sequence.scan(sequence.start, sequence.stop, h)
        states.append(h)
    return {"out": out, "final_states": _by_entry(given, states)}


def _without_own_initial_states(given: Given) -> Results:
    states = given.get("initial_states")
    return scan(given if states is None else {**given, "initial_states": states[:1].expand_as(states)})


def _without_empty_sequences(given: Given) -> Results:
    results = scan(given)
    if given.get("cu_seqlens") is not None:
        results["final_states"] = results["final_states"] * (given["cu_seqlens"].diff() > 0)[:, None, None, None]
    return results


def _other_groups(name: str) -> Callable[[Given], Tensor]:
    def change(given: Given) -> Tensor:
        heads, groups = given["x"].shape[2], given[name].shape[2]
        changed: Tensor = given[name][:, :, torch.arange(heads, device=given[name].device) % groups]
        return changed

    return change


def _relu(given: Given) -> Tensor:
    # max(s, 0) with s before softplus: the clamp of dt_limit would take it for a step that is too small
    dt = given["dt"].double() + (0.0 if given.get("dt_bias") is None else given["dt_bias"].double())
    changed: Tensor = dt.clamp(min=0.0)
    return changed


MUTANTS: dict[str, Callable[[Given], Results]] = {
    "decay": _changed(A=lambda given: given["A"] * 0.0),
    "carry": _without_carry,
    "input": _changed(B=lambda given: given["B"] * 0.0),
    "D": _changed(D=lambda _: None),
    "z": _changed(z=lambda _: None),
    "dt_bias": _changed(dt_bias=lambda _: None),
    "dt_softplus": _changed(dt=_relu, dt_bias=lambda _: None, dt_softplus=lambda _: False),
    "dt_limit": _changed(dt_limit=lambda _: (0.0, math.inf)),
    "initial_states": _changed(initial_states=lambda _: None),
    "final_states": lambda given: scan(given) | {"final_states": scan(given)["final_states"] * 0.0},
    "last_chunk": _without_last_chunk,
    "groups": _changed(B=_other_groups("B"), C=_other_groups("C")),
    "reset": _without_reset,
    "own_initial_states": _without_own_initial_states,
    "empty_sequences": _without_empty_sequences,
}
"""By the name of the term."""
