"""The quick reader agrees with the full one wherever it is sure, and is sure of what ssmgen writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ssmgen import full_yaml, located_yaml, lock, plain_yaml, spec
from ssmgen.errors import SpecError
from ssmgen.new import new_spec
from tests.conftest import MODEL, SPEC

CONFIGS = sorted((Path(__file__).parent / "configs").glob("[!r]*.json"))
LOCK = lock.dumps(MODEL, lock.derive(spec.loads(SPEC, Path(f"{MODEL}.yaml")), ["sm_90", "sm_100"]))
PIECES = st.sampled_from(
    [
        *"{}[]:,#\"'-? \n&*!|>%@`~.\t\\\x7fé=",
        *("  ", ": ", " #", "- ", "null", "true", "yes", "0x1", "1e3", "1_0", ".5", "---\n", "<<: ", "a: ", "\n  "),
        *("2001-01-01", "1:30", "012", "+1", "-0", "1.", "a:\n"),
    ]
)


def _agrees(text: str) -> bool:
    quick = plain_yaml.parse(text)
    if quick is not None:
        assert quick == full_yaml.parse(text, "x.yaml", SpecError)
        assert repr(quick[0]) == repr(full_yaml.parse(text, "x.yaml", SpecError)[0]), "1, 1.0 and True are equal"
    return quick is not None


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_sure_of_what_new_writes(config: Path) -> None:
    name, text = new_spec(config, tensor_parallel=1, name=None, targets=["sm_90"])
    assert _agrees(text)
    value = spec.loads(text, Path(f"{name}.yaml"))
    known = lock.derive(value, value.targets)
    assert not known or _agrees(lock.dumps(name, known))


@given(st.sampled_from([SPEC, LOCK]), st.data())
def test_agrees_after_any_edit(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.one_of(PIECES, st.just(""))) + text[end:]
    _agrees(text)


KEYS = st.sampled_from(["a", "b", "null", "y", "x_1"])
VALUES = st.one_of(
    st.from_regex(r"[-a-z0-9.:/# \"'{},\[\]]{0,8}", fullmatch=True),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.floats(allow_nan=False).map(str),
    st.integers().map(str),
)
LINES = st.builds(
    "{}{}{}{}".format, st.sampled_from(["", " ", "  ", "    "]), KEYS, st.sampled_from([":", ": "]), VALUES
)


@given(st.lists(LINES, min_size=1, max_size=5).map("\n".join))
@example("a: {b: 1,\n  c: 2}\nd: [x, y]")
@example("a:\n  b: 1\n c: 2")
@example("a: 12345678e0123456789012345678901234567890123456789012345678901234")
def test_agrees_on_small_documents(text: str) -> None:
    try:
        _agrees(text)
    except SpecError as e:
        raise AssertionError(f"accepted what the full parser refuses: {e}") from e


def test_lines_of_keys() -> None:
    document = located_yaml.parse(SPEC, "x.yaml")
    assert document.where(("operators", "mamba_chunk_scan_combined", "shape", "groups")).line == 5
    assert document.where(("targets", 0, "deeper")).line == 11
    assert document.where(("nothing",)).line == 1
