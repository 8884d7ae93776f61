"""The text of a new spec: what a person reads, what loads back, and what the model is called."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ssmgen import spec
from ssmgen.configs import read_config
from ssmgen.errors import SpecError, UsageError
from ssmgen.new import new_spec
from ssmgen.ops.base import Route
from ssmgen.ops.mamba_chunk_scan_combined import Shape

FIXTURES = Path(__file__).parent / "configs"
ACCEPTED = sorted(path.stem for path in FIXTURES.glob("*.json") if not path.stem.startswith("refused_"))


@pytest.fixture(autouse=True)
def routes(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Fixed routes, so that these texts do not change with the plans; the shapes they were asked for."""
    asked: list[Shape] = []

    def derive_routes(shape: Shape) -> dict[str, Route]:
        asked.append(shape)
        return {
            "short": Route(when="B*T <= 4096", plan="segmented"),
            "longest": Route(when="B*T > 4096", plan="three_stage"),
            "packed": Route(when="B >= 1", plan="packed"),
        }

    monkeypatch.setitem(sys.modules, "ssmgen.plans", SimpleNamespace(derive_routes=derive_routes))  # type: ignore[arg-type]
    return asked


def make(
    config: Path, ranks: int = 1, name: str | None = None, targets: tuple[str, ...] = ("sm_90",)
) -> tuple[str, str]:
    return new_spec(config, tensor_parallel=ranks, name=name, targets=list(targets))


def fixture(name: str) -> Path:
    return FIXTURES / f"{name}.json"


def loaded(tmp_path: Path, name: str, text: str) -> spec.Spec:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return spec.load(path)


