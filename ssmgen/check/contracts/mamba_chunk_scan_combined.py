"""The contract of mamba_chunk_scan_combined: calls as `ssmgen.verify` draws them, mutants of its recurrence.

Its mutants are in `forward_mutants`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
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

# regimes that have limits of their own, and how often a call is of an unusual size
_LIMITED, _RARELY = ("limited", "no_step"), 0.25
_VECTORS = ("float32", "float32", "bfloat16", "float64")
# of tokens, a chunk that a schedule may have
_SHORTEST = 16
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


@dataclass(frozen=True)
class Secret(Call):
    """A drawn call beyond what `ssmgen.verify` draws: scales, limits of dt, dtypes of what is read as float32."""

    scale: float = 1.0
    """Of x, in which the operator is linear."""
    limit: tuple[float, float] | None = None
    """dt_limit, instead of the regime's."""
    vectors: str = "float32"
    """The dtype of A, D, dt_bias and the initial states."""

    def varied(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the plain call, changed as the fields say."""
        values = given | {"x": given["x"] * self.scale}
        if self.limit is not None and "dt_limit" in given:
            values["dt_limit"] = self.limit
        for name in ("A", "D", "dt_bias", "initial_states"):
            if given.get(name) is not None:
                values[name] = given[name].to(getattr(torch, self.vectors))
        return values


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
        given = inputs.arguments(operator, call, device)
        return call.varied(given) if isinstance(call, Secret) else given

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
        honest = honest_evaluation(**given, **_stored(operator))
        return {"out": honest.out_sigma, "final_states": honest.state_sigma}

    def evaluation(self, operator: mamba2.Operator, given: Given) -> tuple[Results, Results]:
        if given.get("seq_idx") is not None or given.get("cu_seqlens") is not None:
            return super().evaluation(operator, given)
        made = chunked.evaluate(**given, **_stored(operator))
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
        # sizes no list has, about the borders of chunks as often as not; at times none, long or many
        tokens = random.choice((random.randint(1, 300), CHUNK * random.randint(1, 4) + random.randint(-1, 1)))
        batch = random.randint(1, 3)
        if random.random() < _RARELY:
            tokens, batch = random.choice(((0, batch), (random.randint(300, 1000), 1), (random.randint(1, 20), 9)))
        kept = {f.name: getattr(call, f.name) for f in fields(Call)}
        kept |= {"tokens": tokens, "batch": batch, "seed": random.getrandbits(31)}
        limit = None
        if call.regime not in _LIMITED and random.random() < 0.5:
            low = 10 ** random.uniform(-4, -1)
            limit = (low, low * 10 ** random.uniform(0.5, 3))
        scales = (1.0, 1.0, 1 / 64) if operator.dtypes.x == "float16" else (1.0, 1.0, 1 / 64, 64.0)
        return Secret(**kept, scale=random.choice(scales), limit=limit, vectors=random.choice(_VECTORS))

    def hard(self, operator: mamba2.Operator) -> tuple[Call, ...]:
        # nothing decays, and the row is long: what is lost at every chunk adds up
        return (Call(tokens=2500, regime="zero_decay", initial_states=True),)

    def work(self, operator: mamba2.Operator, given: Given) -> Work:
        shape, outputs = operator.shape, self.outputs(operator, given)
        read = sum(_bytes(value) for value in given.values() if isinstance(value, Tensor))
        written = sum(math.prod(o.shape) * o.dtype.itemsize for o in outputs.values())
        # token by token: decay and add to the state, and read it, two operations each
        recurrent = 6 * given["x"].shape[0] * given["x"].shape[1] * shape.heads * shape.head_dim * shape.state
        # in chunks the products with the state remain, and of those within a chunk at least the diagonal
        chunked = recurrent * 2 // 3
        return Work(read, written, chunked, getattr(torch, operator.dtypes.x))


def _stored(operator: mamba2.Operator) -> dict[str, Any]:
    """How often states are rounded, and to what.

    Where they have fewer digits than the activations, that is most of the error, and more of it the shorter a chunk is:
    schedules may take any, so the shortest counts.
    """
    stored, x = (getattr(torch, name) for name in (operator.dtypes.chunk_state, operator.dtypes.x))
    coarser = torch.finfo(stored).eps > torch.finfo(x).eps
    return {"chunk": _SHORTEST if coarser else CHUNK, "chunk_state": stored}


def _entries(given: Given) -> int:
    offsets = given.get("cu_seqlens")
    return int(given["x"].shape[0]) if offsets is None else int(offsets.shape[0]) - 1


def _bytes(tensor: Tensor) -> int:
    """Of its elements, each once, wherever they lie."""
    return int(tensor.numel() * tensor.element_size())
