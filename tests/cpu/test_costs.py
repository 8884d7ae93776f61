"""The closed forms of `ssmgen explain` equal what the kernels ask for, as the interpreter counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sympy  # noqa: E402

from ssmgen import lock as locks  # noqa: E402
from ssmgen import plans, spec  # noqa: E402
from ssmgen.loading import interpreted  # noqa: E402
from ssmgen.lock import Entry  # noqa: E402
from ssmgen.ops.mamba_chunk_scan_combined import Operator  # noqa: E402
from ssmgen.stages.base import Stage  # noqa: E402
from ssmgen.targets import target  # noqa: E402
from ssmgen.verify import problems  # noqa: E402
from ssmgen.verify.inputs import arguments  # noqa: E402

# what the closed forms leave out: vectors over heads, offsets of sequences, and one value a chunk
LEFT_OUT = {
    "cumsum": {"a", "dt_bias", "cu_seqlens"},
    "state": {"initial_states", "begin", "cu_seqlens"},
    "combine": {"log_decay", "chunk_decay", "begin", "cu_seqlens"},
    "output": {"d", "chunk_decay"},
    "packed_output": {"d", "chunk_decay"},
}
SPEC = """\
schema: 1
model: {{name: counted, source: table}}
operators:
  mamba_chunk_scan_combined:
    shape: {{heads: 6, groups: 2, head_dim: 24, state: 40}}
    dtypes: {{x: {x}, dt: float32, chunk_state: float32, state: float32}}
    options: {{D: {D}, z: {z}, dt_bias: true, dt_softplus: true, dt_limit: none, packed: true}}
    routes:
      all: {{when: "B >= 1", plan: {plan}}}
      packed: {{when: "B >= 1", plan: {packed}}}
targets: [sm_90]
"""


def _figures(operator: Operator, name: str, entry: Entry, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Bytes, FLOPs and exponentials of each stage of route `name`, from the closed forms."""
    plan, schedule = plans.PLANS[operator.routes[name].plan], entry.schedule
    problem = plans.problem("counted", operator, target("sm_90"), plan, schedule.plan)
    at = dict(zip(sympy.symbols("B T", positive=True, integer=True), shape, strict=True))

    def figures(stage: Stage) -> tuple[int, ...]:
        cost = stage.cost(schedule.stage(stage.name), problem)
        return tuple(int(sympy.sympify(form).subs(at)) for form in (cost.bytes, cost.flops, cost.exponentials))

    return {stage.name: figures(stage) for stage in plan.stages}


def _counted(package: Any) -> dict[str, tuple[int, ...]]:
    """The same of each kernel, as it ran."""
    return {
        name: (counts.distinct_bytes(frozenset(LEFT_OUT[name])), counts.flops, counts.exponentials)
        for name, counts in package.launcher.counts.items()
    }


@pytest.mark.parametrize("text", [
    "groups=2,heads_per_group=2,tokens=33,batch=2",
    "groups=2,heads_per_group=2,segments=2,half_rows=True,tokens=96",
    "groups=1,heads_per_group=6,head_dim=24,state=40,small_tiles=True,tokens=33",
    "groups=1,heads_per_group=6,head_dim=24,state=40,small_tiles=True,segments=4,tokens=150,x=float32,half_rows=True",
    "groups=3,heads_per_group=1,head_dim=80,state=96,chunk=64,dt_softplus=False,D=none,tokens=1,x=float16,dt=x",
])  # fmt: skip
def test_the_closed_forms_are_the_kernels_own(text: str) -> None:
    problem = problems.parse(text)
    drawn, call = problem.drawn, problem.call
    assert drawn is not None
    lock = drawn.lock()
    package = interpreted(drawn.spec(), lock)
    package.launcher.trace = True
    call = problems.Call(batch=call.batch, tokens=call.tokens, initial_states=True)
    package.mamba_chunk_scan_combined(**arguments(drawn.operator, call), chunk_size=64, return_final_states=True)
    (entry,) = (entry for (_, _, route), entry in lock.items() if route == "all")
    assert _counted(package) == _figures(drawn.operator, "all", entry, (call.batch, call.tokens))


@pytest.mark.parametrize("sequences", ["unpacked", "seq_idx", "cu_seqlens"])
@pytest.mark.parametrize(("plan", "packed", "x", "skip", "gate"), [
    ("three_stage", "packed", "float16", "per_channel", "silu"),
    ("segmented", "packed_segmented", "float32", "per_head", "silu"),
    ("three_stage", "packed", "bfloat16", "none", "none"),
])  # fmt: skip
def test_with_a_gate_d_per_channel_and_packed_sequences(
    sequences: str, plan: str, packed: str, x: str, skip: str, gate: str
) -> None:
    value = spec.loads(SPEC.format(plan=plan, packed=packed, x=x, D=skip, z=gate), Path("counted.yaml"))
    operator = value.operators.mamba_chunk_scan_combined
    assert operator is not None
    lock = locks.derive(value, value.targets)
    package = interpreted(value, lock)
    package.launcher.trace = True
    # split into eight, of which five segments have two chunks each and the others none
    shape = (1 if sequences == "cu_seqlens" else 2, 600 if plan == "segmented" else 150)
    package.mamba_chunk_scan_combined(**_tensors(operator, shape, sequences), chunk_size=64, dt_softplus=True)
    route = "all" if sequences == "unpacked" else "packed"
    entry = next(entry for (_, _, name), entry in lock.items() if name == route)
    expected = _figures(operator, route, entry, shape)
    if sequences == "cu_seqlens":
        # the forms are of rows told apart by seq_idx, which is not read here
        moved, *rest = expected["cumsum"]
        expected["cumsum"] = (moved - 4 * shape[0] * shape[1], *rest)
    assert _counted(package) == expected


def _tensors(operator: Operator, shape: tuple[int, int], sequences: str) -> dict[str, Any]:
    """A call's tensors: every row one sequence, however it is told."""
    s, dtype = operator.shape, getattr(torch, operator.dtypes.x)
    vector = (s.heads, s.head_dim) if operator.options.D == "per_channel" else (s.heads,)
    given = dict(
        x=torch.randn(*shape, s.heads, s.head_dim).to(dtype),
        dt=torch.randn(*shape, s.heads),
        A=-torch.rand(s.heads),
        B=torch.randn(*shape, s.groups, s.state).to(dtype),
        C=torch.randn(*shape, s.groups, s.state).to(dtype),
        dt_bias=torch.randn(s.heads),
    )
    if operator.options.D != "none":
        given["D"] = torch.randn(vector)
    if operator.options.z != "none":
        given["z"] = torch.randn(*shape, s.heads, s.head_dim).to(dtype)
    if sequences == "unpacked":
        # `combine` counts them
        given["initial_states"] = torch.randn(shape[0], s.heads, s.head_dim, s.state)
    if sequences == "seq_idx":
        given["seq_idx"] = torch.full(shape, 3, dtype=torch.int32)
    if sequences == "cu_seqlens":
        given["cu_seqlens"] = torch.tensor([0, shape[1]], dtype=torch.int32)
    return given
