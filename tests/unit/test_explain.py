"""The counts of `ssmgen explain` against hand-computed figures and counting loops; its routes and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import prod

import pytest
from rich.console import Console

from ssmgen import explain, explain_view, located_yaml, lock, plans, spec
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.stages import STAGES
from ssmgen.stages.base import ITEM_BYTES, Array, Problem
from ssmgen.targets import TARGETS

SPEC = """
schema: 1
model: {{name: {name}, source: table}}
operators:
  mamba_chunk_scan_combined:
    shape: {{heads: {heads}, groups: {groups}, head_dim: {head_dim}, state: {state}}}
    dtypes: {{x: {x}, dt: float32, chunk_state: bfloat16, state: float32}}
    options: {{D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}}
    routes:
      short: {{when: "B*T <= 4096", plan: segmented}}
      long: {{when: "B*T > 4096", plan: three_stage}}
targets: [sm_90]
"""
GDN = """
schema: 1
model: {name: qwen3_next, source: table}
operators:
  gated_delta_rule_packed_decode:
    shape: {key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128}
    dtypes: {x: bfloat16, state: float32}
    options: {qk_l2norm: true}
targets: [sm_90]
"""


def read(text: str) -> spec.Spec:
    return spec.validate(spec.Spec, located_yaml.parse(text, "a.yaml"))


def made(shape: tuple[int, int, int, int] = (128, 8, 64, 128), x: str = "bfloat16") -> spec.Spec:
    heads, groups, head_dim, state = shape
    return read(SPEC.format(name="a_model", heads=heads, groups=groups, head_dim=head_dim, state=state, x=x))


# what is derived may change; what is counted by hand below is this
PINNED = {"head_tile": 8, "state_tile": 64, "head_dim_tile": 64, "rows": 64, "heads_per_block": 8}


def pin(schedule: plans.RouteSchedule) -> plans.RouteSchedule:
    stages = [(n, replace(s, **{k: v for k, v in PINNED.items() if hasattr(s, k)})) for n, s in schedule.stages]
    return replace(schedule, plan=replace(schedule.plan, chunk=64), stages=tuple(stages))


def report(of: spec.Spec, shapes: tuple[tuple[int, int], ...] = explain.SHAPES) -> explain.Report:
    derived = lock.derive(of, of.targets)
    return explain.explain(of, {key: replace(e, schedule=pin(e.schedule)) for key, e in derived.items()}, shapes)


def route(of: explain.Report, name: str, target: str = "sm_90") -> explain.RouteReport:
    return next(r for t in of.targets if t.name == target for r in t.routes if r.name == name)


def test_nemotron_h_8b_by_hand() -> None:
    """B=1, T=8192, H=128, G=8, P=64, S=128, bf16: the figures of KERNELS.md, «floor» and «state traffic»."""
    long = route(report(made(), ((1, 8192),)), "long")
    point = "B=1, T=8192"
    x_and_out, b_and_c, dt, per_head = 2 * 8192 * 128 * 64 * 2, 2 * 8192 * 8 * 128 * 2, 8192 * 128 * 4, 3 * 128 * 4
    assert long.floor.at == {point: x_and_out + b_and_c + dt + per_head}
    assert round(long.floor.at[point] / 4.3e12 * 1e6, 1) == 71.2
    assert long.states.at == {point: 2 * 128 * 64 * 128 * 4}
    states = 128 * (8192 // 64) * 64 * 128 * 2
    assert round(2 * states / 1e6) == 537
    padded = 128 * 8192 * 4
    assert long.workspace.at == {point: states + 2 * padded}
    state, output = long.stages[1], long.stages[2]
    assert state.bytes.at[point] == x_and_out // 2 + b_and_c // 2 + 2 * padded + states + 128 * 64 * 128 * 4
    assert output.bytes.at[point] == x_and_out + b_and_c + 2 * padded + states
    assert state.flops.at[point] == 2 * 8192 * 128 * 64 * 128
    assert output.flops.at[point] == 128 * (16 * 2 * 64 * 64 * 128 + 128 * (2 * 64 * 128 * 64 + 2 * 64 * 64 * 64))


@pytest.mark.parametrize(
    ("shape", "at", "us"),
    [((8, 1, 64, 128), (4, 16384), 39.5), ((80, 1, 64, 128), (1, 8192), 40.6), ((128, 8, 80, 128), (1, 8192), 86.8),
     ((24, 1, 128, 256), (1, 8192), 25.5), ((16, 1, 64, 128), (1, 2048), 2.2)],
)  # fmt: skip
def test_floors_are_those_of_the_peers_table(shape: tuple[int, int, int, int], at: tuple[int, int], us: float) -> None:
    of = report(made(shape), (at,))
    floor = next(value for name in ("short", "long") for value in route(of, name).floor.at.values())
    assert floor / 4.3e12 * 1e6 == pytest.approx(us, abs=0.051)


def sizes(problem: Problem, at: tuple[int, int]) -> dict[str, int]:
    """What the axes of a kernel's arrays stand for."""
    s, chunks = problem.shape, -(-at[1] // problem.chunk)
    axes = {"B": at[0], "T": at[1], "H": s.heads, "G": s.groups, "P": s.head_dim, "S": s.state}
    axes |= {"chunks": chunks, "padded": chunks * problem.chunk, "segments": problem.segments}
    return axes | {"P8": -(-s.head_dim // 8) * 8, "S8": -(-s.state // 8) * 8}


STAGES_OF_ROUTES = [*(("short", name) for name in STAGES), *(("long", n) for n in ("cumsum", "state", "output"))]
# per-head vectors and per-chunk scalars are left out of the closed forms
SMALL_ARRAYS = {"a", "d", "dt_bias", "chunk_decay", "segment_decay"}


@pytest.mark.parametrize(("name", "stage"), STAGES_OF_ROUTES)
@pytest.mark.parametrize("at", [(1, 512), (8, 8191)])
def test_stage_bytes_are_those_of_its_arrays(name: str, stage: str, at: tuple[int, int]) -> None:
    operator = made().operators.mamba_chunk_scan_combined
    assert operator is not None
    schedule = pin(plans.derive("a_model", operator, name, TARGETS["sm_90"]))
    problem = plans.problem("a_model", operator, TARGETS["sm_90"], schedule.plan)
    axes = sizes(problem, at)
    # state reads initial states only where a call has them, combine one value of log_decay a chunk
    left_out = SMALL_ARRAYS | {"state": {"initial_states"}, "combine": {"log_decay"}}.get(stage, set())
    moved = sum(
        ITEM_BYTES[array.dtype] * prod(axes[axis] for axis in array.axes)
        for array in STAGES[stage].parameters(problem)
        if isinstance(array, Array) and array.name not in left_out
    )
    cost = STAGES[stage].cost(schedule.stage(stage), problem)
    assert explain._count(cost.bytes, [at]).at == {f"B={at[0]}, T={at[1]}": moved}


def test_closed_forms_are_short() -> None:
    long = route(report(made()), "long")
    assert long.stages[1].flops.formula == "134217728*B*ceil(T/64)"
    assert long.stages[2].bytes.formula == "B*(36864*T + 2162688*ceil(T/64))"


def test_shapes_are_served_by_the_first_route_that_holds() -> None:
    of = report(made(), ((3, 1000), (2, 4096)))
    assert of.served["B=3, T=1000"] == "short"
    assert of.served["B=2, T=4096"] == "long"
    assert list(route(of, "short").floor.at) == ["B=3, T=1000"]


def test_a_shape_that_no_route_serves_is_told() -> None:
    of = read(
        SPEC.format(name="a", heads=8, groups=1, head_dim=64, state=128, x="bfloat16").replace("> 4096", "> 8192")
    )
    assert report(of, ((1, 8192),)).served["B=1, T=8192"] is None


def test_refusals_are_the_nearest_in_each_direction() -> None:
    long = route(report(made()), "long")
    refused = {r.change: r.reason for r in long.stages[2].refusals}
    assert "must divide the 16 heads of a group" in refused["heads_per_block 8 -> 32"]
    assert "the chunk, 64" in refused["rows 64 -> 128"]
    assert any(r.change == "segments 1 -> 2" for r in long.refusals)
    assert all(r.change != "head_tile 16 -> 32" for r in long.stages[0].refusals)


def test_a_target_that_cannot_serve_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(TARGETS["sm_120"], smem_bytes=2_000)
    monkeypatch.setitem(TARGETS, "sm_120", tiny)
    of = report(made())
    assert "sm_120 has 2000 a block" in (route(of, "long", "sm_120").refused or "")
    assert route(of, "long", "sm_100").refused is None


def test_the_view_and_the_data_hold_everything() -> None:
    of = report(made())
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(explain_view.view(of))
    text = console.export_text()
    for needle in (
        "B*T <= 4096",
        "three_stage",
        "134217728*B*ceil(T/64)",
        "heads_per_block 8 -> 32",
        "sm_100",
        "floor",
    ):
        assert needle in text, needle
    assert [t.name for t in of.targets if t.locked] == ["sm_90"]
    assert set(explain.data(of)) == set(json.loads(json.dumps(explain.data(of))))


def test_an_operator_without_kernels_is_told() -> None:
    of = report(read(GDN))
    assert of.operator == "gated_delta_rule_packed_decode"
    assert "not generated yet" in (of.note or "")
    assert not of.targets


def test_sympy_is_imported_only_when_counting() -> None:
    code = "import sys; from ssmgen import explain, explain_view; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_operator_name() -> None:
    assert report(made()).operator == mamba2.NAME
