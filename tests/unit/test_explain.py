"""The counts of `ssmgen explain` against hand-computed figures and counting loops; its routes and refusals."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from math import prod

import pytest
from rich.console import Console

from ssmgen import explain, explain_view, located_yaml, lock, plans, spec
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Route
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


def packed(z: str = "silu") -> spec.Spec:
    """The model of `made`, with a gate, D per channel and a route for packed sequences."""
    text = SPEC.format(name="a_model", heads=128, groups=8, head_dim=64, state=128, x="bfloat16")
    text = text.replace("dt_limit: runtime", f"dt_limit: runtime, packed: true, z: {z}").replace(
        "D: per_head", "D: per_channel"
    )
    return read(text.replace("targets:", '      packed: {when: "B >= 1", plan: packed}\ntargets:'))


def split(z: str = "silu") -> spec.Spec:
    """The model of `packed`, with segments where the sequences are few."""
    of = packed(z)
    operator = of.operators.mamba_chunk_scan_combined
    assert operator is not None
    routes = {name: route for name, route in operator.routes.items() if name != "packed"}
    routes["packed_few"] = Route(when="N*heads < 512", plan="packed_segmented")
    routes["packed"] = Route(when="N*heads >= 512", plan="packed")
    operator = operator.model_copy(update={"routes": routes})
    return of.model_copy(update={"operators": of.operators.model_copy(update={"mamba_chunk_scan_combined": operator})})


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
    # of packed rows that are one sequence each
    axes |= {"N": at[0], "N1": 2, "slots": chunks + 1, "met": problem.segments}
    return axes | {"P8": -(-s.head_dim // 8) * 8, "S8": -(-s.state // 8) * 8}


STAGES_OF_ROUTES = [
    (name, stage.name)
    for name, plan in {
        "short": "segmented",
        "long": "three_stage",
        "packed": "packed",
        "packed_few": "packed_segmented",
    }.items()
    for stage in plans.PLANS[plan].stages
]
# vectors over heads or sequences, and per-chunk scalars, are left out of the closed forms
SMALL_ARRAYS = {"a", "d", "dt_bias", "chunk_decay", "cu_seqlens"}
# initial states are read only where a call has them; of log_decay and begin these read one value a chunk
PARTLY_READ = {"state": {"initial_states", "begin"}, "combine": {"log_decay", "begin"}}


@pytest.mark.parametrize(("name", "stage"), STAGES_OF_ROUTES)
@pytest.mark.parametrize("of", [split(), split(z="none")], ids=["gate", "no_gate"])
@pytest.mark.parametrize("at", [(1, 512), (8, 8191)])
def test_stage_bytes_are_those_of_its_arrays(name: str, stage: str, of: spec.Spec, at: tuple[int, int]) -> None:
    operator = of.operators.mamba_chunk_scan_combined
    assert operator is not None
    schedule = pin(plans.derive("a_model", operator, name, TARGETS["sm_90"]))
    plan = plans.PLANS[operator.routes[name].plan]
    problem = plans.problem("a_model", operator, TARGETS["sm_90"], plan, schedule.plan)
    axes = sizes(problem, at)
    # states among the chunks' are also the initial ones, which are there for sequences that start inside a chunk, and
    # what enters the segments, which is nothing in the first
    inputs = problem.segments - 1
    axes["slots"] += {"combine": inputs - axes["slots"], "packed_output": inputs - 1}.get(stage, 0)
    left_out = SMALL_ARRAYS | PARTLY_READ.get(stage, set())
    moved = sum(
        ITEM_BYTES[array.dtype] * prod(axes[axis] for axis in array.axes)
        for array in STAGES[stage].parameters(problem)
        if isinstance(array, Array) and array.name not in left_out
    )
    cost = STAGES[stage].cost(schedule.stage(stage), problem)
    assert explain._count(cost.bytes, [at]).at == {f"B={at[0]}, T={at[1]}": moved}


def test_packed_by_hand() -> None:
    """What packed sequences add at B=2, T=8192, H=128, G=8, P=64, S=128, bf16: hand-computed."""
    of = report(packed(z="none"), ((2, 8192),))
    point = "B=2, T=8192"
    whole, rows = route(of, "long"), route(of, "packed")
    by_token, state = 2 * 8192 * 4, 2 * 128 * 64 * 128 * 2
    added = [b.bytes.at[point] - a.bytes.at[point] for a, b in zip(whole.stages, rows.stages, strict=True)]
    assert added == [3 * by_token, state, 2 * by_token]
    assert rows.workspace.at[point] == whole.workspace.at[point] + 2 * by_token + state
    # seq_idx, and the three offsets of two sequences
    assert rows.floor.at[point] == whole.floor.at[point] + by_token + 12
    # in the closed forms the number of sequences is free: a state of each kind a sequence
    size = 128 * 64 * 128
    assert rows.states.formula == f"{2 * 4 * size}*N"
    assert rows.workspace.formula.endswith(f" + {2 * size}*N")
    assert "4*N" in rows.floor.formula
    assert "N" not in whole.states.formula + whole.workspace.formula + whole.floor.formula
    assert rows.counted
    assert rows.counted in printed(of)
    assert not whole.counted
    for figure in ("flops", "exponentials"):
        assert [getattr(s, figure).at for s in rows.stages] == [getattr(s, figure).at for s in whole.stages]


def test_packed_segments_by_hand() -> None:
    """What two segments add at B=2, T=8192, H=128, G=8, P=64, S=128, bf16: hand-computed."""
    of = report(split(z="none"), ((2, 8192),))
    # of another spec: a route has figures of the shapes that it serves
    whole, cut = route(report(packed(z="none"), ((2, 8192),)), "packed"), route(of, "packed_few")
    assert cut.segments == 2
    point = "B=2, T=8192"
    stored, kept, chunks = 2 * 128 * 64 * 128 * 2, 2 * 128 * 64 * 128 * 4, 8192 // 64
    # two segments' ends instead of the final state; what enters the second one is written and read
    assert cut.stages[1].bytes.at[point] == whole.stages[1].bytes.at[point] + kept
    assert cut.stages[2].bytes.at[point] == 2 * kept + stored + kept
    assert cut.stages[3].bytes.at[point] == whole.stages[2].bytes.at[point] + stored
    # a product more for every chunk of every head
    assert cut.stages[3].flops.at[point] == whole.stages[2].flops.at[point] + 2 * chunks * 128 * 2 * 64 * 128 * 64
    # the second segment's decay, for each tile of 64 x 64
    assert cut.stages[2].exponentials.at[point] == 2 * 128 * (128 // 64)
    # two slots among the states, two ends, a decay a chunk
    assert cut.workspace.at[point] == whole.workspace.at[point] + 2 * stored + 2 * kept + 2 * 128 * chunks * 4


def test_a_gate_by_hand() -> None:
    """z is read once, and takes an exponential an element."""
    at, point = ((1, 8192),), "B=1, T=8192"
    elements = 8192 * 128 * 64
    for name in ("long", "packed"):
        gated, plain = (route(report(packed(z=z), at), name) for z in ("silu", "none"))
        assert gated.floor.at[point] == plain.floor.at[point] + 2 * elements
        assert gated.stages[2].bytes.at[point] == plain.stages[2].bytes.at[point] + 2 * elements
        assert gated.stages[2].exponentials.at[point] == plain.stages[2].exponentials.at[point] + elements


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


UNPACKED_DISPATCHER = '''\
def _route(target, batch, tokens):
    """The function that serves these run-time shapes."""
    if target == "sm_90" and batch * tokens <= 4096:
        return _short_route
    if target == "sm_90" and batch * tokens > 4096:
        return _long_route
    raise ValueError(f"no route of {target} serves batch = {batch}, tokens = {tokens}")'''
PACKED_DISPATCHER = '''\
def _route(target, batch, tokens, packed):
    """The function that serves these run-time shapes."""
    if target == "sm_90" and not packed and batch * tokens <= 4096:
        return _short_route
    if target == "sm_90" and not packed and batch * tokens > 4096:
        return _long_route
    if target == "sm_90" and packed and batch >= 1:
        return _packed_route
    raise ValueError(f"no route of {target} serves batch = {batch}, tokens = {tokens}, packed = {packed}")'''


SPLIT_DISPATCHER = (
    PACKED_DISPATCHER.replace("tokens, packed)", "tokens, entries, packed)")
    .replace(
        """    if target == "sm_90" and packed and batch >= 1:
        return _packed_route
