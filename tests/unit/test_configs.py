"""config.json -> ModelShape: every family, every parsing trap, every refusal by name; error texts are exact.

Facts of the fixtures are those of the published models, cut to the fields that matter.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ssmgen.configs import READERS, read_config
from ssmgen.errors import ConfigError, UsageError

FIXTURES = Path(__file__).parent / "configs"
ERRORS = FIXTURES / "expected_errors"
BF16 = "bfloat16"
NO_DTYPE = (BF16, "no dtype in the config")

# fixture: (architecture, sizes in the operator's order, mixers, total, dtype of x with its origin)
ACCEPTED: dict[str, tuple[str, tuple[int, ...], int | None, int | None, tuple[str, str]]] = {
    "bamba_9b": ("bamba", (128, 1, 64, 128), 29, 32, NO_DTYPE),
    "codestral_7b": ("mamba2", (128, 8, 64, 128), 64, 64, (BF16, "torch_dtype")),
    "falcon_h1_34b": ("falcon_h1", (32, 2, 128, 256), 72, 72, NO_DTYPE),
    "falcon_h1_7b": ("falcon_h1", (24, 1, 128, 256), 44, 44, NO_DTYPE),
    "falcon_h1_no_d_ssm": ("falcon_h1", (32, 1, 32, 64), 24, 24, NO_DTYPE),
    "granite_h_350m": ("granitemoehybrid", (48, 1, 32, 128), 3, 4, NO_DTYPE),
    "granite_h_rewritten": ("granitemoehybrid", (48, 1, 64, 128), 2, 3, NO_DTYPE),
    "granite_h_small": ("granitemoehybrid", (128, 1, 64, 128), 40, 40, NO_DTYPE),
    "granite_vision": ("granitemoehybrid", (64, 1, 64, 128), 2, 2, ("float16", "text_config.dtype")),
    "lara_mini": ("lara_mini", (8, 16, 128, 128), 14, 34, NO_DTYPE),
    "mamba2_130m_saved": ("mamba2", (24, 1, 64, 128), 24, 24, ("float32", "dtype")),
    "native_2p7b": ("mamba_ssm", (80, 1, 64, 128), 64, 64, NO_DTYPE),
    "native_gated": ("mamba_ssm", (24, 1, 64, 128), 24, 24, NO_DTYPE),
    "native_hybrid": ("mamba_ssm", (48, 2, 32, 64), 4, 6, NO_DTYPE),
    "nemotron_3_ultra": ("nemotron_h", (256, 8, 64, 128), 3, 8, ("float16", "dtype")),
    "nemotron_h_8b": ("nemotron_h", (128, 8, 64, 128), 24, 52, NO_DTYPE),
    "nemotron_h_aliases": ("nemotron_h", (96, 8, 80, 128), 2, 4, NO_DTYPE),
    "nemotron_h_omni": ("nemotron_h_omni", (64, 8, 64, 128), 3, 7, NO_DTYPE),
    "nemotron_nano_9b_v2": ("nemotron_h", (128, 8, 80, 128), 27, 56, (BF16, "torch_dtype")),
    "olmo_hybrid_7b": ("olmo_hybrid", (30, 30, 96, 192), 24, 32, NO_DTYPE),
    "olmo_hybrid_plain": ("olmo_hybrid", (8, 16, 64, 64), 2, 3, NO_DTYPE),
    "plamo2_1b": ("plamo2", (32, 1, 128, 64), 8, 16, NO_DTYPE),
    "plamo2_step_3": ("plamo2", (32, 1, 128, 64), 5, 7, NO_DTYPE),
    "qwen3_next_80b": ("qwen3_next", (16, 32, 128, 128), 36, 48, (BF16, "torch_dtype")),
    "qwen3p5_0p8b": ("qwen3_5", (16, 16, 128, 128), None, None, NO_DTYPE),
    "qwen3p5_27b": ("qwen3_5_text", (16, 48, 128, 128), 6, 8, (BF16, "text_config.dtype")),
    "qwen3p5_397b_moe": ("qwen3_5_moe_text", (16, 64, 128, 128), 45, 60, NO_DTYPE),
    "qwen4_exp": ("qwen4_exp_text", (16, 32, 128, 128), 3, 4, NO_DTYPE),
    "qwen_omni": ("qwen3_5_text", (16, 32, 128, 128), 6, 9, NO_DTYPE),
    "zamba2_1p2b_old": ("zamba2", (64, 1, 64, 128), 4, 4, NO_DTYPE),
    "zamba2_1p2b_saved": ("zamba2", (64, 1, 64, 128), 2, 2, NO_DTYPE),
    "zamba2_2p7b_mongrel": ("zamba2", (80, 1, 64, 64), 3, 3, NO_DTYPE),
    "zamba2_7b": ("zamba2", (112, 2, 64, 64), 6, 6, NO_DTYPE),
}


def fixtures() -> list[str]:
    return sorted(path.stem for path in FIXTURES.glob("*.json"))


def sizes(path: Path, tensor_parallel: int = 1) -> tuple[int, ...]:
    return tuple(number.value for number in read_config(path, tensor_parallel).mixer.sizes().values())


def error(path: Path, tensor_parallel: int = 1) -> str:
    """The error's text, with the file's folder taken out."""
    with pytest.raises(ConfigError) as caught:
        read_config(path, tensor_parallel)
    return str(caught.value).replace(f"{path.parent}/", "")


def refusal(tmp_path: Path, text: str | bytes | dict[str, Any]) -> str:
    return error(written(tmp_path, text))


def written(tmp_path: Path, text: str | bytes | dict[str, Any]) -> Path:
    path = tmp_path / "config.json"
    if isinstance(text, dict):
        text = json.dumps(text, indent=1)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(tmp_path: Path, fixture: str, *without: str, **fields: Any) -> Path:
    """A fixture with some of its fields removed or changed; one field a line, in the fixture's order."""
    data = json.loads((FIXTURES / f"{fixture}.json").read_text())
    for name in without:
        del data[name]
    return written(tmp_path, data | fields)


