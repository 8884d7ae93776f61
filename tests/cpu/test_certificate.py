"""Contracts are certified, certificates are what is committed, and a contract that cannot tell is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ssmgen.check import certificates  # noqa: E402
from ssmgen.check.certificate import MARGIN, certify  # noqa: E402
from ssmgen.check.contracts import CONTRACTS  # noqa: E402
from ssmgen.check.contracts import gated_delta_rule_packed_decode as gated_delta  # noqa: E402
from ssmgen.check.contracts.base import Term  # noqa: E402
from ssmgen.check.contracts.forward_mutants import _without_carry, _without_reset  # noqa: E402
from ssmgen.check.contracts.mamba_chunk_scan_combined import Forward  # noqa: E402
from ssmgen.check.contracts.selective_state_update import Update  # noqa: E402
from ssmgen.verify.inputs import REGIMES  # noqa: E402

KEPT = Path(__file__).parent.parent.parent / "generated" / "report" / "certificates"
# what the issue of the checker asks for, by the name that a contract has for it
ASKED = {
    "mamba_chunk_scan_combined": {
        *("decay", "carry", "D", "z", "dt_bias", "dt_limit", "initial_states", "final_states", "groups", "reset"),
    },
    "selective_state_update": {"decay", "D", "z", "dt_bias", "carry", "state", "groups", "slots", "padding"},
    "gated_delta_rule_packed_decode": {"decay", "beta", "delta", "dt_bias", "carry", "state", "key_heads", "slots"},
}


@cache
def certificate(name: str):
    return certify(CONTRACTS[name])


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_contract_is_certified(name):
    made = certificate(name)
    assert made.refusals == ()
    assert {m.wrong for m in made.terms} >= ASKED[name]
    for each in made.terms:
        assert (each.margin >= MARGIN) != bool(each.blind), each
        assert not (each.blind and each.regime in ("mild", "mixed_horizons")), each
    assert all(m.margin >= MARGIN for m in made.trivial)
    assert {"zeros", "means", "copies of inputs", "results of the call before"} == {m.wrong for m in made.trivial}


@pytest.mark.parametrize("name", CONTRACTS)
def test_what_is_committed_is_what_is_certified(name):
    kept, made = json.loads((KEPT / f"{name}.json").read_text()), certificate(name).as_json()
    for kind in ("terms", "trivial"):
        for a, b in zip(kept[kind], made[kind], strict=True):
            # the last digits of fp64 depend on the machine, and so may which of two equals is the largest
            assert b.pop("margin") == pytest.approx(a.pop("margin"), rel=0.02), (a, b)
            assert {k: a[k] for k in ("wrong", "regime", "blind")} == {k: b[k] for k in ("wrong", "regime", "blind")}
    assert kept["refusals"] == list(made["refusals"]) == []


class Changed(Forward):
    """The forward contract with something wrong with it, small enough to be certified often."""

    regimes = ("mild", "mixed_horizons", "padded")
    terms = tuple(replace(t, blind={}) for t in Forward.terms if t.name in ("carry", "decay", "D"))


def test_a_contract_with_few_terms_is_certified():
    assert certify(Changed()).refusals == ()


def test_a_regime_that_hides_a_term_is_refused():
    class Hidden(Changed):
        regimes = ("mild", "mixed_horizons")

        def witnesses(self, regime, seed):
            # a careless draw of decays: exp(-1000), whatever the regime is called
            found = super().witnesses(regime, seed)
            return [replace(w, given=w.given | {"A": w.given["A"] * 0 - 1e5}) for w in found]

    refusals = certify(Hidden()).refusals
    assert any("without carry" in r and "passes for mild" in r for r in refusals)
    assert any("without carry" in r and "passes for mixed_horizons" in r for r in refusals)
    assert any("carry shows in no regime beside" in r for r in refusals)


def test_a_wide_tolerance_is_refused():
    class Wide(Changed):
        def excess(self, name, actual, expected, deviation):
            return super().excess(name, actual, expected, deviation * 1e4)

    refusals = certify(Wide()).refusals
    assert any("without D" in r for r in refusals)
    assert any(r.startswith("zeros pass in mild") for r in refusals)


def test_a_mutant_that_leaves_nothing_out_is_refused():
    class Same(Changed):
        def reference(self, given, without=""):
            return super().reference(given, "" if without == "carry" else without)

    assert any("without carry" in r and "0 times the limit" in r for r in certify(Same()).refusals)


def test_a_reason_that_does_not_hold_is_refused():
    class Excused(Changed):
        terms = (Term("D", "no skip", {"padded": "nobody looks at it"}), Term("decay", "A is 0", {"mild": "is mild"}))

    refusals = certify(Excused()).refusals
    assert any("D is said not to show for padded (nobody looks at it), and does" in r for r in refusals)
    assert any("decay must show for mild" in r for r in refusals)


def test_inputs_that_no_seed_moves_are_refused():
    class Fixed(Changed):
        def witnesses(self, regime, seed):
            return super().witnesses(regime, 1)

    refusals = certify(Fixed()).refusals
    assert any("x is the same for two seeds" in r for r in refusals)
    assert any("out is the same whatever the inputs" in r for r in refusals)
    assert any(r.startswith("results of the call before pass") for r in refusals)


def test_a_contract_without_what_every_one_has_is_refused():
    class Poor(Changed):
        regimes = ("mild",)
        terms = ()

    refusals = certify(Poor()).refusals
    assert "no regime mixed_horizons" in refusals
    assert any("no terms" in r for r in refusals)


@pytest.mark.parametrize("regime", REGIMES)
def test_mutants_that_are_put_together_leave_out_nothing_else(regime, monkeypatch):
    """Cut nowhere, and reset everywhere, they are the reference itself."""
    from ssmgen.check.contracts import forward_mutants as module

    monkeypatch.setattr(module, "CHUNK", 10_000)
    contract = Forward()
    for witness in contract.witnesses(regime, 3):
        expected = contract.reference(witness.given)
        made = [_without_carry(witness.given)]
        if witness.name == "rows":
            made.append(_without_reset(witness.given))
        for each in made:
            for name, value in each.items():
                offsets = witness.given.get("cu_seqlens")
                within = slice(None) if offsets is None or name != "out" else slice(0, int(offsets[-1]))
                a, b = (t[:, within] if name == "out" else t for t in (value, expected[name]))
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-300)


def test_the_delta_rule_in_parts_is_the_reference():
    contract = gated_delta.PackedDecode()
    for regime in contract.regimes:
        for witness in contract.witnesses(regime, 3):
            expected = contract.reference(witness.given)
            for name, value in gated_delta._Parts(witness.given).results(witness.given).items():
                torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-300)


def update_in_fp32(given):
    """A step as a kernel does it: fp32 all the way, the output from the state before it is rounded."""
    g = {name: value.float() if name != "state_batch_indices" else value.long() for name, value in given.items()
         if isinstance(value, torch.Tensor)}  # fmt: skip
    group = torch.arange(6) // 3
    step = torch.nn.functional.softplus(g["dt"] + g["dt_bias"])[..., None]
    slots = g["state_batch_indices"]
    h = g["state"][slots] * torch.exp(g["A"] * step) + step * g["x"][..., None] * g["B"][:, group][:, :, None]
    out = (h * g["C"][:, group][:, :, None]).sum(-1) + g["D"] * g["x"]
    out = out * torch.nn.functional.silu(g["z"])
    return {"out": torch.where(slots[:, None, None] < 0, 0.0, out), "state": stored(g["state"], slots, h, slots >= 0)}


def delta_in_fp32(given):
    g = {name: value.float() for name, value in given.items() if isinstance(value, torch.Tensor)}
    group, slots = torch.arange(6) // 3, given["ssm_state_indices"].long()
    q, k, v = g["mixed_qkv"].split([48, 48, 120], 1)
    q, k = (p.unflatten(1, (2, 24)) for p in (q, k))
    q, k = ((p * torch.rsqrt(p.square().sum(-1, keepdim=True) + 1e-6))[:, group][:, :, None] for p in (q, k))
    decay = torch.exp(-g["A_log"].exp() * torch.nn.functional.softplus(g["a"] + g["dt_bias"]))[..., None, None]
    h = g["initial_state"][slots] * decay
    u = given["beta_scale"] * torch.sigmoid(g["b"])[..., None] * (v.unflatten(1, (6, 20)) - (h * k).sum(-1))
    h = h + u[..., None] * k
    out = torch.where(slots[:, None, None] <= 0, 0.0, (h * q * given["scale"]).sum(-1))[:, None]
    return {"out": out, "initial_state": stored(g["initial_state"], slots, h, slots > 0)}


def stored(pool, slots, h, used):
    return pool.index_copy(0, slots[used], h[used])


@pytest.mark.parametrize(("contract", "honest"), [
    (Update(), update_in_fp32), (gated_delta.PackedDecode(), delta_in_fp32)
], ids=["update", "delta"])  # fmt: skip
def test_an_honest_step_in_fp32_passes(contract, honest):
    worst = 0.0
    for regime in contract.regimes:
        for witness in (w for seed in range(3) for w in contract.witnesses(regime, seed)):
            expected = contract.reference(witness.given)
            deviations = contract.deviations(witness.operator, witness.given)
            kinds = {"out": getattr(torch, witness.operator.dtypes.x)}
            kinds[contract.in_place[0]] = getattr(torch, witness.operator.dtypes.state)
            for name, value in honest(witness.given).items():
                excess = contract.excess(name, value.to(kinds[name]), expected[name], deviations[name])
                assert excess <= 1, (regime, witness.name, name, excess)
                worst = max(worst, excess)
    # nor is the limit out of all proportion
    assert worst > 0.1


def test_a_slot_that_nobody_has_keeps_its_bits():
    contract = Update()
    (witness, _) = contract.witnesses("mild", 1)
    expected = contract.reference(witness.given)["state"]
    deviation = contract.deviations(witness.operator, witness.given)["state"]
    wrong = expected.clone()
    free = next(slot for slot in range(len(wrong)) if slot not in witness.given["state_batch_indices"].tolist())
    assert contract.excess("state", wrong.float(), expected, deviation) <= 1
    wrong[free, 0, 0, 0] = wrong[free, 0, 0, 0] * (1 + 1e-6)
    assert contract.excess("state", wrong.float(), expected, deviation) == float("inf")


def test_the_command(project, tmp_path):
    done = project.run("certify", "gated_delta_rule_packed_decode", "-o", str(tmp_path))
    assert done.code == 0, done.err
    assert "gated_delta_rule_packed_decode: certified" in done.out
    assert json.loads((tmp_path / "gated_delta_rule_packed_decode.json").read_text())["refusals"] == []
    done = project.run("certify", "nothing")
    assert done.code == 2
    assert "no contract for 'nothing'" in done.err


def test_the_command_fails_with_the_contract(project, monkeypatch):
    from ssmgen.check import contracts

    class Poor(Changed):
        terms = (Term("decay", "A is 0", {"padded": "it does not"}),)

    monkeypatch.setattr(contracts, "CONTRACTS", {"mamba_chunk_scan_combined": Poor()})
    done = project.run("certify")
    assert done.code == 1
    assert "REFUSED" in done.out
    assert "refused: decay is said not to show for padded (it does not), and does" in done.out
    assert certificates.text(certify(Poor())).count("refusals") == 1
