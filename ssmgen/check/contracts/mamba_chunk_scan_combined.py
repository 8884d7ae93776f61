"""The contract of mamba_chunk_scan_combined: calls as `ssmgen.verify` draws them, mutants of its recurrence.

A mutant is the reference of another call: of one whose arguments were changed so that a term has no effect. The
reference itself knows of no mutants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from ssmgen.check.contracts.base import Contract, Output, Term, Witness, Work
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Route
from ssmgen.reference import chunked, tolerance
from ssmgen.reference import mamba_chunk_scan_combined as reference
from ssmgen.verify import inputs, problems
from ssmgen.verify.problems import Call

# tokens of the chunks that a mutant carries no state across, and that an honest evaluation has
CHUNK = 64
Given = Mapping[str, Any]
Results = dict[str, Tensor]

# longer than two chunks, no multiple of one, and of every option something
_TOKENS = 150
_OPERATOR = mamba2.Operator(
    shape=mamba2.Shape(heads=6, groups=2, head_dim=20, state=24),
    dtypes=mamba2.Dtypes(x="bfloat16", dt="float32", chunk_state="bfloat16", state="float32"),
    options=mamba2.Options(
        D="per_head", z="silu", dt_bias=True, dt_softplus=True, dt_limit="runtime", initial_states=True, packed=True
    ),
    routes={
        "all": Route(when="B >= 1", plan="three_stage"),
        "packed": Route(when="B >= 1", plan="packed"),
    },
)
_WITNESSES = {
    "rows": Call(batch=2, tokens=_TOKENS, initial_states=True),
    "cu_seqlens": Call(tokens=_TOKENS, initial_states=True, sequences="cu_seqlens", cuts="empty"),
    "seq_idx": Call(batch=2, tokens=_TOKENS, initial_states=True, sequences="seq_idx", cuts="two"),
}

_STEADY = "dt' is 0: no token adds to the state, and none decays it"
_LOST = "the state decays to nothing within a token, so that none is carried"
_KEPT = "no token decays the state by as much as the last digit that is kept"
_LINEAR = "softplus of so large a number is that number"
_DWARFED = "what a state of so large steps gives hides a skip of its last digit's size"
_MINUTE = "a bias of less than a hundredth of the step changes it by less than is rounded away"


class Forward(Contract[mamba2.Operator, Call]):
    """Mamba-2's chunked scan (Dao and Gu 2024, arXiv:2405.21060), as OPS states it for this operator."""

    name = mamba2.NAME
    regimes = inputs.REGIMES
    activations = ("x", "B", "C", "z", "initial_states")
    baselines = ("mamba_ssm",)
    terms = (
        Term("decay", "A is 0", {"zero_decay": _KEPT, "tiny_steps": _KEPT, "no_step": _STEADY}),
        Term("carry", f"the state is 0 at the start of every chunk of {CHUNK} tokens", {"strong_decay": _LOST}),
        Term("input", "no token adds to the state", {"no_step": _STEADY}),
        Term("D", "no skip", {"large_steps": _DWARFED}),
        Term("z", "no gate"),
        Term("dt_bias", "no bias", {"large_steps": _MINUTE, "no_step": _STEADY}),
        Term("dt_softplus", "max(dt, 0) for softplus", {"large_steps": _LINEAR, "no_step": _STEADY}),
        Term("dt_limit", "no clamp"),
        Term("initial_states", "every sequence starts from zero"),
        Term("final_states", "never written: zeros"),
        Term(
            "last_chunk",
            f"final states are those at the start of the last chunk of {CHUNK} tokens",
            {"no_step": _STEADY},
        ),
        Term("groups", "head h reads group h % G"),
        Term("reset", "a sequence goes on from the state of the one before it"),
        Term("own_initial_states", "every sequence starts from the first one's state"),
        Term("empty_sequences", "the final state of a sequence without tokens is zero"),
    )

    def given(self, operator: mamba2.Operator, call: Call, device: str = "cpu") -> dict[str, Any]:
        return inputs.arguments(operator, call, device)

    def arguments(self, given: Given) -> dict[str, Any]:
        names = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens")
        low, high = given.get("dt_limit", (0.0, math.inf))
        return {name: given.get(name) for name in names} | {"dt_min": float(low), "dt_max": float(high)}

    def outputs(self, operator: mamba2.Operator, given: Given) -> dict[str, Output]:
        x, shape = given["x"], operator.shape
        states = (_entries(given), shape.heads, shape.head_dim, shape.state)
        return {"out": Output(tuple(x.shape), x.dtype), "final_states": Output(states, torch.float32)}

    def reference(self, given: Given, without: str = "") -> Results:
        return _MUTANTS[without](given) if without else _scan(given)

    def deviations(self, operator: mamba2.Operator, given: Given) -> Results:
        kept = getattr(torch, operator.dtypes.chunk_state)
        honest = tolerance.honest(**given, chunk=CHUNK, chunk_state=kept)
        return {"out": honest.out_sigma, "final_states": honest.state_sigma}

    def evaluation(self, operator: mamba2.Operator, given: Given) -> tuple[Results, Results]:
        if given.get("seq_idx") is not None or given.get("cu_seqlens") is not None:
            return super().evaluation(operator, given)
        kept = getattr(torch, operator.dtypes.chunk_state)
        made = chunked.evaluate(**given, chunk=CHUNK, chunk_state=kept)
        return (
            {"out": made.out, "final_states": made.state},
            {"out": made.out_sigma, "final_states": made.state_sigma},
        )

    def excess(self, name: str, actual: Tensor, expected: Tensor, deviation: Tensor) -> float:
        measure = tolerance.out_excess if name == "out" else tolerance.state_excess
        return measure(actual, expected, deviation)

    def fresh(self, given: Given, generator: torch.Generator) -> dict[str, Any]:
        values = super().fresh(given, generator)
        dt = given["dt"]
        if dt.shape[1]:
            # of other tokens: a head keeps its time steps, which go with its decay
            by = int(torch.randint(dt.shape[1], (1,), generator=generator, device=dt.device))
            values["dt"] = dt.roll(by, 1)
        return values

    def witnesses(self, regime: str, seed: int) -> list[Witness[mamba2.Operator]]:
        found = []
        for name, call in _WITNESSES.items():
            given = inputs.arguments(_OPERATOR, replace(call, regime=regime, seed=seed))
            if math.isinf(given["dt_limit"][1]):
                # where the regime has no limit of its own, one that about half of the steps meet
                step = reference.time_step(given["dt"], given["dt_bias"], True, (0.0, math.inf))
                given["dt_limit"] = tuple(float(step.quantile(q)) for q in (0.25, 0.75))
            found.append(Witness(name, _OPERATOR, given))
        return found

    def copies(self, given: Given) -> Results:
        states = given.get("initial_states")
        empty = torch.zeros(_scan(given)["final_states"].shape, dtype=torch.float64)
        return {"out": given["x"].double(), "final_states": empty if states is None else states.double()}

    def draw(self, operator: mamba2.Operator, random: Random) -> Call:
        call = problems.sample(Call, random).for_model(operator)
        # sizes no list has, about the borders of chunks as often as not
        tokens = random.choice((random.randint(1, 300), CHUNK * random.randint(1, 4) + random.randint(-1, 1)))
        return replace(call, tokens=tokens, batch=random.randint(1, 3), seed=random.getrandbits(31))

    def work(self, operator: mamba2.Operator, given: Given) -> Work:
        shape, outputs = operator.shape, self.outputs(operator, given)
        read = sum(_bytes(value) for value in given.values() if isinstance(value, Tensor))
        written = sum(math.prod(o.shape) * o.dtype.itemsize for o in outputs.values())
        # token by token: decay and add to the state, and read it, two operations each
        recurrent = 6 * given["x"].shape[0] * given["x"].shape[1] * shape.heads * shape.head_dim * shape.state
        # in chunks the products with the state remain, and of those within a chunk at least the diagonal
        chunked = recurrent * 2 // 3
        return Work(read, written, chunked, getattr(torch, operator.dtypes.x))


