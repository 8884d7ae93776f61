"""The contract of selective_state_update: one step a row, and mutants of it.

A mutant is the reference of another call, or its results with a step left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

from ssmgen.check.contracts import decode
from ssmgen.check.contracts.base import Contract, Output, Term, Witness, Work
from ssmgen.check.contracts.decode import Call, Drawn
from ssmgen.ops import selective_state_update as operator_module
from ssmgen.ops.mamba_chunk_scan_combined import Shape
from ssmgen.ops.selective_state_update import Dtypes, Operator, Options
from ssmgen.reference import decode_tolerance, tolerance
from ssmgen.reference import selective_state_update as reference
from ssmgen.reference.mamba_chunk_scan_combined import silu, time_step

Given = Mapping[str, Any]
Results = dict[str, Tensor]

_KEPT = "no step decays the state by as much as the last digit that is kept"
_LINEAR = "softplus of so large a number is that number"
_FORGOTTEN = dict.fromkeys(("strong_decay", "enormous_token"), "the state before the step decays to nothing")
_SMALL = "the step changes no digit of the state that is kept"
_BLIND_SOFTPLUS = {"large_steps": _LINEAR, "enormous_token": _LINEAR, "tiny_steps": _SMALL}
_SHAPE = Shape(heads=6, groups=2, head_dim=20, state=24)
_OPTIONS = Options(D=True, z="silu", dt_bias=True, dt_softplus=True, slots=True)


class Update(Contract[Operator, Call]):
    """Mamba-2's decode step (Dao and Gu 2024, arXiv:2405.21060), with the names of mamba_ssm's function."""

    name = operator_module.NAME
    regimes = decode.REGIMES
    activations = ("x", "B", "C", "z", "state")
    in_place = ("state",)
    baselines = ("mamba_ssm", "vllm")
    terms = (
        Term("decay", "A is 0", {"zero_decay": _KEPT, "tiny_steps": _KEPT}),
        Term("input", "nothing is added to the state", {"tiny_steps": _SMALL}),
        Term("D", "no skip"),
        Term("z", "no gate"),
        Term("dt_bias", "no bias", {"tiny_steps": _SMALL}),
        Term("dt_softplus", "max(dt, 0) for softplus", _BLIND_SOFTPLUS),
        Term("groups", "head h reads group h % G"),
        Term("carry", "the state before the step is taken for zero", _FORGOTTEN),
        Term("state", "the state after the step is not stored", {"tiny_steps": _SMALL}),
        Term("slots", "row b takes slot b"),
        Term("padding", "a row without a slot takes a free one"),
    )

    def given(self, operator: Operator, call: Call, device: str = "cpu") -> dict[str, Any]:
        shape, chosen = operator.shape, operator.options
        heads, dim, kind = shape.heads, shape.head_dim, getattr(torch, operator.dtypes.x)
        drawn = Drawn.of(call, heads)
        slots, size = drawn.slots(call, 0, -1)
        bias = drawn.normal(heads) * 0.5 if chosen.dt_bias else torch.zeros(heads)
        raw = drawn.before_softplus(bias) if chosen.dt_softplus else drawn.step - bias.double()
        groups = (call.batch, shape.groups, shape.state)
        given: dict[str, Any] = {
            "state": drawn.normal(size, heads, dim, shape.state).to(getattr(torch, operator.dtypes.state)),
            "x": drawn.normal(call.batch, heads, dim).to(kind),
            # tied: every channel of a head has its head's, at stride 0
            "dt": raw.to(kind)[..., None].expand(-1, -1, dim),
            "A": drawn.decay.float()[:, None, None].expand(-1, dim, shape.state),
            "B": drawn.normal(*groups).to(kind),
            "C": drawn.normal(*groups).to(kind),
        }
        given |= {"D": drawn.normal(heads)[:, None].expand(-1, dim)} if chosen.D else {}
        given |= {"z": (3 * drawn.normal(call.batch, heads, dim)).to(kind)} if chosen.z != "none" else {}
        given |= {"dt_bias": bias[:, None].expand(-1, dim)} if chosen.dt_bias else {}
        given |= {"state_batch_indices": slots} if chosen.slots else {}
        placed = {name: value.to(device) for name, value in given.items()}
        return placed | {"dt_softplus": chosen.dt_softplus}

    def outputs(self, operator: Operator, given: Given) -> dict[str, Output]:
        return {"out": Output(tuple(given["x"].shape), given["x"].dtype)}

    def reference(self, given: Given, without: str = "") -> Results:
        return _MUTANTS[without](given) if without else _step(given)

    def deviations(self, operator: Operator, given: Given) -> Results:
        results = _step(given)
        x, state, slots = given["x"], given["state"], _slots(given)
        rows = (slots >= 0).nonzero()[:, 0]
        used = slots[rows].long()
        heads = x.shape[1]
        group = torch.arange(heads, device=x.device) // (heads // given["B"].shape[1])
        step, exponent = _exponent(given)
        decayed = torch.exp(exponent[rows])[..., None, None] * state[used].double()
        added = ((step[..., None] * x.double())[..., None] * given["B"].double()[:, group][:, :, None, :])[rows]
        gate = torch.ones_like(results["out"]) if given.get("z") is None else silu(given["z"])
        read = given["C"].double()[rows][:, group][:, :, None, :]
        parts = decode_tolerance.Step(decayed, exponent[rows], added, added.abs(), read)
        # of the output before its gate, which multiplies what it errs by
        bare = torch.where(gate[rows] == 0, 0.0, results["out"][rows] / gate[rows])
        of_out, of_state = decode_tolerance.deviations(parts, bare, x.dtype, state.dtype)
        out = torch.zeros_like(results["out"]).index_copy(0, rows, of_out * gate[rows].abs())
        return {"out": out, "state": decode.in_pool(used, of_state, state)}

    def excess(self, name: str, actual: Tensor, expected: Tensor, deviation: Tensor, among: int = 1) -> float:
        if name == "state":
            return decode.pool_excess(actual, expected, deviation, among=among)
        return tolerance.out_excess(actual[:, None], expected[:, None], deviation[:, None], among=among)

    def witnesses(self, regime: str, seed: int) -> list[Witness[Operator]]:
        found = []
        for slots, dtype, state in (("shuffled", "bfloat16", "float32"), ("padded", "float32", "bfloat16")):
            operator = Operator(
                shape=_SHAPE, dtypes=Dtypes.model_validate({"x": dtype, "state": state}), options=_OPTIONS
            )
            call = Call(batch=5, slots=slots, regime=regime, seed=seed)
            found.append(Witness(f"{slots}, {dtype}, state {state}", operator, self.given(operator, call)))
        return found

    def copies(self, given: Given) -> Results:
        return {"out": given["x"].double(), "state": given["state"].double()}

    def draw(self, operator: Operator, random: Random) -> Call:
        return decode.draw(random)

    def work(self, operator: Operator, given: Given) -> Work:
        rows = int((_slots(given) >= 0).count_nonzero())
        shape = operator.shape
        of_state = rows * shape.heads * shape.head_dim * shape.state * given["state"].element_size()
        read = sum(given[n].numel() * given[n].element_size() for n in ("x", "B", "C", "z") if n in given)
        out = given["x"].numel() * given["x"].element_size()
        flops = 6 * rows * shape.heads * shape.head_dim * shape.state
        return Work(of_state + read, of_state + out, flops, torch.float32)


def _step(given: Given) -> Results:
    out, state = reference.selective_state_update(**given)
    return {"out": out, "state": state}


def _without_carry(given: Given) -> Results:
    slots = _slots(given)
    return _step({**given, "state": given["state"].index_fill(0, slots[slots >= 0].long(), 0.0)})


def _slots(given: Given) -> Tensor:
    slots = given.get("state_batch_indices")
    return torch.arange(len(given["x"]), device=given["x"].device) if slots is None else slots


def _exponent(given: Given) -> tuple[Tensor, Tensor]:
    """dt' and A dt', (B, H) each."""
    bias = given.get("dt_bias")
    step = time_step(
        given["dt"][..., 0], None if bias is None else bias[:, 0], given["dt_softplus"], (-math.inf, math.inf)
    )
    return step, given["A"][:, 0, 0].double() * step


def _changed(**changes: Callable[[Given], Any]) -> Callable[[Given], Results]:
    """The reference of a call with some arguments changed; None takes one away."""
    return lambda given: _step({**given, **{name: change(given) for name, change in changes.items()}})


def _other_groups(name: str) -> Callable[[Given], Tensor]:
    def change(given: Given) -> Tensor:
        heads, groups = given["x"].shape[1], given[name].shape[1]
        changed: Tensor = given[name][:, torch.arange(heads, device=given[name].device) % groups]
        return changed

    return change


def _relu(given: Given) -> Tensor:
    bias = given.get("dt_bias")
    changed: Tensor = (given["dt"].double() + (0.0 if bias is None else bias.double())).clamp(min=0.0)
    return changed


_MUTANTS: dict[str, Callable[[Given], Results]] = {
    "decay": _changed(A=lambda given: given["A"] * 0.0),
    "input": _changed(B=lambda given: given["B"] * 0.0),
    "D": _changed(D=lambda _: None),
    "z": _changed(z=lambda _: None),
    "dt_bias": _changed(dt_bias=lambda _: None),
    "dt_softplus": _changed(dt=_relu, dt_bias=lambda _: None, dt_softplus=lambda _: False),
    "groups": _changed(B=_other_groups("B"), C=_other_groups("C")),
    "carry": _without_carry,
    "state": lambda given: _step(given) | {"state": given["state"].double()},
    "slots": _changed(state_batch_indices=lambda _: None),
    "padding": _changed(state_batch_indices=lambda given: decode.without_padding(_slots(given), given["state"])),
}