@pytest.mark.parametrize("fixture", fixtures())
def test_fixture(fixture: str) -> None:
    path = FIXTURES / f"{fixture}.json"
    if fixture not in ACCEPTED:
        assert error(path) + "\n" == (ERRORS / f"{fixture}.txt").read_text()
        return
    architecture, expected, mixers, total, x = ACCEPTED[fixture]
    shape = read_config(path)
    assert shape.architecture == architecture
    assert sizes(path) == expected
    assert tuple(shape.mixer.shape().model_dump().values()) == expected
    assert (shape.layers.mixers, shape.layers.total) == (mixers, total)
    assert shape.x == x
    assert shape.tensor_parallel == 1
    assert shape.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_fixture_is_forgotten() -> None:
    errors = {path.stem for path in ERRORS.glob("*.txt")}
    assert errors | set(ACCEPTED) == set(fixtures())
    assert not errors & set(ACCEPTED)


def test_every_reader_is_tried() -> None:
    tried = {architecture for architecture, *_ in ACCEPTED.values()}
    assert set(READERS) - tried <= {"qwen3_5_moe", "qwen4_exp"}, "an architecture without a fixture"


@pytest.mark.parametrize("outer", ["qwen3_5_moe", "qwen4_exp"])
def test_text_config_without_model_type_takes_the_outer_one(tmp_path: Path, outer: str) -> None:
    path = written(tmp_path, {"model_type": outer, "text_config": {"linear_num_value_heads": 64}})
    assert read_config(path).architecture == outer
    assert sizes(path) == (16, 64, 128, 128)


