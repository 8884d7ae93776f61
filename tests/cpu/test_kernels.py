"""The generated kernels, run block by block on the CPU, against the fp64 recurrence; and broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import generate, plans, standin  # noqa: E402
from ssmgen.lock import Entry  # noqa: E402
from ssmgen.ops import mamba_chunk_scan_combined as mamba2  # noqa: E402
from ssmgen.ops.base import Route  # noqa: E402
from ssmgen.plans import PLANS, PlanSchedule, RouteSchedule  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.spec import Model, Operators, Spec  # noqa: E402
from ssmgen.targets import target  # noqa: E402
from tests.cpu import emulated_tile  # noqa: E402

OPTIONS = {"D": "per_head", "dt_bias": True, "dt_softplus": True, "dt_limit": "runtime"}
SMALL = (6, 2, 20, 24)


@pytest.fixture(autouse=True)
def nan_filled_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty is full of NaN, and a CPU tensor passes for one on a GPU of three multiprocessors."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: 0)
    emulated_tile.Device.unwritten.clear()
    # tiles are small: threads would only wait for each other
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def files(
    shape: tuple[int, ...], chunk: int, rows: int, segments: int, x: str = "bfloat16", **options: Any
) -> dict[str, str]:
    """The generated files of a model of that shape (H, G, P, S), path -> text."""
    heads, groups, head_dim, state = shape
    plan = PLANS["segmented" if segments > 1 else "three_stage"]
    operator = mamba2.Operator(
        shape=mamba2.Shape(heads=heads, groups=groups, head_dim=head_dim, state=state),
        dtypes=mamba2.Dtypes(
            x=x, dt="float32", chunk_state="bfloat16" if x == "bfloat16" else "float32", state="float32"
        ),
        options=mamba2.Options(**(OPTIONS | options)),
        routes={"all": Route(when="B >= 1", plan=plan.name)},
    )
    value = Spec(
        schema=1,
        model=Model(name="m", source="table"),
        operators=Operators(mamba_chunk_scan_combined=operator),
        targets=["sm_90"],
    )
    this = plans.problem("m", operator, target("sm_90"), PlanSchedule(chunk, segments))
    stages = {stage.name: stage.derive(this) for stage in plan.stages}
    stages["output"] = replace(stages["output"], rows=rows)
    schedule = RouteSchedule(PlanSchedule(chunk, segments), tuple(stages.items()))
    assert plans.why_not(schedule, plan, this) is None
    return generate.fileset(value, {("sm_90", mamba2.NAME, "all"): Entry(schedule, "derived")})


def package(folder: Path, texts: Mapping[str, str]) -> Any:
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    kernels = standin.import_package(folder / "m", "emulated", emulated_tile.module())
    kernels.device = lambda _where: ("sm_90", 3)
    return kernels


def draw(kernels: Any, x: str, tokens: int, states: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    heads, groups, head_dim, state = kernels.HEADS, kernels.GROUPS, kernels.HEAD_DIM, kernels.STATE
    generator = torch.Generator().manual_seed(tokens)

    def normal(*size: int) -> Any:
        return torch.randn(*size, generator=generator)

    kind = getattr(torch, x)
    soft = options["dt_softplus"]
    arguments = {
        "x": normal(2, tokens, heads, head_dim).to(kind),
        "dt": normal(2, tokens, heads) if soft else normal(2, tokens, heads).abs() * 0.1,
        "A": -torch.exp(normal(heads)),
        "B": normal(2, tokens, groups, state).to(kind),
        "C": normal(2, tokens, groups, state).to(kind),
        "dt_softplus": soft,
    }
    arguments |= {"D": normal(heads)} if options["D"] != "none" else {}
    arguments |= {"dt_bias": normal(heads) - 2} if options["dt_bias"] else {}
    arguments |= {"initial_states": normal(2, heads, head_dim, state)} if states else {}
    return arguments


def excess(kernels: Any, arguments: Mapping[str, Any]) -> float:
    """How many times its limit the larger of the two errors is: at most 1 where the kernels are right."""
    out, states = kernels.mamba_chunk_scan_combined(**arguments, chunk_size=256, return_final_states=True)
    expected, expected_states = reference.mamba_chunk_scan_combined(**arguments)
    honest, honest_states = tolerance.honest(**arguments, chunk=32)
    return max(
        reference.error(out, expected) / tolerance.limit(reference.error(honest, expected)),
        reference.state_error(states, expected_states)
        / tolerance.limit(reference.state_error(honest_states, expected_states)),
    )


@pytest.mark.parametrize("x", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("segments", [1, 2, 4])
@pytest.mark.parametrize("rows", [16, 32])
def test_small_chunks_at_every_kind_of_length(tmp_path: Path, rows: int, segments: int, x: str) -> None:
    kernels = package(tmp_path, files(SMALL, 32, rows, segments, x))
    for tokens in (1, 31, 32, 33, 64, 100):
        for states in (False, True):
            assert excess(kernels, draw(kernels, x, tokens, states, OPTIONS)) <= 1, (tokens, states)
    assert not emulated_tile.Device.unwritten


@pytest.mark.parametrize(("shape", "chunk", "rows", "segments", "options"), [
    ((14, 1, 9, 17), 64, 64, 1, {}),
    ((7, 1, 80, 24), 64, 32, 2, {"D": "none"}),
    ((3, 3, 3, 1), 32, 16, 2, {"dt_bias": False}),
    ((5, 5, 48, 96), 32, 32, 1, {"dt_softplus": False}),
    ((1, 1, 64, 64), 128, 64, 1, {"dt_limit": "none"}),
])  # fmt: skip
def test_odd_shapes_and_options(
    tmp_path: Path, shape: tuple[int, ...], chunk: int, rows: int, segments: int, options: dict[str, Any]
) -> None:
    kernels = package(tmp_path, files(shape, chunk, rows, segments, **options))
    for tokens in (1, chunk + 1, 3 * chunk - 7):
        assert excess(kernels, draw(kernels, "bfloat16", tokens, True, OPTIONS | options)) <= 1, tokens


@pytest.mark.parametrize("change", [
    {"A": torch.tensor([-1e9, -1e5, -1e-9, 0.0, -1e38, -1.0])},
    {"dt_bias": torch.tensor([120.0, 88.0, -25.0, -100.0, 0.0, 20.0])},
    {"dt_limit": (1e-3, 0.1)},
    {"dt_limit": (0.0, 0.0)},
], ids=["decay", "bias", "limit", "no step"])  # fmt: skip
@pytest.mark.parametrize("segments", [1, 2])
def test_extreme_decays_and_steps_are_finite_and_right(tmp_path: Path, segments: int, change: dict[str, Any]) -> None:
    kernels = package(tmp_path, files(SMALL, 32, 16, segments))
    assert excess(kernels, draw(kernels, "bfloat16", 75, True, OPTIONS) | change) <= 1


MUTATIONS = {
    "the decay's sign": ("state", "ct.exp2(l_last - l_tile)", "ct.exp2(l_tile - l_last)"),
    "the carried state dropped": ("state", "h * ct.exp2(l_last)[:, None])", "h * 0.0)"),
    "the state stored after its update": ("state", "ct.exp2(l_last)[:, None]", "ct.exp2(l_last * 0.5)[:, None]"),
    "no time step": ("state", "weight = dt_tile * ", "weight = "),
    "groups tiled": ("state", "i_head // HEADS_PER_GROUP", "i_head % 2"),
    "groups swapped": ("output", "first_head // HEADS_PER_GROUP", "1 - first_head // HEADS_PER_GROUP"),
    "not causal": ("output", ">= token[None, :]", "> token[None, :] - ROWS"),
    "the diagonal masked": ("output", ">= token[None, :]", "> token[None, :]"),
    "no entering state": ("output", "y = ct.mma(c_tile, h.transpose(), y)", "y = y"),
    "the entering state undecayed": ("output", "y = y * ct.exp2(l_m)[:, None]", "y = y"),
    "the first half weighs on itself": ("output", "ct.where(i_before < i_rows, ", "ct.where(i_before <= i_rows, "),
    "no pairs with the first half": ("output", "y = ct.mma(pairs, x_before, y)", "y = y"),
    "no skip": ("output", "y = y + ct.load(d", "y = y + 0.0 * ct.load(d"),
    "the tail unmasked": ("cumsum", "(token < dt.shape[1])", "(token < dt.shape[1] + CHUNK)"),
    "no bias": ("cumsum", "step = step + ct.load(dt_bias", "step = step + 0.0 * ct.load(dt_bias"),
    "no softplus": ("cumsum", "(step > 20.0, step, soft)", "(step > 20.0, step, step * step)"),
    "natural logarithm": ("cumsum", "1.4426950408889634", "1.0"),
    "segments in the wrong order": ("combine", "end_0", "end_1"),
    "segments undecayed": ("combine", "h = h * ct.exp2(ct.extract(total, index=(0,), shape=(1,)))", "h = h"),
    "decay since the wrong chunk": ("combine", "i_chunk * CHUNK - 1)", "i_chunk * CHUNK)"),
    "initial states ignored": ("combine", "if has_initial_states != 0:", "if has_initial_states == 2:"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_found(tmp_path: Path, name: str) -> None:
    stage, right, wrong = MUTATIONS[name]
    # halves of a chunk and segments both occur, and the last of each is not full
    texts = files(SMALL, 32, 16, 2)
    (path,) = [path for path in texts if path.endswith(f"/{stage}.py")]
    assert right in texts[path]
    kernels = package(tmp_path, texts | {path: texts[path].replace(right, wrong)})
    assert max(excess(kernels, draw(kernels, "bfloat16", tokens, True, OPTIONS)) for tokens in (75, 100)) > 1