def copied(folder: Path, source: str, as_name: str, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / as_name
    path.write_text(json.dumps(json.loads(fixture(source).read_text()) | fields))
    return path


NEMOTRON_TP4 = """\
# nemotron_h: Mamba-2 in 27 of 56 layers, by hybrid_override_pattern
schema: 1
model:
  name: nemotron_nano_9b_v2_tp4
  source: nemotron_nano_9b_v2
  config_sha256: {sha256}
  tensor_parallel: 4
operators:
  mamba_chunk_scan_combined:
    shape:
      heads: 32     # mamba_num_heads: 128 over 4 GPUs
      groups: 2     # n_groups: 8 over 4 GPUs
      # mamba_head_dim; mamba_num_heads * mamba_head_dim = 10240 decides, expand * hidden_size = 8960 is ignored
      head_dim: 80
      state: 128    # ssm_state_size
    # x: torch_dtype
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    # dt_limit: transformers before 5.25 takes (time_step_min, inf) = (0.001, inf) here, vLLM (0, inf)
    # mamba_ssm_cache_dtype = 'bfloat16' is the decode cache's: final states of this operator are float32
    options: {D: per_head, z: none, dt_bias: true, dt_softplus: true, dt_limit: runtime,
              initial_states: true, packed: true}
    routes:
      short:   {when: "B*T <= 4096", plan: segmented}
      longest: {when: "B*T > 4096", plan: three_stage}
      packed:  {when: "B >= 1", plan: packed}
targets: [sm_90, sm_100]
"""

QWEN = """\
# qwen3_5_text: Gated DeltaNet in 6 of 8 layers, by layer_types
schema: 1
model:
  name: qwen3p5_27b
  source: qwen3p5_27b
  config_sha256: {sha256}
  tensor_parallel: 1
operators:
  gated_delta_rule_packed_decode:
    shape:
      key_heads: 16    # linear_num_key_heads
      value_heads: 48  # linear_num_value_heads
      key_dim: 128     # linear_key_head_dim
      value_dim: 128   # linear_value_head_dim
    # x: text_config.dtype
    dtypes: {x: bfloat16, state: float32}
    options: {qk_l2norm: true, beta_scale: 1}
targets: [sm_90]
"""


@pytest.mark.parametrize(
    ("config", "ranks", "targets", "expected"),
    [
        ("nemotron_nano_9b_v2", 4, ("sm_90", "sm_100"), NEMOTRON_TP4),
        ("qwen3p5_27b", 1, ("sm_90",), QWEN),
    ],
)
def test_text(config: str, ranks: int, targets: tuple[str, ...], expected: str) -> None:
    sha256 = hashlib.sha256(fixture(config).read_bytes()).hexdigest()
    name, text = make(fixture(config), ranks, targets=targets)
    assert text == expected.replace("{sha256}", sha256)
    assert f"name: {name}\n" in text


@pytest.mark.parametrize("config", ACCEPTED)
def test_loads_back_as_the_config_s_shape(tmp_path: Path, routes: list[Shape], config: str) -> None:
    for ranks in (1, 2):
        name, text = make(fixture(config), ranks)
        result = loaded(tmp_path, name, text)
        shape = read_config(fixture(config), ranks)
        operators = {key: value for key, value in result.operators if value is not None}
        assert list(operators) == [shape.mixer.operator]
        operator = operators[shape.mixer.operator]
        assert operator.shape == shape.mixer.shape()
        assert operator.dtypes.x == shape.x[0]
        assert result.model.tensor_parallel == ranks
        assert result.model.config_sha256 == shape.sha256
        assert result.targets == ["sm_90"]
        assert max(len(line) for line in text.splitlines()) <= 120
        assert not re.search(r"[ \t]$", text, re.M)
    if "mamba_chunk_scan_combined" in operators:
        # routes are those of one GPU's share
        assert routes[-1] == operators["mamba_chunk_scan_combined"].shape
        assert list(operator.routes) == ["short", "longest", "packed"]


@pytest.mark.parametrize(
    ("config", "dtypes"),
    [
        ("codestral_7b", {"x": "bfloat16", "dt": "float32", "chunk_state": "bfloat16", "state": "float32"}),
        ("bamba_9b", {"x": "bfloat16", "dt": "float32", "chunk_state": "bfloat16", "state": "float32"}),
        ("nemotron_3_ultra", {"x": "float16", "dt": "float32", "chunk_state": "float32", "state": "float32"}),
        ("mamba2_130m_saved", {"x": "float32", "dt": "float32", "chunk_state": "float32", "state": "float32"}),
        ("qwen3p5_397b_moe", {"x": "bfloat16", "state": "bfloat16"}),
        ("olmo_hybrid_7b", {"x": "bfloat16", "state": "float32"}),
    ],
)
def test_dtypes(tmp_path: Path, config: str, dtypes: dict[str, str]) -> None:
    operators = loaded(tmp_path, *make(fixture(config))).operators
    operator = operators.mamba_chunk_scan_combined or operators.gated_delta_rule_packed_decode
    assert operator is not None
    assert operator.dtypes.model_dump() == dtypes


def test_options(tmp_path: Path) -> None:
    mamba2 = loaded(tmp_path, *make(fixture("zamba2_7b"))).operators.mamba_chunk_scan_combined
    assert mamba2 is not None
    assert mamba2.options.model_dump() == {
        "D": "per_head",
        "z": "none",
        "dt_bias": True,
        "dt_softplus": True,
        "dt_limit": "runtime",
        "initial_states": True,
        "packed": True,
    }
    gated = loaded(tmp_path, *make(fixture("native_gated"))).operators.mamba_chunk_scan_combined
    assert gated is not None
    assert (gated.options.D, gated.options.z) == ("per_channel", "silu")
    olmo = loaded(tmp_path, *make(fixture("olmo_hybrid_7b"))).operators.gated_delta_rule_packed_decode
    assert olmo is not None
    assert olmo.options.model_dump() == {"qk_l2norm": True, "beta_scale": 2}


class TestNames:
    @pytest.mark.parametrize(
        ("file", "ranks", "name"),
        [
            ("Qwen3.5-122B-A10B.json", 1, "qwen3p5_122b_a10b"),
            ("mamba2-2.7b.json", 1, "mamba2_2p7b"),
            ("zamba2-1.2b.old-format.json", 1, "zamba2_1p2b_old_format"),
            ("nemotron-h-8b.json", 8, "nemotron_h_8b_tp8"),
            ("config.json", 2, "my_model_v2_tp2"),
        ],
    )
    def test_from_the_file(self, tmp_path: Path, file: str, ranks: int, name: str) -> None:
        path = copied(tmp_path / "My-Model v2", "nemotron_h_8b", file)
        assert make(path, ranks)[0] == name

    @pytest.mark.parametrize(
        ("given", "file", "name", "source"),
        [
            ("nvidia/Nemotron-H-8B", "config.json", "nemotron_h_8b", "nvidia/Nemotron-H-8B"),
            ("nvidia/Nemotron-H-8B", "mine.json", "mine", "nvidia/Nemotron-H-8B"),
            ("", "config.json", "folder", "folder"),
            (None, "mine.json", "mine", "mine"),
            # a path says what somebody's disk looks like: only its last part is kept
            ("/fsx/people/ckpt/nano-9b", "config.json", "nano_9b", "nano-9b"),
            ("./out/nano-9b/", "config.json", "nano_9b", "nano-9b"),
            ("D:\\ckpt\\nano-9b", "config.json", "nano_9b", "nano-9b"),
            ("nvidia/a: b", "config.json", "a_b", "nvidia/a: b"),
            ("x\ny", "mine.json", "mine", "mine"),
            ("null", "mine.json", "mine", "null"),
        ],
    )
    def test_from_name_or_path(self, tmp_path: Path, given: str | None, file: str, name: str, source: str) -> None:
        path = copied(tmp_path / "folder", "nemotron_h_8b", file, _name_or_path=given)
        made, text = make(path)
        assert made == name
        assert loaded(tmp_path, made, text).model.source == source

    def test_from_a_hugging_face_cache(self, tmp_path: Path) -> None:
        folder = tmp_path / "models--nvidia--Nemotron-H-8B-Base" / "snapshots" / "9f2c1d"
        name, text = make(copied(folder, "nemotron_h_8b", "config.json"))
        assert name == "nemotron_h_8b_base"
        assert loaded(tmp_path, name, text).model.source == "nvidia/Nemotron-H-8B-Base"

    def test_a_relative_path_still_has_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        copied(tmp_path / "granite-4.0-h-tiny", "granite_h_small", "config.json")
        monkeypatch.chdir(tmp_path / "granite-4.0-h-tiny")
        assert make(Path("config.json"))[0] == "granite_4p0_h_tiny"

    def test_given_name_is_taken_as_it_is(self, tmp_path: Path) -> None:
        name, text = make(fixture("nemotron_h_8b"), 8, name="mine")
        assert name == "mine"
        assert loaded(tmp_path, "mine", text).model.name == "mine"

    @pytest.mark.parametrize("name", ["null", "true", "false"])
    def test_a_name_that_yaml_would_take_for_something_else(self, tmp_path: Path, name: str) -> None:
        assert loaded(tmp_path, *make(fixture("nemotron_h_8b"), name=name)).model.name == name

    @pytest.mark.parametrize("name", ["Nemotron", "8b", "nemotron-h", "", "a/b"])
    def test_given_name_must_be_valid(self, name: str) -> None:
        with pytest.raises(SpecError, match="no valid model name"):
            make(fixture("nemotron_h_8b"), name=name)

    def test_file_without_a_valid_name(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError) as caught:
            make(copied(tmp_path, "nemotron_h_8b", "8b.json"))
        assert str(caught.value) == (
            "no valid model name in '8b'\n  found:    '8b'\n  expected: lower-case letters, digits and _,"
            " starting with a letter, no Python keyword, at most 100 characters, such as nemotron_h_8b or qwen3p5_9b"
            "\n  next:     give another model name"
        )


class TestTargets:
    def test_unknown(self) -> None:
        with pytest.raises(SpecError, match="unknown target 'sm_91'"):
            make(fixture("nemotron_h_8b"), targets=("sm_90", "sm_91"))

    @pytest.mark.parametrize(("targets", "text"), [((), "no target given"), (("sm_90", "sm_90"), "given twice")])
    def test_none_or_twice(self, targets: tuple[str, ...], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            make(fixture("nemotron_h_8b"), targets=targets)


def test_with_the_real_plans_and_without_heavy_imports() -> None:
    """In a process of its own: derived routes load back, and no torch, cuda.tile or sympy was needed."""
    program = f"""
import sys
from pathlib import Path
from ssmgen import located_yaml, spec
from ssmgen.new import new_spec
name, text = new_spec(Path({str(fixture("falcon_h1_7b"))!r}), tensor_parallel=1, name=None, targets=["sm_90"])
result = spec.validate(spec.Spec, located_yaml.parse(text, name))
print(len(result.operators.mamba_chunk_scan_combined.routes) > 0)
print(sorted({{"torch", "cuda", "sympy", "jinja2"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n[]\n", done.stderr
