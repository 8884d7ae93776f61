"""What a spec, a lock or a condition may not say: one error with its place, never a traceback, never generated code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ssmgen import conditions, lock, plans, spec
from ssmgen.errors import LockError, SpecError
from ssmgen.lock import Entry
from ssmgen.ops.mamba_chunk_scan_combined import Dtypes, Operator, Options, Shape
from ssmgen.plans import PLANS, PlanSchedule, RouteSchedule
from ssmgen.stages import STAGES
from ssmgen.targets import TARGETS, target

TEXT = """\
schema: 1
model: {name: m, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 6, groups: 2, head_dim: 64, state: 64}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}
    routes:
      all: {when: "B >= 1", plan: segmented}
targets: [sm_90]
"""


def load(tmp_path: Path, old: str, new: str) -> spec.Spec:
    assert old in TEXT
    path = tmp_path / "m.yaml"
    path.write_text(TEXT.replace(old, new))
    return spec.load(path)


@pytest.mark.parametrize("name", ["class", "import", "a b", "All", "é", "'../x'", "_x", "x" * 300])
def test_a_route_name_is_refused_in_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="is no route name") as caught:
        load(tmp_path, "all:", f"{name}:")
    assert caught.value.where is not None


@pytest.mark.parametrize(("old", "new", "match"), [
    ("heads: 6", "heads: " + "9" * 5000, "not a value|not valid"),
    ("{heads: 6, groups", "&a {heads: *a, groups", "aliases are not allowed"),
    ("targets: [sm_90]", "targets: " + "[" * 3000, "nested too deeply|not valid YAML"),
])  # fmt: skip
def test_odd_yaml_is_one_error(tmp_path: Path, old: str, new: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        load(tmp_path, old, new)


@pytest.mark.parametrize("text", [
    "B//0 > 1", "B % 0 == 1", "B // T > 1", "not 5", "B and T", "B >= 1 and 7", "B",
    "B+1" * 100 + " > 1", "\uff22 >= 1",
])  # fmt: skip
def test_a_condition_that_cannot_be_right(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        conditions.parse(text)


@pytest.mark.parametrize(
    "text", ["B*heads < 24", "N*heads < 24", "B >= 1 and not T < 5", "(T + 63) // 64 * B > 3 or B == 1"]
)
def test_a_condition_that_can(text: str) -> None:
    conditions.parse(text)


def test_the_names_of_a_condition() -> None:
    assert conditions.names("N*heads < 24 and not N == T") == {"N", "heads", "T"}


@pytest.mark.parametrize(("heads", "routes"), [
    (47, {"packed_few_heads": "N*heads < 48", "packed": "N*heads >= 48"}),
    (48, {"packed": "B >= 1"}),
])  # fmt: skip
def test_packed_calls_are_split_where_dense_ones_are(heads: int, routes: dict[str, str]) -> None:
    derived = plans.derive_routes(Shape(heads=heads, groups=1, head_dim=64, state=128))
    packed = {name: route.when for name, route in derived.items() if PLANS[route.plan].packed}
    assert packed == routes
    # of whatever number of sequences one route serves a call, and by segments where those of a dense call would be
    for n in (1, 2, 3, 64):
        values = {"B": n, "T": 1, "N": n, "heads": heads, "groups": 1, "head_dim": 64, "state": 128}
        served = [route.plan for route in derived.values() if conditions.evaluate(route.when, values)]
        assert served in (["segmented", "packed_segmented"], ["three_stage", "packed"])


PACKED = TEXT.replace("limit: runtime}", "limit: runtime, packed: true}").replace(
    "targets", "      more: {when: 'WHEN', plan: packed}\ntargets"
)


@pytest.mark.parametrize("when", ["B >= 2", "B*T < 1", "B > 1 and T > 5", "heads < 6", "B*T < B", "not B == 1"])
def test_packed_routes_that_serve_no_batch_of_1_are_refused(tmp_path: Path, when: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(PACKED.replace("WHEN", when))
    with pytest.raises(SpecError, match="none serves packed calls with cu_seqlens, whose batch is 1") as caught:
        spec.load(path)
    assert str(caught.value.where).endswith(":10")
    assert caught.value.found == f"more: {when}"
    # beside one that does, it may stand
    path.write_text(path.read_text().replace("targets", "      rest: {when: B >= 1, plan: packed}\ntargets"))
    spec.load(path)


@pytest.mark.parametrize("when", ["B >= 1", "T == 1234567", "T % 4096 == 4095", "B*heads*T > 100000", "B*T <= 4"])
def test_packed_routes_that_serve_a_batch_of_1_are_taken(tmp_path: Path, when: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(PACKED.replace("WHEN", when))
    spec.load(path)


def test_unpacked_routes_that_serve_nothing_are_refused(tmp_path: Path) -> None:
    for when in ("B < 1", "heads == 7"):
        with pytest.raises(SpecError, match="routes: none serves unpacked calls"):
            load(tmp_path, "B >= 1", when)
    for when in ("B == 100 and T == 10007", "B >= 2"):
        load(tmp_path, "B >= 1", when)


def with_stage(tmp_path: Path, stage: str, **changes: int) -> tuple[spec.Spec, str]:
    value = load(tmp_path, "m", "m")
    (key, entry), *_ = lock.derive(value, ["sm_90"]).items()
    plan = replace(entry.schedule.plan, **changes) if stage == "plan" else entry.schedule.plan
    stages = tuple((n, replace(s, **changes) if n == stage else s) for n, s in entry.schedule.stages)
    return value, lock.dumps("m", {key: Entry(RouteSchedule(plan, stages), "derived")})


@pytest.mark.parametrize(("stage", "changes", "match"), [
    ("plan", {"segments": 3}, "segments = 3 must be a power of two; nearest: 2 or 4"),
    ("plan", {"segments": 6}, "segments = 6 must be a power of two; nearest: 4 or 8"),
    ("cumsum", {"head_tile": 4096}, "head_tile = 4096 is wider than its axis of 6; at most 8"),
    ("state", {"state_tile": 1024}, "state_tile = 1024 is wider than its axis of 64; at most 64"),
    ("state", {"state_tile": 4}, "would leave elements of a row of 8 unwritten; at least 8"),
    ("combine", {"state_tile": 4}, "would leave elements of a row of 8 unwritten; at least 8"),
    ("combine", {"head_dim_tile": 65536}, "head_dim_tile = 65536 is wider than its axis of 64"),
    ("output", {"head_dim_tile": 128}, "head_dim_tile = 128 is wider than its axis of 64"),
])  # fmt: skip
def test_a_schedule_no_target_can_serve(tmp_path: Path, stage: str, changes: dict[str, int], match: str) -> None:
    value, text = with_stage(tmp_path, stage, **changes)
    path = tmp_path / "m.lock.yaml"
    path.write_text(text)
    with pytest.raises(LockError, match=match):
        lock.load(path, value)


@pytest.mark.parametrize("evidence", ["us: .nan", "us: .inf", "us: -1.0", "samples: -3"])
def test_evidence_that_is_no_measurement(tmp_path: Path, evidence: str) -> None:
    value, text = with_stage(tmp_path, "plan")
    measured = {"us": "1.0", "margin_us": "0.1", "samples": "5", "conditions": "x"}
    key, number = evidence.split(": ")
    measured[key] = number
    path = tmp_path / "m.lock.yaml"
    path.write_text(text.replace("derived", "{" + ", ".join(f"{k}: {v}" for k, v in measured.items()) + "}"))
    with pytest.raises(LockError):
        lock.load(path, value)


@pytest.mark.parametrize("head_dim", [1, 3, 8, 9, 48, 80, 100, 255, 256])
@pytest.mark.parametrize("state", [1, 4, 7, 17, 96, 200, 256])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("x", ["bfloat16", "float32"])
def test_every_shape_has_a_schedule_that_its_target_serves(head_dim: int, state: int, name: str, x: str) -> None:
    chunk_state = "bfloat16" if x == "bfloat16" else "float32"
    operator = Operator(
        shape=Shape(heads=14, groups=2, head_dim=head_dim, state=state),
        dtypes=Dtypes(x=x, dt="float32", chunk_state=chunk_state, state="float32"),
        options=Options(D="per_head", dt_bias=True, dt_softplus=True, dt_limit="runtime", packed=True),
        routes=plans.derive_routes(Shape(heads=14, groups=2, head_dim=head_dim, state=state)),
    )
    for route in operator.routes:
        schedule = plans.derive("m", operator, route, target(name))
        plan = PLANS[operator.routes[route].plan]
        this = plans.problem("m", operator, target(name), plan, schedule.plan)
        assert plans.why_not(schedule, plan, this) is None
        assert isinstance(schedule.plan, PlanSchedule)
        assert {stage for stage, _ in schedule.stages} <= set(STAGES)