@pytest.mark.parametrize("wrapper", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_wrappers_and_null_wrapper(tmp_path: Path, wrapper: str) -> None:
    data = json.loads((FIXTURES / "nemotron_h_8b.json").read_text())
    path = written(tmp_path, {"model_type": "omni", wrapper: data, "vision_config": {"mamba_num_heads": 1}})
    assert sizes(path) == (128, 8, 64, 128)
    assert sizes(written(tmp_path, data | {wrapper: None})) == (128, 8, 64, 128)


class TestOrigins:
    """Where a number came from, as the spec will say it."""

    @pytest.mark.parametrize(
        ("fixture", "size", "origin"),
        [
            ("native_2p7b", "heads", "expand (class default) * d_model / headdim (class default) = 5120 / 64"),
            ("native_2p7b", "state", "d_state (class default)"),
            ("native_hybrid", "heads", "d_ssm / headdim = 1536 / 32"),
            (
                "nemotron_nano_9b_v2",
                "head_dim",
                "mamba_head_dim; mamba_num_heads * mamba_head_dim = 10240 decides,"
                " expand * hidden_size = 8960 is ignored",
            ),
            ("nemotron_h_8b", "head_dim", "mamba_head_dim"),
            ("nemotron_h_8b", "groups", "n_groups"),
            ("nemotron_h_aliases", "groups", "mamba_n_groups"),
            ("nemotron_h_aliases", "state", "ssm_state_size (class default)"),
            ("bamba_9b", "head_dim", "mamba_expand * hidden_size / mamba_n_heads = 8192 / 128"),
            ("granite_h_small", "groups", "mamba_n_groups (class default)"),
            (
                "falcon_h1_7b",
                "head_dim",
                "mamba_d_head; mamba_n_heads * mamba_d_head = 3072 decides,"
                " mamba_expand * hidden_size = 6144 is ignored",
            ),
            ("falcon_h1_34b", "head_dim", "mamba_d_ssm / mamba_n_heads = 4096 / 32"),
            ("falcon_h1_no_d_ssm", "head_dim", "mamba_expand * hidden_size / mamba_n_heads = 1024 / 32"),
            ("zamba2_7b", "head_dim", "mamba_expand * hidden_size / n_mamba_heads = 7168 / 112"),
            ("zamba2_2p7b_mongrel", "heads", "expansion_factor * hidden_size / mamba_headdim = 5120 / 64"),
            ("plamo2_1b", "groups", "fixed"),
            ("qwen3p5_0p8b", "key_heads", "linear_num_key_heads (class default)"),
            ("olmo_hybrid_7b", "key_dim", "3/4 * hidden_size / key_heads"),
            ("olmo_hybrid_7b", "value_dim", "2 * key_dim (class default)"),
        ],
    )
    def test_size(self, fixture: str, size: str, origin: str) -> None:
        assert read_config(FIXTURES / f"{fixture}.json").mixer.sizes()[size].origin == origin

    @pytest.mark.parametrize(
        ("fixture", "remarks"),
        [
            ("codestral_7b", ()),
            ("bamba_9b", ()),
            ("mamba2_130m_saved", ("dt_limit: time_step_limit in the config is (0.001, inf)",)),
            ("native_hybrid", ("dt_limit: dt_limit in the config is (0.0, 0.5)",)),
            (
                "nemotron_3_ultra",
                ("dt_limit: transformers before 5.25 takes (time_step_min, inf) = (0.002, inf) here, vLLM (0, inf)",),
            ),
            (
                "nemotron_nano_9b_v2",
                (
                    "dt_limit: transformers before 5.25 takes (time_step_min, inf) = (0.001, inf) here, vLLM (0, inf)",
                    "mamba_ssm_cache_dtype = 'bfloat16' is the decode cache's:"
                    " final states of this operator are float32",
                ),
            ),
            (
                "zamba2_1p2b_saved",
                ("dt_limit: transformers takes (time_step_min, inf) = (0.01, inf) here, vLLM (0, inf)",),
            ),
            ("olmo_hybrid_7b", ("beta = 2 * sigmoid(b): linear_allow_neg_eigval",)),
            ("qwen3_next_80b", ()),
        ],
    )
    def test_remarks(self, fixture: str, remarks: tuple[str, ...]) -> None:
        assert read_config(FIXTURES / f"{fixture}.json").mixer.remarks == remarks

    @pytest.mark.parametrize(
        ("fixture", "text"),
        [
            ("nemotron_h_8b", "24 of 52 layers, by hybrid_override_pattern"),
            ("nemotron_3_ultra", "3 of 8 layers, by layers_block_type"),
            ("granite_h_small", "all 40 layers, by layer_types (class default)"),
            ("qwen3p5_0p8b", "all layers but every 4th, by full_attention_interval (class default)"),
            ("bamba_9b", "29 of 32 layers, by attn_layer_indices"),
        ],
    )
    def test_layers(self, fixture: str, text: str) -> None:
        assert str(read_config(FIXTURES / f"{fixture}.json").layers) == text

    @pytest.mark.parametrize(
        ("fixture", "without", "text"),
        [
            ("bamba_9b", "num_hidden_layers", "all layers but 9, 18, 27, by attn_layer_indices"),
            ("plamo2_1b", "num_hidden_layers", "all layers but one in every 2, by mamba_step"),
            ("lara_mini", "num_hidden_layers", "two layers of every five, by class default"),
            ("olmo_hybrid_7b", "num_hidden_layers", "all layers but every 4th, by class default"),
            ("codestral_7b", "num_hidden_layers", "all layers"),
            ("bamba_9b", "attn_layer_indices", "all 32 layers"),
        ],
    )
    def test_layers_of_a_shorter_file(self, tmp_path: Path, fixture: str, without: str, text: str) -> None:
        assert str(read_config(changed(tmp_path, fixture, without)).layers) == text


@pytest.mark.parametrize("total", range(2, 24))
def test_patterns_by_definition(tmp_path: Path, total: int) -> None:
    """Counts in closed form are those of the classes' own layer-by-layer rules."""

    def mixers(fixture: str, **fields: Any) -> int | None:
        return read_config(changed(tmp_path, fixture, num_hidden_layers=total, **fields)).layers.mixers

    lara = ["linear", "sliding", "linear", "full", "sliding"]
    assert mixers("lara_mini") == sum(lara[i % 5] == "linear" for i in range(total))
    for step in (2, 3, 4, 5, 9):
        expected = total - 1 if total <= step // 2 else sum(i % step != step // 2 for i in range(total))
        assert mixers("plamo2_1b", mamba_step=step) == expected
    for period in (2, 3, 4, 7):
        linear = sum((i + 1) % period != 0 for i in range(total))
        assert mixers("qwen3_next_80b", full_attention_interval=period) == linear
    olmo = sum(i % 4 != 3 for i in range(total))
    assert mixers("olmo_hybrid_7b") == (olmo if olmo < total else total - 1)


class TestGatedDeltaOptions:
    @pytest.mark.parametrize(
        ("fixture", "state", "scale"),
        [
            ("qwen3p5_27b", "float32", 1),
            ("qwen3p5_397b_moe", "bfloat16", 1),
            ("qwen3_next_80b", "float32", 1),
            ("olmo_hybrid_7b", "float32", 2),
            ("olmo_hybrid_plain", "float32", 1),
        ],
    )
    def test_state_and_beta(self, fixture: str, state: str, scale: int) -> None:
        mixer = read_config(FIXTURES / f"{fixture}.json").mixer
        assert (mixer.state_dtype, mixer.beta_scale) == (state, scale)

    def test_neg_eigval_is_the_class_default(self, tmp_path: Path) -> None:
        mixer = read_config(changed(tmp_path, "olmo_hybrid_7b", "linear_allow_neg_eigval")).mixer
        assert mixer.beta_scale == 2
        assert mixer.remarks == ("beta = 2 * sigmoid(b): linear_allow_neg_eigval (class default)",)

    def test_key_dim_is_rounded_down_as_by_the_class(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "olmo_hybrid_7b", hidden_size=1000, num_attention_heads=9)
        assert sizes(path) == (9, 9, int(0.75 * 1000 / 9), 2 * int(0.75 * 1000 / 9))


LIMIT = (
    "\n  expected: two numbers, low <= high, such as [0.0, Infinity]"
    "\n  next:     correct time_step_limit, then run: ssmgen new config.json"
)


class TestTimeStepLimit:
    @pytest.mark.parametrize(
        ("text", "remarks"),
        [
            ("[0.0, Infinity]", ()),
            ("[0, 1e308]", ()),
            ("[0.0, 1e400]", ()),
            ('[0.0, {"__float__": "Infinity"}]', ()),
            ("null", ()),
            (f"[0, 1{'0' * 400}]", ()),
            ("[0.001, 0.1]", ("dt_limit: time_step_limit in the config is (0.001, 0.1)",)),
            ("[0, 100]", ("dt_limit: time_step_limit in the config is (0.0, 100.0)",)),
        ],
    )
    def test_accepted(self, tmp_path: Path, text: str, remarks: tuple[str, ...]) -> None:
        path = written(
            tmp_path, f'{{"model_type": "mamba2", "hidden_size": 4096, "num_heads": 128, "time_step_limit": {text}}}'
        )
        assert read_config(path).mixer.remarks == remarks

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("[0.0, NaN]", "[0.0, NaN]"),
            ("[1.0, 0.5]", "[1.0, 0.5]"),
            ('[0.0, "Infinity"]', '[0.0, "Infinity"]'),
            ("[false, true]", "[false, true]"),
            ("[0.0]", "[0.0]"),
            ("0.1", "0.1"),
            ('[0.0, {"__float__": "big"}]', '[0.0, {"__float__": "big"}]'),
            ('[0.0, {"float": 1}]', '[0.0, {"float": 1}]'),
        ],
    )
    @pytest.mark.parametrize("family", ['"mamba2"', '"zamba2", "n_mamba_heads": 80'])
    def test_refused(self, tmp_path: Path, text: str, shown: str, family: str) -> None:
        found = refusal(tmp_path, f'{{"model_type": {family},\n "time_step_limit": {text}}}')
        assert found == f"config.json:2: time_step_limit: not a limit\n  found:    {shown}{LIMIT}"

    def test_time_step_min(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "zamba2_1p2b_saved", time_step_min="0.01")
        assert error(path).startswith("config.json:13: time_step_min: not a number\n")