""",
        """    if target == "sm_90" and packed and entries * HEADS < 512:
        return _packed_few_route
    if target == "sm_90" and packed and entries * HEADS >= 512:
        return _packed_route
""",
    )
    .replace(
        'ValueError(f"no route of {target} serves batch = {batch}, tokens = {tokens}, packed = {packed}")',
        """ValueError(
        f"no route of {target} serves batch = {batch}, tokens = {tokens}, N = {entries}, packed = {packed}"
    )""",
    )
)


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


def printed(of: explain.Report) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(explain_view.view(of))
    return console.export_text()


def test_an_unpacked_spec_shows_its_dispatcher_and_no_packed_table() -> None:
    of = report(made())
    assert of.dispatcher == UNPACKED_DISPATCHER
    assert of.packed == {}
    text = printed(of)
    assert UNPACKED_DISPATCHER in text
    assert "seq_idx or cu_seqlens" not in text


def test_a_packed_spec_shows_its_dispatcher_and_its_packed_table() -> None:
    of = report(packed())
    assert of.dispatcher == PACKED_DISPATCHER
    assert set(of.packed) == set(of.served)
    assert set(of.packed.values()) == {"packed"}
    assert set(of.served.values()) == {"short", "long"}
    text = printed(of)
    assert PACKED_DISPATCHER in text
    table = text.partition("Route with seq_idx or cu_seqlens")[2].partition("As generated:")[0]
    assert table.count("packed") == len(of.packed)
    # counted where it serves, beside the route that serves the other calls of that shape
    assert list(route(of, "packed").floor.at) == [f"B={b}, T={t}" for b, t in explain.SHAPES]


def test_the_number_of_sequences_is_shown_where_it_decides() -> None:
    of = report(split())
    assert of.dispatcher == SPLIT_DISPATCHER
    routes = {point: of.packed[point] for point in of.packed if point.endswith("T=2048")}
    assert routes == {
        **{f"B={b}, T=2048": "packed_few" if b < 4 else "packed" for b in (1, 4, 8, 16, 64)},
        **{f"B=1, N={n}, T=2048": "packed_few" if n < 4 else "packed" for n in (2, 4, 8, 16, 64)},
    }
    assert not any("N=" in point for point in of.served)
    text = printed(of)
    assert "cu_seqlens; N: sequences in a single row" in text
    assert "B=1, N=64" in text
    assert "N=" not in printed(report(packed()))


def test_packed_calls_that_no_route_serves_are_told() -> None:
    of = packed()
    operator = of.operators.mamba_chunk_scan_combined
    assert operator is not None
    narrow = operator.routes["packed"].model_copy(update={"when": "T <= 512"})
    operator = operator.model_copy(update={"routes": operator.routes | {"packed": narrow}})
    of = of.model_copy(update={"operators": of.operators.model_copy(update={"mamba_chunk_scan_combined": operator})})
    found = report(of)
    assert found.packed["B=1, T=512"] == "packed"
    assert found.packed["B=1, T=2048"] is None
    assert "none: refused" in printed(found)


def test_without_a_locked_target_there_is_no_dispatcher() -> None:
    assert explain.explain(made(), {}).dispatcher == ""


def test_the_view_and_the_data_hold_everything() -> None:
    of = report(made())
    text = printed(of)
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
