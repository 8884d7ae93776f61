"""Problems as text, `ssmgen verify`, and `ssmgen.load(…, interpret=True)`."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

from hypothesis import find, settings  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import ssmgen  # noqa: E402
from ssmgen import paths, testing  # noqa: E402
from ssmgen.cli import app  # noqa: E402
from ssmgen.errors import SanitizerError, UsageError  # noqa: E402
from ssmgen.verify import inputs, problems  # noqa: E402
from ssmgen.verify.inputs import LAYOUTS, REGIMES  # noqa: E402
from ssmgen.verify.problems import Call, Drawn, Problem  # noqa: E402

SPEC = """\
schema: 1
model: {name: small, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 4, groups: 2, head_dim: 16, state: 24}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, dt_bias: true, dt_softplus: true, dt_limit: runtime}
    routes:
      all: {when: "B >= 1", plan: three_stage}
targets: [sm_90]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.ssmgen]\n")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/small.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["lock"]).exit_code == 0
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", *arguments])
    return done.exit_code, done.output


def test_a_problem_is_what_its_text_says() -> None:
    random = Random(1)
    for _ in range(300):
        drawn = problems.sample(Drawn, random)
        problem = Problem(drawn, problems.sample(Call, random).for_model(drawn.operator))
        assert problems.parse(str(problem)) == problem
        assert problems.parse(str(replace(problem, drawn=None))) == replace(problem, drawn=None)
    assert problems.parse(str(Problem(Drawn(), Call()))) == Problem(Drawn(), Call())


@pytest.mark.parametrize(
    "text",
    [
        "heads=3",
        "tokens",
        "tokens=x",
        "x=int8",
        "groups=0",
        "tokens=1,tokens=2",
        "regime=odd",
        "tokens=2147483648",
        "seed=" + "9" * 5000,
    ],
)
def test_a_problem_that_is_none_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(UsageError, match=text.split("=", maxsplit=1)[0]) as caught:
        problems.parse(text)
    assert caught.value.expected


def test_a_model_that_no_spec_could_have_is_refused() -> None:
    for text, name in (("groups=99999999", "heads"), ("head_dim=100000", "head_dim"), ("state=3000", "state")):
        with pytest.raises(UsageError, match=name) as caught:
            problems.parse(text)
        assert caught.value.found == text.partition("=")[2]
    assert run("--problem", "head_dim=100000")[0] == 2


@pytest.mark.parametrize("text", ["packed=False,sequences=seq_idx", "groups=2,sequences=both", "x=float16,cuts=many"])
def test_sequences_that_the_model_cannot_take_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"sequences=\w+, cuts=\w+ beside packed=False") as caught:
        problems.parse(text)
    assert "packed=True" in (caught.value.expected or "")
    assert problems.parse(f"packed=True,{text.removeprefix('packed=False,')}").drawn is not None
    assert run("--problem", text)[0] == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_where_numbers_lie_and_not_which(layout: str) -> None:
    operator = Drawn(groups=2, heads_per_group=3, head_dim=9, state=17, dt="x").operator
    plain = inputs.arguments(operator, Call(batch=2, tokens=5))
    laid_out = inputs.arguments(operator, Call(batch=2, tokens=5, layout=layout))
    for name, value in plain.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(laid_out[name], value), name
    views = [laid_out[name] for name in ("x", "B", "C", "dt")]
    shared = len({view.untyped_storage().data_ptr() for view in views}) == 1
    assert shared == layout.startswith("fused")
    if layout in ("offset", "fused_odd"):
        assert any(view.data_ptr() % 16 for view in views)


