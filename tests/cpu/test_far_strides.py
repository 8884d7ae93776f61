"""Views whose elements lie beyond what 32 bits count: right, or refused by the argument's name.

Their memory is reserved and hardly touched; the interpreter's shadow of it, eight bytes an element, is one number.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import lock, spec  # noqa: E402
from ssmgen.interpreter.memory import BEFORE, Memory, Shadow  # noqa: E402
from ssmgen.loading import interpreted  # noqa: E402

SPEC = """\
schema: 1
model: {name: far, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 2, groups: 1, head_dim: 16, state: 16}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_head, z: silu, dt_bias: true, dt_softplus: true, dt_limit: none, packed: true}
    routes:
      all: {when: "B >= 1", plan: three_stage}
      packed: {when: "B >= 1", plan: packed}
targets: [sm_90]
"""
WIDTHS = {"x": (2, 16), "z": (2, 16), "B": (1, 16), "C": (1, 16)}
TOKENS = 40
ELEMENTS = 2**31 + 2**23


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    value = spec.loads(SPEC, Path("far.yaml"))
    return interpreted(value, lock.derive(value, value.targets))


@pytest.fixture(scope="module")
def memory() -> Any:
    """4 GiB of addresses."""
    try:
        return torch.empty(ELEMENTS, dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("this machine does not reserve memory that is not used")


@pytest.fixture(autouse=True)
def one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory that kernels only read, who wrote it is one answer for all of it."""
    add = Memory._add

    def lazily(self: Memory, tensor: Any, state: int) -> Shadow:
        if state != BEFORE or tensor.untyped_storage().nbytes() < 2**30:
            return add(self, tensor, state)
        shadow = Shadow(tensor, tensor.element_size(), torch.full((1,), state), fresh=False)
        self.shadows[tensor.untyped_storage().data_ptr()] = shadow
        return shadow

    monkeypatch.setattr(Memory, "_add", lazily)


def _given(batch: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)

    def normal(*size: int) -> Any:
        return torch.randn(*size, generator=generator)

    wide = {name: normal(batch, TOKENS, *width).bfloat16() for name, width in WIDTHS.items()}
    return wide | dict(dt=normal(batch, TOKENS, 2), A=-torch.ones(2), D=normal(2), dt_bias=normal(2))


def _call(kernels: ModuleType, given: dict[str, Any]) -> Any:
    return kernels.mamba_chunk_scan_combined(**given, chunk_size=64, dt_softplus=True, return_final_states=True)


def _far(memory: Any, near: Any, strides: tuple[int, int]) -> Any:
    view = memory.as_strided(near.shape, (*strides, near.shape[3], 1))
    return view.copy_(near)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WIDTHS)
def test_an_element_beyond_32_bits_is_read_where_it_is(
    kernels: ModuleType, memory: Any, name: str, packed: bool
) -> None:
    given = _given(batch=2)
    if packed:
        given["seq_idx"] = (torch.arange(TOKENS) >= 17).int().expand(2, TOKENS)
    expected = _call(kernels, given)
    # every stride fits 32 bits, and yet the last row lies past what they count
    far = _far(memory, given[name], (2**31 - 2**20, 2**16))
    assert far.stride(0) + (TOKENS - 1) * far.stride(1) > 2**31
    for actual, wanted in zip(_call(kernels, given | {name: far}), expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("name", WIDTHS)
def test_a_stride_beyond_32_bits_is_refused_by_name(kernels: ModuleType, memory: Any, name: str) -> None:
    given = _given(batch=2)
    given[name] = _far(memory, given[name], (2**31, 2**8))
    with pytest.raises(ValueError, match=rf"^{name}: found strides \(2147483648, 256, \d+, 1\), expected at most 2147"):
        _call(kernels, given)


def test_more_rows_than_a_grid_takes_are_refused_by_name(kernels: ModuleType) -> None:
    given = _given(batch=1)
    many = {name: v.expand(2**16, *v.shape[1:]) for name, v in given.items() if v.dim() > 1}
    with pytest.raises(ValueError, match=r"^x: found a batch of 65536, expected at most 65535; split the call$"):
        _call(kernels, given | many)
    with pytest.raises(
        ValueError, match=r"^cu_seqlens: found 65536 sequences, expected at most 65535; split the call$"
    ):
        _call(kernels, given | dict(cu_seqlens=torch.zeros(2**16 + 1, dtype=torch.int32)))


def test_more_tokens_than_kernels_count_are_refused_by_name(kernels: ModuleType) -> None:
    given = _given(batch=1)
    many = {name: v[:, :1].expand(1, 2**30, *v.shape[2:]) for name, v in given.items() if v.dim() > 1}
    with pytest.raises(ValueError, match=r"^x: found 1 x 1073741824 tokens, expected at most \d+ in all; split"):
        _call(kernels, given | many)
