"""The contract of gated_delta_rule_packed_decode: one step a row, and mutants of it.

A mutant is the reference of another call, its results with a step left out, or the recurrence here with a term less,
which with every term is the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

from ssmgen.check.contracts import decode
from ssmgen.check.contracts.base import Contract, Output, Term, Witness, Work
from ssmgen.check.contracts.decode import Call, Drawn
from ssmgen.ops import gated_delta_rule_packed_decode as gated_delta
from ssmgen.ops.gated_delta_rule_packed_decode import Dtypes, Operator, Options, Shape
from ssmgen.reference import decode_tolerance, tolerance
from ssmgen.reference import gated_delta_rule_packed_decode as reference
from ssmgen.reference.mamba_chunk_scan_combined import time_step

Given = Mapping[str, Any]
Results = dict[str, Tensor]

_KEPT = "no step decays the state by as much as the last digit that is kept"
_FORGOTTEN = dict.fromkeys(("strong_decay", "enormous_token"), "the state before the step decays to nothing")
_UNSEEN_BIAS = {"zero_decay": _KEPT, "tiny_steps": _KEPT, "enormous_token": _FORGOTTEN["enormous_token"]}
_SHAPE = Shape(key_heads=2, value_heads=6, key_dim=24, value_dim=20)
_ANY = (float("-inf"), float("inf"))


class PackedDecode(Contract[Operator, Call]):
    """Gated DeltaNet's decode step (Yang et al. 2024, arXiv:2412.06464), with the names of vLLM's packed decode."""

    name = gated_delta.NAME
    regimes = decode.REGIMES
    activations = ("mixed_qkv", "b", "initial_state")
    in_place = ("initial_state",)
    baselines = ("vllm", "fla")
    terms = (
        Term("decay", "A is 0", {"zero_decay": _KEPT, "tiny_steps": _KEPT}),
        Term("beta", "beta is 1"),
        Term("delta", "u = beta v, without h k", _FORGOTTEN),
        Term("dt_bias", "no bias", _UNSEEN_BIAS),
        Term("scale", "q is not scaled"),
        Term("qk_l2norm", "q and k are not normalised"),
        Term("key_heads", "value head h reads key head h % Hk"),
        Term("carry", "the state before the step is taken for zero", _FORGOTTEN),
        Term("state", "the state after the step is not stored"),
        Term("slots", "row b takes slot b + 1"),
        Term("padding", "a row without a slot takes a free one"),
    )

    def given(self, operator: Operator, call: Call, device: str = "cpu") -> dict[str, Any]:
        shape, kind = operator.shape, getattr(torch, operator.dtypes.x)
        heads = shape.value_heads
        drawn = Drawn.of(call, heads)
        # slot 0 is null
        slots, size = drawn.slots(call, 1, 0)
        bias = drawn.normal(heads) * 0.5
        width = 2 * shape.key_heads * shape.key_dim + heads * shape.value_dim
        pool = drawn.normal(size, heads, shape.value_dim, shape.key_dim)
        given = {
            "mixed_qkv": drawn.normal(call.batch, width).to(kind),
            "a": drawn.before_softplus(bias).to(kind),
            "b": drawn.normal(call.batch, heads).to(kind),
            # a decay of 0 has no logarithm, and of 1e-10 one of -23
            "A_log": (-drawn.decay).log().float(),
            "dt_bias": bias,
            "initial_state": pool.to(getattr(torch, operator.dtypes.state)),
            "ssm_state_indices": slots,
        }
        placed: dict[str, Any] = {name: value.to(device) for name, value in given.items()}
        chosen = operator.options
        return placed | {
            "scale": shape.key_dim**-0.5,
            "key_heads": shape.key_heads,
            "use_qk_l2norm_in_kernel": chosen.qk_l2norm,
            "beta_scale": float(chosen.beta_scale),
        }

    def arguments(self, given: Given) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name not in ("key_heads", "beta_scale")}

    def outputs(self, operator: Operator, given: Given) -> dict[str, Output]:
        shape = (len(given["mixed_qkv"]), 1, operator.shape.value_heads, operator.shape.value_dim)
        return {"out": Output(shape, given["mixed_qkv"].dtype)}

    def reference(self, given: Given, without: str = "") -> Results:
        return _MUTANTS[without](given) if without else _step(given)

    def deviations(self, operator: Operator, given: Given) -> Results:
        p = _Parts(given)
        results = _step(given)
        # u takes the terms of v and of h k, whatever is left of them where they cancel
        u_terms = p.beta[..., None] * (p.v.square() + (p.h * p.k).square().sum(-1)).sqrt()
        parts = decode_tolerance.Step(p.h, p.g, p.u[..., None] * p.k, u_terms[..., None] * p.k.abs(), p.q)
        dtypes = (given["mixed_qkv"].dtype, given["initial_state"].dtype)
        of_out, of_state = decode_tolerance.deviations(parts, results["out"][p.rows, 0], *dtypes)
        out = torch.zeros_like(results["out"]).index_copy(0, p.rows, of_out[:, None])
        return {"out": out, "initial_state": decode.in_pool(p.used, of_state, given["initial_state"])}

    def excess(self, name: str, actual: Tensor, expected: Tensor, deviation: Tensor, among: int = 1) -> float:
        measure = decode.pool_excess if name == "initial_state" else tolerance.out_excess
        return measure(actual, expected, deviation, among=among)

    def witnesses(self, regime: str, seed: int) -> list[Witness[Operator]]:
        found = []
        mixes = (("shuffled", "bfloat16", "float32", 1), ("padded", "float32", "bfloat16", 2))
        for slots, dtype, state, scale in mixes:
            operator = Operator(
                shape=_SHAPE,
                dtypes=Dtypes.model_validate({"x": dtype, "state": state}),
                options=Options.model_validate({"qk_l2norm": True, "beta_scale": scale}),
            )
            given = self.given(operator, Call(batch=5, slots=slots, regime=regime, seed=seed))
            found.append(Witness(f"{slots}, {dtype}, state {state}, beta_scale {scale}", operator, given))
        return found

    def copies(self, given: Given) -> Results:
        pool = given["initial_state"].double()
        heads, dim = pool.shape[1:3]
        values = given["mixed_qkv"][:, -heads * dim :].double().reshape(-1, 1, heads, dim)
        return {"out": values, "initial_state": pool}

    def draw(self, operator: Operator, random: Random) -> Call:
        return decode.draw(random)

    def work(self, operator: Operator, given: Given) -> Work:
        shape, rows = operator.shape, int((given["ssm_state_indices"] > 0).count_nonzero())
        elements = rows * shape.value_heads * shape.value_dim * shape.key_dim
        of_state = elements * given["initial_state"].element_size()
        read = sum(given[n].numel() * given[n].element_size() for n in ("mixed_qkv", "a", "b"))
        out = rows * shape.value_heads * shape.value_dim * given["mixed_qkv"].element_size()
        # decay, h k, the update, h q
        return Work(of_state + read, of_state + out, 7 * elements, torch.float32)


class _Parts:
    """What a step is made of, for the rows that have a slot; fp64."""

    def __init__(self, given: Given, delta: float = 1.0) -> None:
        slots, pool = given["ssm_state_indices"], given["initial_state"]
        heads, value_dim, key_dim = pool.shape[1:]
        key_heads = given["key_heads"]
        self.rows = (slots > 0).nonzero()[:, 0]
        self.used = slots[self.rows].long()
        widths = [key_heads * key_dim] * 2 + [heads * value_dim]
        q, k, v = given["mixed_qkv"][self.rows].double().split(widths, 1)
        q, k = (part.unflatten(1, (key_heads, key_dim)) for part in (q, k))
        if given["use_qk_l2norm_in_kernel"]:
            q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + reference.EPSILON) for part in (q, k))
        group = torch.arange(heads, device=q.device) // (heads // key_heads)
        self.q, self.k = given["scale"] * q[:, group][:, :, None], k[:, group][:, :, None]
        self.v = v.unflatten(1, (heads, value_dim))
        self.g = -torch.exp(given["A_log"].double()) * time_step(given["a"][self.rows], given["dt_bias"], True, _ANY)
        self.beta = given["beta_scale"] * torch.sigmoid(given["b"][self.rows].double())
        self.h = torch.exp(self.g)[..., None, None] * pool[self.used].double()
        self.u = self.beta[..., None] * (self.v - delta * (self.h * self.k).sum(-1))

    def results(self, given: Given) -> Results:
        """Of the step as it stands."""
        h = self.h + self.u[..., None] * self.k
        pool = given["initial_state"].double()
        size = (len(given["mixed_qkv"]), 1, *pool.shape[1:3])
        out = torch.zeros(size, dtype=torch.float64, device=pool.device)
        out = out.index_copy(0, self.rows, (h * self.q).sum(-1)[:, None])
        return {"out": out, "initial_state": pool.index_copy(0, self.used, h)}


def _step(given: Given) -> Results:
    out, pool = reference.gated_delta_rule_packed_decode(**given)
    return {"out": out, "initial_state": pool}


def _changed(**changes: Callable[[Given], Any]) -> Callable[[Given], Results]:
    """The reference of a call with some arguments changed."""
    return lambda given: _step({**given, **{name: change(given) for name, change in changes.items()}})


def _without_carry(given: Given) -> Results:
    slots = given["ssm_state_indices"]
    return _step({**given, "initial_state": given["initial_state"].index_fill(0, slots[slots > 0].long(), 0.0)})


def _without_beta(given: Given) -> Results:
    # a beta of 1, whatever it is scaled by
    return _step({**given, "b": torch.full_like(given["b"], torch.inf), "beta_scale": 1.0})


def _other_key_heads(given: Given) -> Results:
    """Value head h reads key head h % Hk: q and k of every value head its own, in that order."""
    heads, key_dim = given["initial_state"].shape[1], given["initial_state"].shape[3]
    key_heads = given["key_heads"]
    width, qkv = key_heads * key_dim, given["mixed_qkv"]
    q, k, v = qkv.split([width, width, qkv.shape[1] - 2 * width], 1)
    order = torch.arange(heads, device=q.device) % key_heads
    q, k = (part.unflatten(1, (key_heads, key_dim))[:, order].flatten(1) for part in (q, k))
    return _step({**given, "mixed_qkv": torch.cat([q, k, v], 1), "key_heads": heads})


def _own_slots(given: Given) -> Tensor:
    slots = given["ssm_state_indices"]
    return torch.arange(1, len(slots) + 1, dtype=slots.dtype, device=slots.device)


def _without_padding(given: Given) -> Tensor:
    slots = given["ssm_state_indices"]
    # the null slot is no free one
    return decode.without_padding(torch.where(slots <= 0, -1, slots - 1), given["initial_state"][1:]) + 1


_MUTANTS: dict[str, Callable[[Given], Results]] = {
    "decay": _changed(A_log=lambda given: torch.full_like(given["A_log"], -torch.inf)),
    "beta": _without_beta,
    "delta": lambda given: _Parts(given, delta=0.0).results(given),
    "dt_bias": _changed(dt_bias=lambda given: given["dt_bias"] * 0.0),
    "scale": _changed(scale=lambda _: 1.0),
    "qk_l2norm": _changed(use_qk_l2norm_in_kernel=lambda _: False),
    "key_heads": _other_key_heads,
    "carry": _without_carry,
    "state": lambda given: _step(given) | {"initial_state": given["initial_state"].double()},
    "slots": _changed(ssm_state_indices=_own_slots),
    "padding": _changed(ssm_state_indices=_without_padding),
}