# what steps dt' and decays -A dt' (B, T, H) have to be
HOLDS = {
    "mild": lambda step, decay: (decay < 2).all() and (decay > 1e-4).all(),
    "mixed_horizons": lambda step, decay: decay.sum(1).max() > 5 and decay.sum(1).min() < 0.5,
    "zero_decay": lambda step, decay: (decay.sum(1) < 1e-6).all() and (step > 0).all(),
    "enormous_token": lambda step, decay: ((decay > 100).sum(1) == 1).all(),
    "strong_decay": lambda step, decay: (decay > 0.9).all() and decay.max() > 1e5,
    "tiny_steps": lambda step, decay: step.max() < 2e-6,
    "large_steps": lambda step, decay: step.max() > 88,
    "padded": lambda step, decay: (step[:, 100:] < 1e-80).all() and (step[:, :100] > 1e-4).all(),
    "limited": lambda step, decay: (step >= 1e-3).all() and (step <= 0.1).all(),
    "no_step": lambda step, decay: (step == 0).all(),
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("soft", [True, False])
def test_a_regime_is_what_its_name_says(regime: str, soft: bool) -> None:
    from ssmgen.reference.mamba_chunk_scan_combined import time_step

    operator = Drawn(groups=2, heads_per_group=14, dt_softplus=soft).operator
    a = inputs.arguments(operator, Call(batch=2, tokens=150, regime=regime))
    step = time_step(a["dt"], a["dt_bias"], soft, a["dt_limit"])
    assert torch.isfinite(step).all()
    assert (step >= 0).all()
    assert bool(HOLDS[regime](step, (a["A"].double() * step).abs()))


def test_a_failing_draw_is_shrunk_to_the_simplest() -> None:
    # as if every kernel with two groups or more were wrong beyond one token
    def wrong(p: Problem) -> bool:
        assert p.drawn is not None
        return p.drawn.groups > 1 and p.call.tokens > 1

    simplest = find(testing.problems(), wrong, settings=settings(max_examples=2000, database=None))
    assert simplest == Problem(Drawn(groups=2), Call(tokens=2))
    assert str(simplest) == "groups=2,tokens=2"


def test_every_choice_of_a_field_can_be_generated() -> None:
    for f in fields(Drawn):
        for option in problems.options(f):
            model = replace(Drawn(), **{f.name: option})
            routes = ("all", "packed") if model.packed else ("all",)
            assert model.lock().keys() == {("sm_90", "mamba_chunk_scan_combined", route) for route in routes}


def test_a_spec_without_generated_code_is_interpreted(project: Path) -> None:
    kernels = ssmgen.load(project / "specs/small.yaml", interpret=True)
    operator = Drawn(groups=2, heads_per_group=2, state=24).operator
    given = inputs.arguments(operator, Call(batch=2, tokens=40, initial_states=True))
    out, states = kernels.mamba_chunk_scan_combined(**given, chunk_size=256, return_final_states=True)
    assert out.shape == given["x"].shape
    assert states.shape == given["initial_states"].shape
    with pytest.raises(ValueError, match="z: this model's kernels were generated without it"):
        kernels.mamba_chunk_scan_combined(**given, chunk_size=256, z=given["x"])


def test_a_committed_name_is_interpreted() -> None:
    kernels = ssmgen.load("mamba2_130m", interpret=True)
    assert kernels.HEADS == 24
    assert kernels.__file__.startswith(str(paths.project(Path(__file__).parent).generated))


def test_the_interpreter_takes_no_cubins() -> None:
    with pytest.raises(UsageError, match="interpret"):
        ssmgen.load("mamba2_130m", interpret=True, backend="cubin", archive="a.tar.xz")


def test_verify_says_what_it_ran(project: Path) -> None:
    code, said = run("small", "--examples", "2", "--no-compile")
    assert code == 0, said
    assert "small" in said
    assert "2       0" in said


def test_verify_runs_what_is_generated_and_finds_what_is_wrong_in_it(project: Path) -> None:
    assert CliRunner().invoke(app, ["generate"]).exit_code == 0
    (kernel,) = project.glob("generated/small/sm_90/*/*/state.py")
    kernel.write_text(kernel.read_text().replace("h * ct.exp2(l_last)[:, None])", "h)"))
    code, said = run("small", "--problem", "tokens=200,regime=limited", "--no-compile")
    assert code == 1
    assert "times its limit" in said
    assert "again:    ssmgen verify specs/small.yaml --problem tokens=200,regime=limited" in said

    kernel.write_text(kernel.read_text().replace("padding_mode=ZERO, latency=X_LATENCY", "latency=X_LATENCY"))
    code, said = run("small", "--problem", "tokens=65", "--no-compile")
    assert code == 1
    assert "[undetermined]" in said
    assert "state.py:" in said


def test_without_torch_one_line_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = run("small", "--no-compile")
    assert code == 2
    assert "torch is needed" in said


def test_a_drawn_problem_needs_no_spec() -> None:
    code, said = run("--problem", "groups=2,tokens=17", "--no-compile")
    assert code == 0, said
    code, said = run("mamba2_130m", "--problem", "groups=2,tokens=17")
    assert code == 2


@pytest.mark.parametrize(
    "arguments",
    [("--device", "tpu"), ("--archive", "a.tar.xz"), ("--problem", "heads=1"), ("--problem", "sequences=seq_idx")],
)
def test_what_cannot_be_obeyed_is_refused(project: Path, arguments: tuple[str, str]) -> None:
    assert run("small", *arguments)[0] == 2


def test_a_package_is_held_to_its_promises(project: Path) -> None:
    kernels = ssmgen.load("specs/small.yaml", interpret=True)
    operator = Drawn(groups=2, heads_per_group=2, state=24).operator
    given = inputs.arguments(operator, Call(tokens=40))
    # what the host would have copied, had it looked
    host = vars(kernels._forward)
    host["rows"] = lambda _name, tensor, *_: tensor
    given["x"] = given["x"].transpose(1, 3).contiguous().transpose(1, 3)
    with pytest.raises(SanitizerError, match="stride of axis") as caught:
        kernels.mamba_chunk_scan_combined(**given, chunk_size=256)
    assert caught.value.rule == "promise"
