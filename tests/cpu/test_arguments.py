"""What an operator may be given: dtypes, limits, values, tensors whose memory does not hold their values."""

from __future__ import annotations

import math
import re
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from ssmgen.errors import InterpreterError  # noqa: E402
from ssmgen.interpreter.launching import Launcher  # noqa: E402
from ssmgen.loading import interpreted  # noqa: E402
from ssmgen.verify.inputs import arguments  # noqa: E402
from ssmgen.verify.problems import Call, Drawn  # noqa: E402

MODEL = Drawn(head_dim=8, state=8, chunk=16, packed=True, z="silu")
TOKENS = 20
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CONVERTED = ("A", "D", "dt_bias", "initial_states")
TENSORS = ("x", "dt", "B", "C", "z", *CONVERTED, "cu_seqlens", "seq_idx")
LAZY = {
    "Negative": torch._neg_view,
    "ZeroTensor": lambda tensor: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype),
}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return interpreted(MODEL.spec(), MODEL.lock())


@pytest.fixture
def given() -> dict[str, Any]:
    return arguments(MODEL.operator, Call(tokens=TOKENS, initial_states=True, sequences="both", cuts="one"))


def _scan(kernels: ModuleType, given: dict[str, Any], **more: Any) -> Any:
    return kernels.mamba_chunk_scan_combined(**given | more, chunk_size=64)


@pytest.mark.parametrize(
    "limit",
    [
        *("01", b"\x00\x01", {0.0: 0, 1.0: 0}, {0.0, 1.0}, range(2), iter((0.0, 1.0)), 1.0, None, ("0", "1")),
        *((0.0,), (0.0, 1.0, 2.0), (False, True), (0.0, True), (None, None), (0.0, math.nan), (-1.0, 1.0), (2.0, 1.0)),
        *((0, 10**400), torch.tensor([0.0, 1.0]), numpy.array([0.0, 1.0]), (torch.tensor(0.0), torch.tensor(1.0))),
        # what clamps every time step to infinity, in float32 too
        *((math.inf, math.inf), (1e39, 1e300), (10**39, math.inf)),
    ],
)
def test_a_limit_that_is_no_pair_of_numbers_is_refused(kernels: ModuleType, given: dict[str, Any], limit: Any) -> None:
    with pytest.raises(ValueError, match=r"^dt_limit: found .*, expected two numbers, 0 <= dt_min <= dt_max"):
        _scan(kernels, given, dt_limit=limit)


def test_limits_as_callers_of_mamba_ssm_give_them(kernels: ModuleType, given: dict[str, Any]) -> None:
    expected = _scan(kernels, given, dt_limit=(0.0, 1.0))
    for limit in ([0.0, 1.0], (0, 1), (numpy.float64(0), numpy.float64(1)), (-0.0, 1)):
        assert torch.equal(_scan(kernels, given, dt_limit=limit), expected)
    assert torch.equal(_scan(kernels, given, dt_limit=[0.0, math.inf]), _scan(kernels, given, dt_limit=(0, 1e300)))


EVERY_DTYPE = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_state_dtypes(kernels: ModuleType, given: dict[str, Any], dtype: Any) -> None:
    if dtype in FLOATS:
        _, states = _scan(kernels, given, return_varlen_states=True, state_dtype=dtype)
        assert states.dtype == dtype
    else:
        with pytest.raises(TypeError, match=rf"^state_dtype: found {dtype}, expected None or one of torch.float32"):
            _scan(kernels, given, return_varlen_states=True, state_dtype=dtype)


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_dtypes_that_are_converted(kernels: ModuleType, given: dict[str, Any], name: str, dtype: Any) -> None:
    if dtype in FLOATS:
        _scan(kernels, given | {name: given[name].to(dtype)})
    else:
        empty = torch.empty(given[name].shape, dtype=dtype, device="meta")
        with pytest.raises(TypeError, match=f"^{name}: found {dtype}, expected torch.float32 or torch.bfloat16 or"):
            _scan(kernels, given | {name: empty})


@pytest.mark.parametrize("name", CONVERTED)
def test_finite_values_that_float32_cannot_hold_are_refused(
    kernels: ModuleType, given: dict[str, Any], name: str
) -> None:
    wide = given[name].double()
    # the largest that float32 rounds to something finite
    wide.view(-1)[-1] = -3.4028235677973362e38
    kernels._values.check_range(name, wide)
    for value in (-1e39, -3.4028235677973366e38, -1.7e308):
        wide.view(-1)[-1] = value
        with pytest.raises(
            ValueError, match=rf"^{name}: found {re.escape(str(value))}, expected values that float32 can hold"
        ):
            _scan(kernels, given | {name: wide})
    # what was infinite before is the caller's own, but for A
    wide.view(-1)[-1] = -math.inf
    if name != "A":
        _scan(kernels, given | {name: wide})


def test_values_are_looked_at_only_where_somebody_waits_anyway(
    kernels: ModuleType, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setitem(vars(kernels._arguments), "check_range", lambda name, tensor: asked.append(name))
    floats = kernels._arguments.floats
    for checked in (False, True):
        for dtype in FLOATS:
            assert floats("D", torch.ones(4, dtype=dtype), (4,), torch.device("cpu"), checked).dtype == torch.float32
    assert asked == ["D"], "of float64, and when it is to be checked"


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("mark", LAZY)
def test_a_tensor_that_is_not_what_lies_in_its_memory(
    kernels: ModuleType, given: dict[str, Any], name: str, mark: str
) -> None:
    lazy = LAZY[mark](given[name])
    if name in CONVERTED:
        # what a conversion to float32 would leave as it is
        assert lazy.float().is_neg() == (mark == "Negative")
    with pytest.raises(ValueError, match=rf"^{name}: found a .* marked {mark}, expected one whose memory holds"):
        _scan(kernels, given | {name: lazy})
    kernels._arguments.check_memory(name, lazy.clone())


def test_the_imaginary_part_of_a_conjugate_and_a_tensor_that_left_its_transform(
    kernels: ModuleType, given: dict[str, Any]
) -> None:
    made = torch.complex(given["dt"], -given["dt"]).conj().imag
    assert torch.equal(made, given["dt"])
    with pytest.raises(ValueError, match=r"^dt: found a .* marked Negative"):
        _scan(kernels, given, dt=made)
    left: list[Any] = []
    for transform, mark in ((torch.vmap, "FuncTorchBatched"), (torch.func.functionalize, "Functionalize")):
        transform(lambda x: left.append(x) or x)(
            torch.stack([given["x"]] * 2) if transform is torch.vmap else given["x"]
        )
        with pytest.raises(ValueError, match=rf"^x: found a .* marked {mark}"):
            _scan(kernels, given, x=left.pop())


def test_the_operator_of_torch_library_resolves_what_is_lazy(kernels: ModuleType, given: dict[str, Any]) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    expected = _scan(kernels, given)
    traced = make_fx(lambda x: _scan(kernels, given, x=x), tracing_mode="real")(given["x"])
    assert torch.equal(traced(torch._neg_view(-given["x"])), expected)


def test_the_interpreter_takes_no_lazy_tensor_either() -> None:
    launcher = Launcher()
    kernel = launcher.kernel(lambda array: None)
    launcher.launch(None, (1,), kernel, (torch.zeros(4),))
    for lazy in (torch._neg_view(torch.ones(4)), torch.complex(torch.ones(4), torch.ones(4)).conj().imag):
        with pytest.raises(InterpreterError, match="lazily negated or conjugated"):
            launcher.launch(None, (1,), kernel, (lazy,))
