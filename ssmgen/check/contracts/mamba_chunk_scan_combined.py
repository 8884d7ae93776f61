"""The contract of mamba_chunk_scan_combined: calls as `ssmgen.verify` draws them, mutants of its recurrence.

Its mutants are in `forward_mutants`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from ssmgen.check.contracts.base import Contract, Output, Term, Witness, Work
from ssmgen.check.contracts.forward_mutants import CHUNK, MUTANTS, Given, Results, scan
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Route
from ssmgen.reference import chunked, tolerance
from ssmgen.reference import mamba_chunk_scan_combined as reference
from ssmgen.reference.honest import honest_evaluation
from ssmgen.verify import inputs, problems
from ssmgen.verify.problems import Call

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
        return MUTANTS[without](given) if without else scan(given)

    def deviations(self, operator: mamba2.Operator, given: Given) -> Results:
        kept = getattr(torch, operator.dtypes.chunk_state)
        honest = honest_evaluation(**given, chunk=CHUNK, chunk_state=kept)
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

    def excess(self, name: str, actual: Tensor, expected: Tensor, deviation: Tensor, among: int = 1) -> float:
        measure = tolerance.out_excess if name == "out" else tolerance.state_excess
        return measure(actual, expected, deviation, among=among)

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
        empty = torch.zeros(scan(given)["final_states"].shape, dtype=torch.float64)
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


def _entries(given: Given) -> int:
    offsets = given.get("cu_seqlens")
    return int(given["x"].shape[0]) if offsets is None else int(offsets.shape[0]) - 1


def _bytes(tensor: Tensor) -> int:
    """Of its elements, each once, wherever they lie."""
    return int(tensor.numel() * tensor.element_size())