class TestFields:
    """Numbers are strict, contradictions carry both values, and every error has its line."""

    @pytest.mark.parametrize(
        ("value", "shown"),
        [(True, "true"), (64.0, "64.0"), ("64", '"64"'), (0, "0"), (-8, "-8"), (None, "null"), ([64], "[64]")],
    )
    def test_a_number_is_a_whole_number(self, tmp_path: Path, value: object, shown: str) -> None:
        found = error(changed(tmp_path, "nemotron_h_8b", mamba_num_heads=value))
        assert found == (
            f"config.json:6: mamba_num_heads: not a size\n  found:    {shown}\n  expected: a whole number > 0"
            "\n  next:     correct mamba_num_heads, then run: ssmgen new config.json"
        )

    def test_a_nested_field_has_its_full_name_and_line(self, tmp_path: Path) -> None:
        text = '{"model_type": "qwen3_5",\n"text_config": {\n"linear_num_key_heads":\n 16.0}}'
        assert refusal(tmp_path, text) == (
            "config.json:3: text_config.linear_num_key_heads: not a size"
            "\n  found:    16.0"
            "\n  expected: a whole number > 0"
            "\n  next:     correct text_config.linear_num_key_heads, then run: ssmgen new config.json"
        )

    @pytest.mark.parametrize(
        ("fixture", "fields", "expected"),
        [
            (
                "codestral_7b",
                {"head_dim": 32},
                (
                    "config.json:6: expand: num_heads * head_dim = 128 * 32 = 4096 contradicts expand *"
                    " hidden_size = 8192"
                    "\n  found:    2"
                    "\n  expected: both products equal, as the model's class demands"
                    "\n  next:     correct num_heads, head_dim or expand * hidden_size, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "granite_h_350m",
                {"mamba_d_head": 64},
                (
                    "config.json:12: mamba_d_head: mamba_n_heads * mamba_d_head = 48 * 64 = 3072 contradicts"
                    " mamba_expand (class default) * hidden_size = 1536"
                    "\n  found:    64"
                    "\n  expected: both products equal, as the model's class demands"
                    "\n  next:     correct mamba_n_heads, mamba_d_head or mamba_expand (class default) *"
                    " hidden_size, then run: ssmgen new config.json"
                ),
            ),
            (
                "bamba_9b",
                {"mamba_d_head": 32},
                (
                    "config.json:11: mamba_d_head: mamba_n_heads * mamba_d_head = 128 * 32 = 4096"
                    " contradicts mamba_expand * hidden_size = 8192"
                    "\n  found:    32"
                    "\n  expected: both products equal, as the model's class demands"
                    "\n  next:     correct mamba_n_heads, mamba_d_head or mamba_expand * hidden_size, then"
                    " run: ssmgen new config.json"
                ),
            ),
            (
                "bamba_9b",
                {"mamba_n_heads": 100},
                (
                    "config.json:11: mamba_d_head: mamba_n_heads = 100 does not divide mamba_expand *"
                    " hidden_size = 8192"
                    '\n  found:    "auto"'
                    "\n  expected: mamba_n_heads that divides 8192"
                    "\n  next:     correct mamba_n_heads or mamba_expand * hidden_size, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "falcon_h1_7b",
                {"mamba_d_ssm": 4096},
                (
                    "config.json:6: mamba_d_head: mamba_n_heads * mamba_d_head = 24 * 128 = 3072 contradicts"
                    " mamba_d_ssm = 4096"
                    "\n  found:    128"
                    "\n  expected: both products equal, as the model's class demands"
                    "\n  next:     correct mamba_n_heads, mamba_d_head or mamba_d_ssm, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "zamba2_1p2b_saved",
                {"mamba_headdim": 32},
                (
                    "config.json:9: mamba_headdim: n_mamba_heads * mamba_headdim = 64 * 32 = 2048"
                    " contradicts mamba_expand * hidden_size = 4096"
                    "\n  found:    32"
                    "\n  expected: both products equal, as the model's class demands"
                    "\n  next:     correct n_mamba_heads, mamba_headdim or mamba_expand * hidden_size, then"
                    " run: ssmgen new config.json"
                ),
            ),
            (
                "zamba2_1p2b_old",
                {"mamba_d_state": 64},
                (
                    "config.json:12: state_size: contradicts mamba_d_state = 64 (line 15)"
                    "\n  found:    128"
                    "\n  expected: one of the two, or both the same"
                    "\n  next:     remove state_size or mamba_d_state, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_h_8b",
                {"mamba_n_groups": 4},
                (
                    "config.json:9: n_groups: contradicts mamba_n_groups = 4 (line 10)"
                    "\n  found:    8"
                    "\n  expected: one of the two, or both the same"
                    "\n  next:     remove n_groups or mamba_n_groups, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_3_ultra",
                {"hybrid_override_pattern": "M-M"},
                (
                    'config.json:4: layers_block_type: contradicts hybrid_override_pattern = "M-M" (line 28)'
                    "\n  found:    a list of 8"
                    "\n  expected: one of the two, or both the same"
                    "\n  next:     remove layers_block_type or hybrid_override_pattern, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "granite_h_350m",
                {"num_hidden_layers": 5},
                (
                    "config.json:4: num_hidden_layers: contradicts layer_types (line 5), which names 4"
                    "\n  found:    5"
                    "\n  expected: 4"
                    "\n  next:     correct num_hidden_layers or layer_types, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_nano_9b_v2",
                {"dtype": "float32"},
                (
                    'config.json:16: dtype: contradicts torch_dtype = "bfloat16" (line 15)'
                    '\n  found:    "float32"'
                    "\n  expected: one of the two"
                    "\n  next:     remove dtype or torch_dtype, then run: ssmgen new config.json"
                ),
            ),
            (
                "native_hybrid",
                {"d_model": 512},
                (
                    "config.json:10: ssm_cfg.d_ssm: more than expand (class default) * d_model = 1024"
                    "\n  found:    1536"
                    "\n  expected: at most 1024"
                    "\n  next:     correct ssm_cfg.d_ssm, then run: ssmgen new config.json"
                ),
            ),
        ],
    )
    def test_contradiction(self, tmp_path: Path, fixture: str, fields: dict[str, Any], expected: str) -> None:
        assert error(changed(tmp_path, fixture, **fields)) == expected

    @pytest.mark.parametrize(
        ("fixture", "fields", "expected"),
        [
            (
                "nemotron_h_8b",
                {"mamba_head_dim": 512},
                (
                    "config.json:7: mamba_head_dim: beyond what the kernels can hold"
                    "\n  found:    512"
                    "\n  expected: head_dim less than or equal to 256"
                    "\n  next:     if mamba_head_dim is wrong, correct it, then run: ssmgen new config.json"
                ),
            ),
            (
                "falcon_h1_34b",
                {"mamba_d_state": 512},
                (
                    "config.json:8: mamba_d_state: beyond what the kernels can hold"
                    "\n  found:    512"
                    "\n  expected: state less than or equal to 256"
                    "\n  next:     if mamba_d_state is wrong, correct it, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_h_8b",
                {"n_groups": 7},
                (
                    "config.json:9: groups = 7 must divide heads = 128"
                    "\n  found:    heads = 128 from mamba_num_heads, groups = 7 from n_groups, head_dim = 64"
                    " from mamba_head_dim, state = 128 from ssm_state_size"
                    "\n  expected: groups that divide 128, such as 4 or 8"
                    "\n  next:     correct one of the two, then run: ssmgen new config.json"
                ),
            ),
            (
                "qwen3_next_80b",
                {"linear_num_value_heads": 24},
                (
                    "config.json:6: key_heads = 16 must divide value_heads = 24"
                    "\n  found:    key_heads = 16 from linear_num_key_heads, value_heads = 24 from"
                    " linear_num_value_heads, key_dim = 128 from linear_key_head_dim, value_dim = 128 from"
                    " linear_value_head_dim"
                    "\n  expected: key_heads that divide 24, such as 12 or 24"
                    "\n  next:     correct one of the two, then run: ssmgen new config.json"
                ),
            ),
            (
                "qwen3_next_80b",
                {"torch_dtype": "float8_e4m3fn"},
                (
                    "config.json:11: torch_dtype: not a dtype of these kernels"
                    '\n  found:    "float8_e4m3fn"'
                    "\n  expected: bfloat16, float16, float32"
                    "\n  next:     correct torch_dtype, then run: ssmgen new config.json"
                ),
            ),
            (
                "qwen3_next_80b",
                {"mamba_ssm_dtype": "float16"},
                (
                    "config.json:12: mamba_ssm_dtype: not a dtype of the state"
                    '\n  found:    "float16"'
                    "\n  expected: float32, bfloat16"
                    "\n  next:     correct mamba_ssm_dtype, then run: ssmgen new config.json"
                ),
            ),
            (
                "qwen3_next_80b",
                {"torch_dtype": ["bfloat16"]},
                (
                    "config.json:11: torch_dtype: not a string"
                    '\n  found:    ["bfloat16"]'
                    "\n  expected: a string"
                    "\n  next:     correct torch_dtype, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_h_8b",
                {"hybrid_override_pattern": "M-X"},
                (
                    "config.json:5: hybrid_override_pattern, letter 3 of 3: unknown layer type"
                    '\n  found:    "X"'
                    "\n  expected: one of M, linear_attention, mamba, *, -, E, attention, full_attention,"
                    " mlp, moe"
                    "\n  next:     if hybrid_override_pattern is wrong, correct it, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "granite_h_350m",
                {"layer_types": ["mamba", "mamba", "mamba3", "mamba"]},
                (
                    "config.json:8: layer_types[2]: unknown layer type"
                    '\n  found:    "mamba3"'
                    "\n  expected: one of linear_attention, mamba, attention, full_attention"
                    "\n  next:     if layer_types[2] is wrong, correct it, then run: ssmgen new config.json"
                ),
            ),
            (
                "granite_h_350m",
                {"layer_types": ["mamba", ["mamba"]]},
                (
                    "config.json:7: layer_types[1]: unknown layer type"
                    '\n  found:    ["mamba"]'
                    "\n  expected: one of linear_attention, mamba, attention, full_attention"
                    "\n  next:     if layer_types[1] is wrong, correct it, then run: ssmgen new config.json"
                ),
            ),
            (
                "zamba2_7b",
                {"layers_block_type": ["mamba", "attention"]},
                (
                    "config.json:7: layers_block_type[1]: unknown layer type"
                    '\n  found:    "attention"'
                    "\n  expected: one of g, hybrid, linear_attention, m, mamba"
                    "\n  next:     if layers_block_type[1] is wrong, correct it, then run: ssmgen new"
                    " config.json"
                ),
            ),
            (
                "granite_h_350m",
                {"layer_types": []},
                (
                    "config.json:5: layer_types: names no layers"
                    "\n  found:    []"
                    "\n  expected: a list of layer types, or a string of letters"
                    "\n  next:     correct layer_types, then run: ssmgen new config.json"
                ),
            ),
            (
                "bamba_9b",
                {"attn_layer_indices": [9, 32]},
                (
                    "config.json:7: attn_layer_indices[1]: not the number of a layer"
                    "\n  found:    32"
                    "\n  expected: a whole number from 0 to 31"
                    "\n  next:     correct attn_layer_indices[1], then run: ssmgen new config.json"
                ),
            ),
            (
                "bamba_9b",
                {"attn_layer_indices": [9, 9]},
                (
                    "config.json:7: attn_layer_indices[1]: given twice"
                    "\n  found:    9 also at attn_layer_indices[0]"
                    "\n  expected: each layer once"
                    "\n  next:     remove one of the two, then run: ssmgen new config.json"
                ),
            ),
            (
                "native_hybrid",
                {"attn_layer_idx": 2},
                (
                    "config.json:4: attn_layer_idx: not a list"
                    "\n  found:    2"
                    "\n  expected: a list of layer numbers"
                    "\n  next:     correct attn_layer_idx, then run: ssmgen new config.json"
                ),
            ),
            (
                "native_hybrid",
                {"ssm_cfg": "Mamba2"},
                (
                    "config.json:8: ssm_cfg: not an object"
                    '\n  found:    "Mamba2"'
                    "\n  expected: { … }"
                    "\n  next:     correct ssm_cfg, then run: ssmgen new config.json"
                ),
            ),
            (
                "olmo_hybrid_7b",
                {"linear_allow_neg_eigval": 1},
                (
                    "config.json:10: linear_allow_neg_eigval: neither true nor false"
                    "\n  found:    1"
                    "\n  expected: true or false"
                    "\n  next:     correct linear_allow_neg_eigval, then run: ssmgen new config.json"
                ),
            ),
            (
                "plamo2_1b",
                {"mamba_step": 1},
                (
                    "config.json:8: mamba_step: no layer of this model holds a Mamba-2 mixer"
                    "\n  found:    1"
                    "\n  expected: at least 2"
                    "\n  next:     there are no kernels for this model; for another one run: ssmgen new"
                    " CONFIG.json"
                ),
            ),
        ],
    )
    def test_not_valid(self, tmp_path: Path, fixture: str, fields: dict[str, Any], expected: str) -> None:
        assert error(changed(tmp_path, fixture, **fields)) == expected

    @pytest.mark.parametrize(
        ("fixture", "without", "expected"),
        [
            (
                "native_2p7b",
                "d_model",
                (
                    "config.json:1: d_model: missing"
                    "\n  found:    no such field"
                    "\n  expected: a whole number > 0"
                    "\n  next:     add d_model, then run: ssmgen new config.json"
                ),
            ),
            (
                "zamba2_1p2b_old",
                "state_size",
                (
                    "config.json:1: state_size: missing"
                    "\n  found:    no such field"
                    "\n  expected: a whole number > 0"
                    "\n  next:     add state_size, then run: ssmgen new config.json"
                ),
            ),
            (
                "zamba2_1p2b_old",
                "expansion_factor",
                (
                    "config.json:1: expansion_factor: missing"
                    "\n  found:    no such field"
                    "\n  expected: a whole number > 0"
                    "\n  next:     add expansion_factor, then run: ssmgen new config.json"
                ),
            ),
            (
                "nemotron_h_8b",
                "hybrid_override_pattern",
                (
                    "config.json:1: hybrid_override_pattern: missing"
                    "\n  found:    no such field"
                    "\n  expected: hybrid_override_pattern or layers_block_type"
                    "\n  next:     add hybrid_override_pattern or layers_block_type, then run: ssmgen new"
                    " config.json"
                ),
            ),
        ],
    )
    def test_missing(self, tmp_path: Path, fixture: str, without: str, expected: str) -> None:
        assert error(changed(tmp_path, fixture, without)) == expected

    @pytest.mark.parametrize(
        ("model_type", "fields", "expected"),
        [
            ("mamba2", {"num_heads": 128}, (128, 8, 64, 128)),
            ("mamba2", {"n_groups": 4}, (128, 4, 64, 128)),
            ("nemotron_h", {"hybrid_override_pattern": "M", "n_groups": 8}, (128, 8, 64, 128)),
            ("nemotron_h", {"hybrid_override_pattern": "M", "ssm_state_size": 64}, (128, 8, 64, 64)),
            ("bamba", {"mamba_n_heads": 64}, (64, 1, 128, 256)),
            ("bamba", {"mamba_d_state": 128}, (128, 1, 64, 128)),
            ("granitemoehybrid", {"mamba_n_heads": 64}, (64, 1, 128, 256)),
            ("granitemoehybrid", {"mamba_d_state": 128}, (128, 1, 64, 128)),
            ("falcon_h1", {"mamba_n_heads": 16}, (16, 1, 64, 256)),
            ("falcon_h1", {"mamba_d_state": 128}, (128, 1, 8, 128)),
            ("zamba2", {"n_mamba_heads": 80}, (80, 1, 64, 64)),
            ("plamo2", {"mamba_num_heads": 32}, (32, 1, 128, 64)),
            ("plamo2", {"mamba_d_state": 32}, (64, 1, 128, 32)),
            ("qwen3_next", {"linear_key_head_dim": 64}, (16, 32, 64, 128)),
            ("qwen3_5_text", {"linear_value_head_dim": 64}, (16, 32, 128, 64)),
            ("lara_mini", {"linear_key_head_dim": 64}, (8, 16, 64, 128)),
            ("olmo_hybrid", {"hidden_size": 3840}, (30, 30, 96, 192)),
            ("olmo_hybrid", {"num_attention_heads": 60}, (60, 60, 48, 96)),
        ],
    )
    def test_class_defaults(
        self, tmp_path: Path, model_type: str, fields: dict[str, Any], expected: tuple[int, ...]
    ) -> None:
        assert sizes(written(tmp_path, {"model_type": model_type} | fields)) == expected

    def test_what_nemotron_ignores_is_not_checked(self, tmp_path: Path) -> None:
        path = changed(tmp_path, "nemotron_h_8b", expand=1.25, n_group="one", head_dim=None)
        assert sizes(path) == (128, 8, 64, 128)

    def test_zamba2_class_default_of_heads_only_in_its_own_format(self, tmp_path: Path) -> None:
        new = {"model_type": "zamba2", "hidden_size": 512, "mamba_d_state": 64}
        assert sizes(written(tmp_path, new)) == (8, 1, 128, 64)
        old = {"model_type": "zamba2", "hidden_size": 512, "state_size": 64, "expansion_factor": 2}
        assert sizes(written(tmp_path, old)) == (16, 1, 64, 64)


class TestFile:
    """A file that is no config.json at all gives one error, with its line."""

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (
                '{\n "model_type": "mamba2",\n "hidden_size": 40',
                "config.json:3: not valid JSON\n  found:    Expecting ',' delimiter (the file ends here)",
            ),
            (
                '{\n "model_type": "mam',
                "config.json:2: not valid JSON\n  found:    Unterminated string starting at (the file ends here)",
            ),
            ("", "config.json:1: not valid JSON\n  found:    Expecting value (the file ends here)"),
            (
                "model_type: mamba2\n",
                "config.json:1: not valid JSON\n  found:    Expecting value at column 1",
            ),
            (
                '{"a": 1,\n "b": 2,\n}',
                "config.json:2: not valid JSON\n  found:    Illegal trailing comma before end of object at column 8",
            ),
            ('{"a": 1}\n{"b": 2}', "config.json:2: not valid JSON\n  found:    Extra data at column 1"),
        ],
    )
    def test_not_json(self, tmp_path: Path, content: str, expected: str) -> None:
        found = refusal(tmp_path, content)
        said = found
        if "trailing comma" in expected and "trailing comma" not in found:
            # before Python 3.13 the parser stops at the brace
            expected = (
                "config.json:3: not valid JSON\n"
                "  found:    Expecting property name enclosed in double quotes (the file ends here)"
            )
            found = found.replace(" at column 1", " (the file ends here)")
        again = "download the file again" + ("" if "(the file ends here)" in said else ", or correct that line")
        assert found == (
            f"{expected}\n  expected: a model's config.json, whole"
            f"\n  next:     {again}, then run: ssmgen new config.json"
        )

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (
                "[1, 2]",
                (
                    "config.json:1: not a JSON object"
                    "\n  found:    an array"
                    "\n  expected: a model's config.json: { … }"
                    "\n  next:     give the model's config.json: ssmgen new PATH/config.json"
                ),
            ),
            (
                "3.5",
                (
                    "config.json:1: not a JSON object"
                    "\n  found:    3.5"
                    "\n  expected: a model's config.json: { … }"
                    "\n  next:     give the model's config.json: ssmgen new PATH/config.json"
                ),
            ),
            (
                b"\xef\xbb\xbf{}",
                (
                    "config.json:1: starts with a byte order mark"
                    "\n  found:    bytes ef bb bf"
                    "\n  expected: UTF-8 without one"
                    "\n  next:     save the file again as plain UTF-8, then run: ssmgen new config.json"
                ),
            ),
            (
                b'{\n"source": "caf\xe9"}',
                (
                    "config.json:2: not UTF-8"
                    "\n  found:    byte 0xe9"
                    "\n  expected: UTF-8"
                    "\n  next:     save the file again as UTF-8, then run: ssmgen new config.json"
                ),
            ),
            (
                '{"model_type": "mamba2",\n "num_heads": 24,\n "num_heads": 32}',
                (
                    'config.json:3: key "num_heads" given twice'
                    "\n  found:    first given on line 2"
                    "\n  expected: each key once"
                    "\n  next:     keep one of the two, then run: ssmgen new config.json"
                ),
            ),
            (
                '{"text_config": {"a": [{"b": 1,\n"c": "}\\",{",\n"b": 1}]}}',
                (
                    'config.json:3: key "b" given twice'
                    "\n  found:    first given on line 1"
                    "\n  expected: each key once"
                    "\n  next:     keep one of the two, then run: ssmgen new config.json"
                ),
            ),
            (
                "[" * 100_000,
                (
                    "config.json:1: not valid JSON"
                    "\n  found:    brackets nested too deeply"
                    "\n  expected: a few levels"
                    "\n  next:     download the file again, then run: ssmgen new config.json"
                ),
            ),
        ],
    )
    def test_not_a_config(self, tmp_path: Path, content: str | bytes, expected: str) -> None:
        assert refusal(tmp_path, content) == expected

    def test_a_number_beyond_python_s_limit(self, tmp_path: Path) -> None:
        found = refusal(tmp_path, '{"model_type": "mamba2", "num_heads": ' + "9" * 5000 + "}")
        assert found.startswith("config.json:1: not valid JSON\n  found:    Exceeds the limit")

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        assert error(tmp_path / "config.json") == (
            f"config.json: no such file\n  found:    in {tmp_path}: no .json file"
            "\n  expected: a model's config.json"
            "\n  next:     give the model's config.json: ssmgen new PATH/config.json"
        )
        (tmp_path / "model").mkdir()
        assert error(tmp_path / "model") == (
            "model: a folder, not a file\n  found:    an empty folder\n  expected: a model's config.json"
            "\n  next:     give the model's config.json: ssmgen new PATH/config.json"
        )
        written(tmp_path / "model", "{}")
        assert error(tmp_path / "model").endswith("\n  next:     ssmgen new model/config.json")

    def test_model_type_is_a_string(self, tmp_path: Path) -> None:
        found = refusal(tmp_path, '{"model_type": ["mamba2"]}')
        assert found == (
            "config.json:1: model_type: not a string"
            '\n  found:    ["mamba2"]'
            "\n  expected: a string"
            "\n  next:     correct model_type, then run: ssmgen new config.json"
        )


class TestTensorParallel:
    """One GPU's share: heads are divided, groups divided or replicated, and nothing else."""

    @pytest.mark.parametrize(
        ("fixture", "ranks", "expected"),
        [
            ("nemotron_h_8b", 2, (64, 4, 64, 128)),
            ("nemotron_h_8b", 8, (16, 1, 64, 128)),
            ("nemotron_h_8b", 16, (8, 1, 64, 128)),
            ("nemotron_nano_9b_v2", 4, (32, 2, 80, 128)),
            ("nemotron_3_ultra", 8, (32, 1, 64, 128)),
            ("falcon_h1_34b", 2, (16, 1, 128, 256)),
            ("falcon_h1_34b", 4, (8, 1, 128, 256)),
            ("falcon_h1_7b", 4, (6, 1, 128, 256)),
            ("granite_h_small", 4, (32, 1, 64, 128)),
            ("zamba2_7b", 2, (56, 1, 64, 64)),
            ("bamba_9b", 2, (64, 1, 64, 128)),
            ("qwen3p5_397b_moe", 8, (2, 8, 128, 128)),
            ("qwen3p5_27b", 2, (8, 24, 128, 128)),
            ("qwen3_next_80b", 4, (4, 8, 128, 128)),
            ("olmo_hybrid_7b", 3, (10, 10, 96, 192)),
        ],
    )
    def test_share(self, fixture: str, ranks: int, expected: tuple[int, ...]) -> None:
        shape = read_config(FIXTURES / f"{fixture}.json", ranks)
        assert tuple(shape.mixer.shape().model_dump().values()) == expected
        assert shape.tensor_parallel == ranks

    @pytest.mark.parametrize("ranks", range(1, 130))
    @pytest.mark.parametrize("fixture", ["nemotron_h_8b", "falcon_h1_34b", "zamba2_7b", "bamba_9b"])
    def test_a_rank_reads_the_groups_of_its_own_heads(self, fixture: str, ranks: int) -> None:
        path = FIXTURES / f"{fixture}.json"
        heads, groups, *_ = sizes(path)
        # by definition: rank r holds heads r*H/n ..., head h reads group h // (H/G); whole groups or one group a rank
        local = [
            {h * groups // heads for h in range(r * heads // ranks, (r + 1) * heads // ranks)} for r in range(ranks)
        ]
        fits = heads % ranks == 0 and all(
            heads // ranks == len(mine) * (heads // groups) or len(mine) == 1 for mine in local
        )
        if not fits:
            assert f"cannot be split over {ranks} GPUs" in error(path, ranks)
            return
        assert sizes(path, ranks)[:2] == (heads // ranks, len(local[0]))

    @pytest.mark.parametrize(
        ("fixture", "size", "origin"),
        [
            ("nemotron_h_8b", "heads", "mamba_num_heads: 128 over 4 GPUs"),
            ("nemotron_h_8b", "groups", "n_groups: 8 over 4 GPUs"),
            ("nemotron_h_8b", "head_dim", "mamba_head_dim"),
            ("granite_h_small", "groups", "mamba_n_groups (class default): 1, one replicated on 4 GPUs"),
            ("falcon_h1_34b", "groups", "mamba_n_groups: 2, one replicated on 4 GPUs"),
            ("qwen3p5_27b", "value_heads", "linear_num_value_heads: 48 over 4 GPUs"),
        ],
    )
    def test_origin(self, fixture: str, size: str, origin: str) -> None:
        assert read_config(FIXTURES / f"{fixture}.json", 4).mixer.sizes()[size].origin == origin

    @pytest.mark.parametrize(
        ("fixture", "ranks", "expected"),
        [
            (
                "nemotron_h_8b",
                3,
                (
                    "nemotron_h_8b.json:6: mamba_num_heads = 128, n_groups = 8: cannot be split over 3 GPUs"
                    "\n  found:    tensor parallel 3"
                    "\n  expected: tensor parallel 1, 2, 4, 8, 16, 32, 64, 128"
                    "\n  next:     ssmgen new nemotron_h_8b.json --tp 2"
                ),
            ),
            (
                # 7 divides the heads, but neither divides nor is divided by the 2 groups
                "zamba2_7b",
                7,
                (
                    "zamba2_7b.json:16: n_mamba_heads = 112, mamba_ngroups = 2: cannot be split over 7 GPUs"
                    "\n  found:    tensor parallel 7"
                    "\n  expected: tensor parallel 1, 2, 4, 8, 14, 16, 28, 56, 112"
                    "\n  next:     ssmgen new zamba2_7b.json --tp 4"
                ),
            ),
            (
                "qwen3p5_27b",
                3,
                (
                    "qwen3p5_27b.json:17: linear_num_key_heads = 16, linear_num_value_heads = 48: cannot be"
                    " split over 3 GPUs"
                    "\n  found:    tensor parallel 3"
                    "\n  expected: tensor parallel 1, 2, 4, 8, 16"
                    "\n  next:     ssmgen new qwen3p5_27b.json --tp 2"
                ),
            ),
        ],
    )
    def test_refused(self, fixture: str, ranks: int, expected: str) -> None:
        assert error(FIXTURES / f"{fixture}.json", ranks) == expected

    @pytest.mark.parametrize("ranks", [0, -1, True, 2.0])
    def test_no_number_of_gpus(self, ranks: Any) -> None:
        with pytest.raises(UsageError, match="not a number of GPUs"):
            read_config(FIXTURES / "nemotron_h_8b.json", ranks)
