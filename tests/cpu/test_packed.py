"""Packed sequences as a user meets them: pieces and wholes, neighbours, results, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen.interpreter.memory import Memory  # noqa: E402
from ssmgen.loading import interpreted  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.reference.honest import honest_evaluation  # noqa: E402
from ssmgen.verify.inputs import arguments  # noqa: E402
from ssmgen.verify.problems import Call, Drawn  # noqa: E402

MODEL = Drawn(groups=2, heads_per_group=2, head_dim=8, state=8, chunk=16, packed=True, z="silu", D="per_channel")
# the last of the two segments is of one chunk
SPLIT = replace(MODEL, segments=2)
# a chunk in two blocks of rows, the second one's of the second chunk past the row
HALVES = replace(MODEL, chunk=32, half_rows=True)
TOKENS = 37
BY_TOKEN = ("x", "dt", "B", "C", "z")


@pytest.fixture(scope="module", params=[MODEL, SPLIT, HALVES], ids=["whole", "segments", "halves"])
def every(request: pytest.FixtureRequest) -> ModuleType:
    return interpreted(request.param.spec(), request.param.lock())


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return interpreted(MODEL.spec(), MODEL.lock())


@pytest.fixture
def given() -> dict[str, Any]:
    return arguments(MODEL.operator, Call(tokens=TOKENS, initial_states=True, regime="mixed_horizons"))


def _part(given: dict[str, Any], tokens: slice) -> dict[str, Any]:
    return {name: t[:, tokens] if name in BY_TOKEN else t for name, t in given.items()}


def _scan(kernels: ModuleType, given: dict[str, Any], **more: Any) -> Any:
    return kernels.mamba_chunk_scan_combined(**given, chunk_size=64, **more)


def _offsets(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("start", range(0, TOKENS + 1, 9))
def test_a_prompt_in_pieces_equals_the_whole(every: ModuleType, given: dict[str, Any], start: int) -> None:
    """Every split point, nine to a test: the second piece starts from the first one's states."""
    expected = reference.mamba_chunk_scan_combined(**given)
    honest = honest_evaluation(**given, chunk=16, chunk_state=torch.bfloat16)
    for at in range(start, min(start + 9, TOKENS + 1)):
        first, states = _scan(every, _part(given, slice(at)), return_final_states=True)
        rest = _part(given, slice(at, None)) | {"initial_states": states}
        second, states = _scan(every, rest, return_final_states=True)
        assert tolerance.excess((torch.cat([first, second], 1), states), expected, honest) <= 1
        # the same piece as a sequence between two others, of which one is empty
        packed = {n: torch.cat([t[:, at:], t[:, :at]], 1) if n in BY_TOKEN else t for n, t in given.items()}
        packed["initial_states"] = torch.cat([rest["initial_states"], torch.ones_like(states), given["initial_states"]])
        n = TOKENS - at
        out, last, of_all = _scan(
            every,
            packed,
            cu_seqlens=_offsets(0, n, n, TOKENS),
            return_final_states=True,
            return_varlen_states=True,
            state_dtype=torch.float32,
        )
        whole = torch.cat([out[:, n:], out[:, :n]], 1)
        assert tolerance.excess((whole, of_all[:1]), expected, honest) <= 1
        assert torch.equal(of_all[1], torch.ones_like(of_all[1]))
        assert torch.equal(last, of_all[2:])


@pytest.mark.parametrize("how", ["cu_seqlens", "seq_idx"])
def test_a_sequence_does_not_see_its_neighbours(every: ModuleType, given: dict[str, Any], how: str) -> None:
    """Whatever lies beside it, to the bit."""
    del given["initial_states"]
    cuts = (0, 5, 21, TOKENS)
    seq_idx = torch.zeros(1, TOKENS, dtype=torch.int32)
    for at in cuts[1:-1]:
        seq_idx[:, at:] += 1
    packed = dict(cu_seqlens=_offsets(*cuts)) if how == "cu_seqlens" else dict(seq_idx=seq_idx)
    out = _scan(every, given, **packed)
    for start, stop in itertools.pairwise(cuts):
        other = {n: t.clone() if n in BY_TOKEN else t for n, t in given.items()}
        for name in BY_TOKEN:
            noise = torch.randn(1, TOKENS, *other[name].shape[2:], generator=torch.Generator().manual_seed(1)) * 50
            mask = torch.ones(TOKENS, dtype=torch.bool)
            mask[start:stop] = False
            other[name][:, mask] = noise[:, mask].to(other[name].dtype)
        assert torch.equal(_scan(every, other, **packed)[:, start:stop], out[:, start:stop])


