"""Locks read back what was written, and keep what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmgen import located_yaml, lock, spec
from ssmgen.errors import LockError
from ssmgen.lock import Entry, Lock, Measured
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.plans import RouteSchedule
from ssmgen.spec import Spec
from ssmgen.targets import TARGETS
from tests.conftest import MODEL, SPEC

VALUE = spec.loads(SPEC, Path(f"{MODEL}.yaml"))
SHORT, LONG = (("sm_90", mamba2.NAME, route) for route in ("short", "long"))
EVIDENCE = Measured(us=12.5, margin_us=0.25, samples=100, conditions='H200, driver "580", L2 cold: yes #1')


def _write(folder: Path, known: Lock) -> Path:
    path = folder / f"{MODEL}.lock.yaml"
    path.write_text(lock.dumps(MODEL, known))
    return path


def _measured(known: Lock) -> Lock:
    stages = dict(known[LONG].schedule.stages)
    stages["state"] = replace(stages["state"], occupancy=5)
    return {**known, LONG: Entry(RouteSchedule(known[LONG].schedule.plan, tuple(stages.items())), EVIDENCE)}


def test_round_trip(tmp_path: Path) -> None:
    known = _measured(lock.derive(VALUE, list(TARGETS)))
    assert lock.load(_write(tmp_path, known), VALUE) == known


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp"))), st.floats(1e-3, 1e9), st.integers(1, 10**9))
def test_evidence_reads_back(conditions: str, us: float, samples: int) -> None:
    evidence = Measured(us=us, margin_us=us / 7, samples=samples, conditions=conditions)
    known = {key: Entry(entry.schedule, evidence) for key, entry in lock.derive(VALUE, ["sm_90"]).items()}
    document = located_yaml.parse(lock.dumps(MODEL, known), "x", LockError)
    entry = document.data["targets"]["sm_90"][mamba2.NAME]["long"]["evidence"]
    assert Measured.model_validate(entry) == evidence


def test_an_empty_lock(tmp_path: Path) -> None:
    path = _write(tmp_path, {})
    with pytest.raises(LockError, match="no schedule for sm_90, mamba_chunk_scan_combined, route short") as caught:
        lock.load(path, VALUE)
    assert caught.value.next == f"have what is missing derived: ssmgen lock {MODEL}"


def test_refit_keeps_what_fits(tmp_path: Path) -> None:
    known = _measured(lock.derive(VALUE, ["sm_90", "sm_120"]))
    path = _write(tmp_path, known)
    assert lock.refit(path, VALUE) == (known, [])


def test_refit_completes(tmp_path: Path) -> None:
    known = _measured(lock.derive(VALUE, ["sm_90"]))
    path = _write(tmp_path, {LONG: known[LONG]})
    whole, dropped = lock.refit(path, VALUE)
    assert (whole, dropped) == (known, [])
    assert list(whole) == [SHORT, LONG]


def test_refit_without_a_file(tmp_path: Path) -> None:
    assert lock.refit(tmp_path / "none.yaml", VALUE) == (lock.derive(VALUE, ["sm_90"]), [])


def test_rederive_keeps_what_was_measured(tmp_path: Path) -> None:
    known = _measured(lock.derive(VALUE, ["sm_90"]))
    stages = dict(known[SHORT].schedule.stages)
    stages["state"] = replace(stages["state"], occupancy=7)
    changed = Entry(RouteSchedule(known[SHORT].schedule.plan, tuple(stages.items())), "derived")
    path = _write(tmp_path, {**known, SHORT: changed})
    assert lock.refit(path, VALUE)[0][SHORT] == changed
    assert lock.refit(path, VALUE, rederive=True) == (known, [])


def _without(route: str) -> Spec:
    lines = [line for line in SPEC.splitlines() if not line.strip().startswith(f"{route}:")]
    return spec.loads("\n".join(lines), Path(f"{MODEL}.yaml"))


def test_refit_drops_what_the_spec_has_no_more_and_says_so(tmp_path: Path) -> None:
    path = _write(tmp_path, _measured(lock.derive(VALUE, ["sm_90"])))
    with pytest.raises(LockError, match="the spec has no route 'long'"):
        lock.load(path, _without("long"))
    whole, dropped = lock.refit(path, _without("long"))
    assert list(whole) == [SHORT]
    assert dropped == [f"sm_90 {mamba2.NAME} long (measured): the spec has no route 'long'"]


def test_another_models_lock(tmp_path: Path) -> None:
    path = tmp_path / f"{MODEL}.lock.yaml"
    path.write_text(lock.dumps("other", lock.derive(VALUE, ["sm_90"])))
    for read in (lock.load, lock.refit):
        with pytest.raises(LockError, match="model is not the spec's"):
            read(path, VALUE)
