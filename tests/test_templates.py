"""Templates and contexts fit exactly, every branch has a golden case, and `ruff format` leaves the output alone."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssmgen import generate, host, host_checks, lock, plans, render, spec
from ssmgen.lock import Entry
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Route
from ssmgen.plans import PLANS, PlanSchedule, RouteSchedule
from ssmgen.spec import Model, Operators, Spec
from ssmgen.stages import STAGES
from ssmgen.targets import target
from tests.test_golden import CASES, GOLDEN

CONTEXTS = {stage.template: sys.modules[type(stage).__module__].Context for stage in STAGES.values()}
CONTEXTS |= {
    "host.py.jinja": host.Context,
    "forward.py.jinja": host.ForwardContext,
    "arguments.py.jinja": host_checks.ArgumentsContext,
    "values.py.jinja": host_checks.ValuesContext,
    "library.py.jinja": host_checks.LibraryContext,
}

SHAPES = ((128, 8, 64, 128), (112, 8, 80, 128), (24, 1, 64, 128), (1, 1, 16, 16), (28, 2, 80, 256), (50, 50, 40, 100))
OPTIONS = (
    {"D": "per_head", "dt_bias": True, "dt_softplus": True, "dt_limit": "runtime"},
    {"D": "none", "dt_bias": False, "dt_softplus": False, "dt_limit": "none"},
    {"D": "none", "dt_bias": True, "dt_softplus": False, "dt_limit": "runtime", "packed": True},
    {"D": "per_channel", "z": "silu", "dt_bias": True, "dt_softplus": True, "dt_limit": "runtime", "packed": True},
)
SPLITS = ((64, 1, 64), (64, 2, 64), (64, 4, 16), (64, 8, 64), (128, 1, 64), (128, 2, 32), (256, 16, 64))
PACKED = ((32, 1, 32), (64, 1, 64), (128, 1, 128), (16, 2, 16), (64, 8, 64), (64, 16, 64))


@pytest.mark.parametrize("template", CONTEXTS)
def test_context_is_exactly_the_free_names(template: str) -> None:
    assert {field.name for field in dataclasses.fields(CONTEXTS[template])} == render.free_names(template)


@pytest.mark.parametrize("template", CONTEXTS)
def test_every_branch_is_taken_by_some_golden(template: str, golden_specs: list[tuple[Spec, lock.Lock]]) -> None:
    """Trace the Python that Jinja compiles a template to: every `if`, `else` and `for` of it must run."""
    environment = render.environment()
    source = environment.compile(render.closure(template)[template], template, raw=True)
    name = environment.get_template(template).filename
    executed: set[int] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != name:
            return None
        executed.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for value, known in golden_specs:
            generate.fileset(value, known)
    finally:
        sys.settrace(before)
    branches = [
        (node.lineno, body[0].lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If | ast.For) and not (isinstance(node, ast.If) and isinstance(node.test, ast.Constant))
        for body in (node.body, node.orelse)
        if body
    ]
    lines = source.splitlines()
    assert branches or "# %" not in render.closure(template)[template]
    missed = [lines[at - 1].strip() for at, body in branches if body not in executed]
    assert not missed, f"no golden case reaches {template}: {missed}"


@pytest.fixture(scope="module")
def golden_specs() -> list[tuple[Spec, lock.Lock]]:
    good = [GOLDEN / case for case in CASES if (GOLDEN / case / "expected").exists()]
    values = [spec.loads((case / "spec.yaml").read_text(), Path(f"{case.name}.yaml")) for case in good]
    return [(value, lock.load(case / "lock.yaml", value)) for case, value in zip(good, values, strict=True)]


def _sweep() -> Iterator[tuple[Spec, lock.Lock]]:
    """Odd specs and schedules, as they could stand in a lock that a tuner wrote."""
    dtypes = itertools.product(("bfloat16", "float16", "float32"), ("bfloat16", "float32"))
    cases = itertools.product(enumerate(SHAPES), enumerate(dtypes))
    for number, ((i, (heads, groups, head_dim, state)), (j, (x, chunk_state))) in enumerate(cases):
        options = OPTIONS[(i + j) % len(OPTIONS)]
        splits = {f"r{i}": ("segmented" if split[1] > 1 else "three_stage", *split) for i, split in enumerate(SPLITS)}
        if "packed" in options:
            plan_of = {False: "packed", True: "packed_segmented"}
            splits |= {f"packed_{i}": (plan_of[split[1] > 1], *split) for i, split in enumerate(PACKED)}
        # what is asked of packed calls also counts their sequences
        routes = {
            name: Route(when="B*N*T > 0" if PLANS[plan].packed else "B*T > 0", plan=plan)
            for name, (plan, *_) in splits.items()
        }
        operator = mamba2.Operator(
            shape=mamba2.Shape(heads=heads, groups=groups, head_dim=head_dim, state=state),
            dtypes=mamba2.Dtypes(x=x, dt="float32" if number % 2 else x, chunk_state=chunk_state, state="float32"),
            options=mamba2.Options(**options),
            routes=routes,
        )
        model = Model(name=f"some_model_with_a_long_name_{number}b", source="table")
        value = Spec(schema=1, model=model, operators=Operators(mamba_chunk_scan_combined=operator), targets=["sm_90"])
        yield (
            value,
            {
                ("sm_90", mamba2.NAME, route): Entry(schedule, "derived")
                for route, split in splits.items()
                if (schedule := _schedule(operator, *split))
            },
        )


def _schedule(operator: mamba2.Operator, name: str, chunk: int, segments: int, rows: int) -> RouteSchedule | None:
    plan = PLANS[name]
    problem = plans.problem("m", operator, target("sm_90"), plan, PlanSchedule(chunk, segments))
    schedules = {stage.name: stage.derive(problem) for stage in plan.stages}
    if "output" in schedules:
        schedules["output"] = dataclasses.replace(schedules["output"], rows=rows)
    schedule = RouteSchedule(PlanSchedule(chunk, segments), tuple(schedules.items()))
    return None if plans.why_not(schedule, plan, problem) else schedule


def test_output_is_what_ruff_format_prints(tmp_path: Path, golden_specs: list[tuple[Spec, lock.Lock]]) -> None:
    texts: set[str] = set()
    for value, known in golden_specs:
        texts.update(text for path, text in generate.fileset(value, known).items() if path.endswith(".py"))
    for value, known in _sweep():
        operator = value.operators.mamba_chunk_scan_combined
        assert operator
        # a schedule that the target cannot serve is no lock entry, and its route no route
        routes = {name: route for name, route in operator.routes.items() if ("sm_90", mamba2.NAME, name) in known}
        narrowed = operator.model_copy(update={"routes": routes})
        served = value.model_copy(update={"operators": Operators(mamba_chunk_scan_combined=narrowed)})
        texts.update(text for path, text in generate.fileset(served, known).items() if path.endswith(".py"))
    for number, text in enumerate(sorted(texts)):
        ast.parse(text)
        # the marks that keep other people's formatters away would keep this one away too
        bare = text.replace("# ruff: noqa\n# fmt: off\n", "")
        assert bare != text
        (tmp_path / f"{number}.py").write_text(bare)
    assert len(texts) > 500
    arguments = ["--isolated", "--line-length", "120", "--target-version", "py311", "--no-cache"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--diff", *arguments, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[:3000] + done.stderr[-500:]