def test_results(kernels: ModuleType, given: dict[str, Any]) -> None:
    cu_seqlens = _offsets(0, 9, TOKENS)
    given["initial_states"] = given["initial_states"].expand(2, -1, -1, -1)
    out = _scan(kernels, given, cu_seqlens=cu_seqlens)
    assert (out.shape, out.dtype) == (given["x"].shape, torch.bfloat16)
    _, final = _scan(kernels, given, cu_seqlens=cu_seqlens, return_final_states=True)
    assert (final.shape, final.dtype) == ((1, 4, 8, 8), torch.float32)
    for wanted, dtype in ((None, torch.bfloat16), (torch.float32, torch.float32), (torch.float16, torch.float16)):
        _, of_all = _scan(kernels, given, cu_seqlens=cu_seqlens, return_varlen_states=True, state_dtype=wanted)
        assert (of_all.shape, of_all.dtype) == ((2, 4, 8, 8), dtype)
        assert torch.equal(of_all[1:], final.to(dtype))
    everything = _scan(kernels, given, cu_seqlens=cu_seqlens, return_final_states=True, return_varlen_states=True)
    assert len(everything) == 3
    # no result is a view of another
    assert len({t.untyped_storage().data_ptr() for t in everything}) == 3


def test_both_integer_dtypes_are_the_same(kernels: ModuleType, given: dict[str, Any]) -> None:
    del given["initial_states"]
    for name, value in (("cu_seqlens", _offsets(0, 9, TOKENS)), ("seq_idx", torch.arange(TOKENS).int()[None] // 9)):
        assert torch.equal(_scan(kernels, given, **{name: value}), _scan(kernels, given, **{name: value.long()}))


def test_int64_is_not_cut_to_its_lower_half(kernels: ModuleType, given: dict[str, Any]) -> None:
    del given["initial_states"]
    seq_idx = torch.arange(TOKENS)[None] // 9
    assert torch.equal(_scan(kernels, given, seq_idx=seq_idx << 32), _scan(kernels, given, seq_idx=seq_idx.int()))
    with pytest.raises(ValueError, match="cu_seqlens: found"):
        _scan(kernels, given, cu_seqlens=torch.tensor([0, 2**32 + 9, 2**32 + TOKENS]))
    with pytest.raises(ValueError, match="cu_seqlens: found"):
        _scan(kernels, given, cu_seqlens=torch.tensor([-(2**32), TOKENS]))


class Wrapped(torch.Tensor):
    """A tensor whose memory, if it has any, is not its values."""


@pytest.mark.parametrize("name", ["dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states", "cu_seqlens"])
def test_a_subclass_is_refused_by_name(kernels: ModuleType, given: dict[str, Any], name: str) -> None:
    value = given.get(name, _offsets(0, TOKENS))
    with pytest.raises(ValueError, match=f"{name}: found a .* Wrapped, expected a strided"):
        _scan(kernels, given | {name: value.as_subclass(Wrapped)})


def test_of_many_sequences_the_wrong_ones_are_shown(kernels: ModuleType, given: dict[str, Any]) -> None:
    del given["initial_states"]
    offsets = torch.arange(TOKENS + 1, dtype=torch.int32)
    offsets[20] = 7
    with pytest.raises(ValueError, match=r"cu_seqlens: found \[18, 19, 7, 21, 22\] from its entry 18 on, expected"):
        _scan(kernels, given, cu_seqlens=offsets)
    even = torch.arange(0, TOKENS + 1, 2, dtype=torch.int32)
    changes = (torch.arange(TOKENS, dtype=torch.int32) // 2)[None].clone()
    changes[0, 24:26] = 11
    with pytest.raises(ValueError, match=r"seq_idx: found changes at \[20, 22, 26, 28, 30\] .* them, \[20, 22, 24, 26"):
        _scan(kernels, given, cu_seqlens=even, seq_idx=changes)


BAD_VALUES = {
    "decreasing offsets": (dict(cu_seqlens=[0, 20, 10, TOKENS]), r"cu_seqlens: found \[0, 20, 10, 37\], expected"),
    "offsets not from 0": (dict(cu_seqlens=[1, TOKENS]), r"cu_seqlens: found \[1, 37\], expected from 0"),
    "negative offsets": (dict(cu_seqlens=[-1, TOKENS]), r"cu_seqlens: found \[-1, 37\]"),
    "offsets past the row": (dict(cu_seqlens=[0, TOKENS + 1]), r"found \[0, 38\], expected .* to at most 37"),
    "seq_idx at odds": (dict(cu_seqlens=[0, 9, TOKENS], seq_idx=[0] * 10 + [1] * (TOKENS - 10)),
                        r"seq_idx: found changes at \[10\], expected them where cu_seqlens has them, \[9\]"),
    "growing states": (dict(A=[-1.0, 0.5, -1.0, -1.0]), "A: found 0.5, expected finite values <= 0"),
    "a decay that is no number": (dict(A=[-1.0, float("nan"), -1.0, -1.0]), "A: found nan, expected finite"),
    "an infinite decay": (dict(A=[-1.0, float("-inf"), -1.0, -1.0]), "A: found -inf, expected finite"),
}  # fmt: skip


def _bad(given: dict[str, Any], values: dict[str, list[Any]]) -> dict[str, Any]:
    bad = {name: torch.tensor(v) for name, v in values.items()}
    if "seq_idx" in bad:
        bad["seq_idx"] = bad["seq_idx"][None]
    return {n: t for n, t in given.items() if n != "initial_states"} | bad


@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_values_are_refused_on_the_cpu(kernels: ModuleType, given: dict[str, Any], case: str) -> None:
    values, message = BAD_VALUES[case]
    with pytest.raises(ValueError, match=message):
        _scan(kernels, _bad(given, values))


@pytest.mark.parametrize("case", [case for case, (values, _) in BAD_VALUES.items() if "cu_seqlens" in values])
@pytest.mark.parametrize("model", [MODEL, SPLIT, HALVES], ids=["whole", "segments", "halves"])
def test_unchecked_offsets_touch_nothing_outside(
    given: dict[str, Any], case: str, model: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sanitizer would report an access outside an array."""
    # offsets that decrease give a chunk to two sequences, whose blocks then store to one place: wrong, and inside
    monkeypatch.setattr(Memory, "_no_conflict", lambda *_: None)
    kernels = interpreted(model.spec(), model.lock())
    vars(kernels._forward).update(check_sequences=lambda *_: None)
    # what no sequence owns is read as it lies there, but never from elsewhere
    empty = torch.empty
    kernels._forward.allocate = lambda shape, dtype, device: empty(shape, dtype=dtype, device=device).zero_()
    out = _scan(kernels, _bad(given, BAD_VALUES[case][0]))
    assert out.shape == given["x"].shape


REFUSED = {
    "offsets beside a batch": (dict(batch=2, cu_seqlens=[0, TOKENS]), "cu_seqlens: found it beside a batch of 2"),
    "offsets of no dimension": (dict(cu_seqlens=3), "cu_seqlens: found a .. tensor, expected a strided .seq"),
    "no offset at all": (dict(cu_seqlens=[]), "cu_seqlens: found a .0,. tensor"),
    "offsets that are no integers": (dict(cu_seqlens=[0.0, 37.0]), "cu_seqlens: found torch.float32, expected torch"),
    "seq_idx of another length": (dict(seq_idx=[[0] * 5]), "seq_idx: found a .1, 5. tensor, expected a .* .1, 37."),
    "states of another count": (dict(cu_seqlens=[0, 9, TOKENS], initial_states=1),
                                "initial_states: found a .1, 4, 8, 8. tensor, expected a strided .2, 4, 8, 8."),
    "states of no sequences": (dict(return_varlen_states=True), "return_varlen_states: found True without cu_seqlens"),
    "a state dtype that is none": (dict(state_dtype="bfloat16"), "state_dtype: found 'bfloat16'"),
    "integer states": (dict(state_dtype=torch.int32), "state_dtype: found torch.int32"),
    "no gate": (dict(z=None), "z: found None, expected a strided"),
    "a skip by head": (dict(D=[1.0] * 4), "D: found a .4,. tensor, expected a strided .4, 8. tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(kernels: ModuleType, case: str) -> None:
    changes, message = REFUSED[case]
    changes = dict(changes)
    given = arguments(MODEL.operator, Call(batch=changes.pop("batch", 1), tokens=TOKENS))
    if "initial_states" in changes:
        changes["initial_states"] = torch.zeros(1, 4, 8, 8)
    given |= {n: torch.tensor(v) if isinstance(v, (int, list)) and v is not True else v for n, v in changes.items()}
    with pytest.raises((ValueError, TypeError), match=message):
        _scan(kernels, given)


def test_what_a_spec_left_out_is_refused_by_name() -> None:
    model = Drawn(head_dim=8, state=8, D="none")
    kernels = interpreted(model.spec(), model.lock())
    given = arguments(model.operator, Call(tokens=9))
    left_out = dict(
        D=torch.ones(1), z=given["x"], seq_idx=torch.zeros(1, 9), cu_seqlens=_offsets(0, 9), state_dtype=torch.float32
    )
    for name, value in left_out.items():
        with pytest.raises(ValueError, match=f"{name}: this model's kernels were generated without it"):
            _scan(kernels, given, **{name: value})
    with pytest.raises(ValueError, match="return_varlen_states: this model's kernels were generated without it"):
        _scan(kernels, given, return_varlen_states=True)
