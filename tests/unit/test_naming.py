"""Names of models and kernels read back as they were made."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmgen.errors import SpecError
from ssmgen.naming import KernelId, check_name, model_name

words = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(lambda word: not keyword.iskeyword(word))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("nvidia/Nemotron-H-8B", "nemotron_h_8b"),
        ("Qwen/Qwen3.5-122B-A10B", "qwen3p5_122b_a10b"),
        ("mamba2-2.7b", "mamba2_2p7b"),
        ("granite 4.0 h.tiny", "granite_4p0_h_tiny"),
        ("A--B", "a_b"),
    ],
)
def test_model_name(source: str, name: str) -> None:
    assert model_name(source) == name
    check_name("model", name)


@pytest.mark.parametrize("source", ["", "/", "7b", "...", "模型", "nvidia/is", "None/import"])
def test_no_name_is_left(source: str) -> None:
    with pytest.raises(SpecError, match="no valid model name"):
        model_name(source)


@given(st.tuples(words, words, words, words, words))
def test_kernel_id_reads_back(parts: tuple[str, str, str, str, str]) -> None:
    kernel = KernelId(*parts)
    assert KernelId.parse(kernel.format()) == kernel


@pytest.mark.parametrize("text", ["", "a/b/c/d", "a/b/c/d/e/f"])
def test_not_a_kernel_name(text: str) -> None:
    with pytest.raises(SpecError, match="not a kernel name"):
        KernelId.parse(text)


def test_a_part_cannot_smuggle_a_separator() -> None:
    with pytest.raises(SpecError):
        KernelId("m", "sm_90", "op", "a/b", "state").format()
