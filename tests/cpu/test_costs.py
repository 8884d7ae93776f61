"""The closed forms of `ssmgen explain` equal what the kernels ask for, as the interpreter counts it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import sympy

from ssmgen import plans
from ssmgen.loading import interpreted
from ssmgen.targets import target
from ssmgen.verify import problems
from ssmgen.verify.inputs import arguments

# what the closed forms leave out: vectors over heads, and one value a chunk
LEFT_OUT = {
    "cumsum": {"a", "dt_bias"},
    "state": {"initial_states"},
    "combine": {"log_decay", "chunk_decay"},
    "output": {"d", "chunk_decay"},
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
    spec, lock = drawn.spec(), drawn.lock()
    package = interpreted(spec, lock)
    package.launcher.trace = True
    call = problems.Call(batch=call.batch, tokens=call.tokens, initial_states=True)
    package.mamba_chunk_scan_combined(**arguments(drawn.operator, call), chunk_size=64, return_final_states=True)
    (entry,) = lock.values()
    schedule = entry.schedule
    stage_problem = plans.problem("drawn", drawn.operator, target("sm_90"), schedule.plan)
    plan = plans.PLANS[drawn.operator.routes["all"].plan]
    at = dict(zip(sympy.symbols("B T", positive=True, integer=True), (call.batch, call.tokens), strict=True))
    for stage in plan.stages:
        cost = stage.cost(schedule.stage(stage.name), stage_problem)
        counts = package.launcher.counts[stage.name]
        found = (counts.distinct_bytes(frozenset(LEFT_OUT[stage.name])), counts.flops, counts.exponentials)
        expected = tuple(int(sympy.sympify(form).subs(at)) for form in (cost.bytes, cost.flops, cost.exponentials))
        assert found == expected, stage.name