def _scan(given: Given) -> Results:
    out, states = reference.mamba_chunk_scan_combined(**given)
    return {"out": out, "final_states": states}


def _entries(given: Given) -> int:
    offsets = given.get("cu_seqlens")
    return int(given["x"].shape[0]) if offsets is None else int(offsets.shape[0]) - 1


def _bytes(tensor: Tensor) -> int:
    """Of its elements, each once, wherever they lie."""
    return int(tensor.numel() * tensor.element_size())


def _changed(**changes: Callable[[Given], Any]) -> Callable[[Given], Results]:
    """The reference of a call with some arguments changed; None takes one away."""
    return lambda given: _scan({**given, **{name: change(given) for name, change in changes.items()}})


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
        results = _scan(rest | by_token | {"initial_states": h[None]})
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
    return _scan(given) | {"final_states": _by_entry(given, states)}


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
    return _scan(given if states is None else {**given, "initial_states": states[:1].expand_as(states)})


def _without_empty_sequences(given: Given) -> Results:
    results = _scan(given)
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


_MUTANTS: dict[str, Callable[[Given], Results]] = {
    "decay": _changed(A=lambda given: given["A"] * 0.0),
    "carry": _without_carry,
    "input": _changed(B=lambda given: given["B"] * 0.0),
    "D": _changed(D=lambda _: None),
    "z": _changed(z=lambda _: None),
    "dt_bias": _changed(dt_bias=lambda _: None),
    "dt_softplus": _changed(dt=_relu, dt_bias=lambda _: None, dt_softplus=lambda _: False),
    "dt_limit": _changed(dt_limit=lambda _: (0.0, math.inf)),
    "initial_states": _changed(initial_states=lambda _: None),
    "final_states": lambda given: _scan(given) | {"final_states": _scan(given)["final_states"] * 0.0},
    "last_chunk": _without_last_chunk,
    "groups": _changed(B=_other_groups("B"), C=_other_groups("C")),
    "reset": _without_reset,
    "own_initial_states": _without_own_initial_states,
    "empty_sequences": _without_empty_sequences,
}
