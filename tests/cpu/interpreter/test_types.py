"""Types and names: the interpreter's equal cuTile's own, asked of the installed cuTile."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
ct = pytest.importorskip("cuda.tile")

from cuda.tile import _datatype  # noqa: E402
from cuda.tile._bytecode.float import float_from_bits, float_to_bits  # noqa: E402
from cuda.tile._bytecode.type import SimpleType  # noqa: E402
from cuda.tile._exception import TileTypeError, TileValueError  # noqa: E402
from cuda.tile._ir import cast_ops, ops, ops_utils  # noqa: E402
from cuda.tile._ir.type import LooselyTypedScalar, TileTy  # noqa: E402

from ssmgen.errors import InterpreterError, SanitizerError  # noqa: E402
from ssmgen.interpreter import dtypes, products  # noqa: E402
from ssmgen.interpreter.arithmetic import OPERATIONS, binary, common_dtype  # noqa: E402
from ssmgen.interpreter.launching import Launcher  # noqa: E402
from ssmgen.interpreter.module import TileModule, Unknown  # noqa: E402
from ssmgen.interpreter.values import Tile  # noqa: E402

REFUSED = "refused"
OURS = {dtype.name: dtype for dtype in dtypes.ALL}
IN_MEMORY = [name for name in OURS if name != "tfloat32"]
NUMBERS = (
    *(True, False, 0, 1, -1, 127, 128, 255, 256, -128, -129, 2**15, 2**16 - 1, 2**31 - 1, 2**31, -(2**31)),
    *(-(2**31) - 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, 1.0, -0.5, 1e30, math.nan, math.inf),
)
# what the interpreter knows nothing of: a new cuTile makes this test fail, and is to be looked at
UNKNOWN = {
    *("compilation", "tune", "compiler_timeout", "float4_e2m1fn", "float8_e5m3fnu", "foreign_pointer_dtype"),
    *("static_exception", "StaticException", "TileCompilerExecutionError", "TileCompilerTimeoutError", "TileError"),
    *("TileInternalError", "TileRecursionError", "TileStaticAssertionError", "TileStaticEvalError", "TileSyntaxError"),
    *("TileTypeError", "TileUnsupportedFeatureError", "TileValueError"),
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """The name of the type that comes out, or that the operands are refused."""
    try:
        return getattr(function(*args), "name", None)
    except (SanitizerError, TileTypeError, TileValueError):
        return REFUSED


def native(name: str) -> Any:
    return getattr(ct, name)


@pytest.fixture(scope="module")
def stand_in() -> TileModule:
    return TileModule(Launcher())


def test_every_element_type_of_cutile_is_known_or_unknown_by_name(stand_in: TileModule) -> None:
    theirs = {name for name in ct.__all__ if isinstance(getattr(ct, name), ct.DType)}
    assert theirs - set(OURS) == {"float4_e2m1fn", "float8_e5m3fnu"}
    assert set(OURS) <= theirs
    for name, dtype in OURS.items():
        assert getattr(stand_in, name) is dtype
        assert dtype.bitwidth == native(name).bitwidth
        assert dtype.is_float == _datatype.is_float(native(name))
        assert dtype.is_integral == _datatype.is_integral(native(name))
        assert (dtype.kind == "restricted") == _datatype.is_restricted_float(native(name))
        if dtype.is_integral:
            info = _datatype.IntegerInfo(native(name))
            assert dtype.range == (info.min, info.max)


def test_every_public_name_of_cutile_is_known_or_refused_by_name(stand_in: TileModule) -> None:
    assert {name for name in ct.__all__ if isinstance(getattr(stand_in, name), Unknown)} == UNKNOWN
    for name in UNKNOWN:
        with pytest.raises(InterpreterError, match=rf"does not know ct\.{name}"):
            getattr(stand_in, name)()


def test_the_interpreter_has_no_name_that_cutile_lacks(stand_in: TileModule) -> None:
    ours = {name for name in vars(stand_in) if not name.startswith("_")} - {"launcher", "submodules"}
    assert not ours - set(dir(ct))


def test_every_public_method_of_cutiles_objects_is_known_or_refused_by_name(run: Any) -> None:
    x = torch.arange(8, dtype=torch.float32).reshape(2, 4)
    for cls, text in ((ct.Array, "x"), (ct.TiledView, "x.tiled_view((2, 4))"), (ct.Tile, "ct.load(x, (0, 0), (2, 4))")):
        names = [n for n in vars(cls) if not n.startswith("_")]
        assert names
        unknown = set()
        for name in names:
            try:
                run(f"@ct.kernel\ndef kernel(x):\n    {text}.{name}\n", x)
            except InterpreterError as error:
                assert f"{cls.__name__}.{name}" in str(error)
                assert error.where is not None
                unknown.add(name)
        assert unknown == ({"foreign_pointer", "from_foreign", "get_raw_memory"} if cls is ct.Array else set())


@pytest.mark.parametrize("enum", ["PaddingMode", "RoundingMode", "MemoryOrder", "MemoryScope"])
def test_enumerations_have_the_same_members(stand_in: TileModule, enum: str) -> None:
    ours = {member.name for member in getattr(stand_in, enum)}
    # clusters are for cuda.lang only, as its documentation says
    assert ours == {member.name for member in getattr(ct, enum)} - {"CLUSTER"}


@pytest.mark.parametrize("a", OURS)
def test_promotion_of_two_types(a: str) -> None:
    for b in tuple(OURS):
        expected = outcome(_datatype.promote_dtypes, native(a), native(b))
        assert outcome(dtypes.promote, OURS[a], OURS[b]) == expected, b
        quotient = outcome(_datatype.promote_dtypes, native(a), native(b), True)
        operands = (Tile(torch.zeros(2, dtype=OURS[n].holds), OURS[n]) for n in (a, b))
        if "restricted" not in (OURS[a].kind, OURS[b].kind):
            assert outcome(common_dtype, OPERATIONS["truediv"], *operands) == quotient, b


@pytest.mark.parametrize("dtype", OURS)
def test_promotion_with_a_constant(dtype: str) -> None:
    theirs = ops_utils._promote_dtype_and_loosely_typed_constant
    operand = Tile(torch.zeros(2, dtype=OURS[dtype].holds), OURS[dtype])
    for value in NUMBERS:
        expected = outcome(theirs, native(dtype), value, False)
        assert outcome(dtypes.promote_constant, OURS[dtype], value) == expected, value
        if OURS[dtype].kind != "restricted":
            quotient = outcome(theirs, native(dtype), value, True)
            assert outcome(common_dtype, OPERATIONS["truediv"], operand, value) == quotient, value
            assert outcome(common_dtype, OPERATIONS["truediv"], value, operand) == quotient, value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_no_type_holds_every_integer(value: int) -> None:
    with pytest.raises(SanitizerError, match="types"):
        dtypes.dtype_of_constant(value)


@pytest.mark.parametrize("target", OURS)
def test_implicit_cast(target: str) -> None:
    for source in tuple(OURS):
        theirs = outcome(cast_ops.check_implicit_cast, TileTy(native(source), (4,)), native(target)) != REFUSED
        assert dtypes.converts_silently(OURS[source], OURS[target]) == theirs, source
    for value in NUMBERS:
        theirs = outcome(cast_ops.check_implicit_cast, LooselyTypedScalar(value), native(target)) != REFUSED
        assert dtypes.constant_converts_silently(value, OURS[target]) == theirs, value


@pytest.mark.parametrize("source", IN_MEMORY)
def test_a_store_converts_what_cutile_converts(run: Any, source: str) -> None:
    module = run.load("@ct.kernel\ndef kernel(x, y):\n    ct.store(y, (0,), ct.load(x, (0,), (4,)))\n")
    for target in IN_MEMORY:
        x, y = torch.ones(4, dtype=OURS[source].holds), torch.zeros(4).to(OURS[target].holds)
        if outcome(cast_ops.check_implicit_cast, TileTy(native(source), (4,)), native(target)) == REFUSED:
            with pytest.raises(SanitizerError) as error:
                module.ct.launch(None, (1,), module.kernel, (x, y))
            assert error.value.rule == "types", target
        else:
            module.ct.launch(None, (1,), module.kernel, (x, y))
            assert y.to(torch.float32).tolist() == [1.0] * 4, target


def test_types_of_products_are_cutiles() -> None:
    theirs = {str(k): tuple(map(str, v)) for k, v in _datatype._mma_supported_dtypes.items()}
    assert {k.name: tuple(map(str, v)) for k, v in products._ACCUMULATORS.items()} == theirs


@pytest.mark.parametrize("name", ["add", "min", "max", "and", "or", "xor", "xchg", "cas"])
def test_types_of_atomic_operations_are_cutiles(run: Any, name: str) -> None:
    spec = ops._ATOMIC_RMW_SPECS.get(name)
    supported = spec.supported_dtypes if spec else ops.int_float_32_64_dtypes
    operands = "one, one" if name == "cas" else "one"
    text = f"""
    @ct.kernel
    def kernel(x):
        one = ct.full((), 1, x.dtype)
        ct.atomic_{name}(x, 0, {operands})  # here
    """
    for dtype in IN_MEMORY:
        x = torch.zeros(4).to(OURS[dtype].holds)
        if native(dtype) in supported:
            run(text, x)
        else:
            assert run.error(text, x).rule == "types", dtype


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_types_of_operations_on_bits(name: str) -> None:
    arithmetic = [n for n in OURS if OURS[n].kind != "restricted"]
    for a, b in itertools.product(arithmetic, arithmetic):
        integral = [_datatype.is_integral(native(n)) for n in (a, b)]
        bits = [i or n == "bool_" for i, n in zip(integral, (a, b), strict=True)]
        common = outcome(_datatype.promote_dtypes, native(a), native(b))
        fits = all(integral) if name.endswith("shift") else all(bits) and a == b
        x, y = (Tile(torch.ones(2, dtype=OURS[n].holds), OURS[n]) for n in (a, b))
        found = outcome(lambda x, y: binary(name, x, y).dtype, x, y)
        assert found == (common if fits else REFUSED), (a, b)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("bits & 1", "int32"), ("x & True", REFUSED), ("y & True", "int32"), ("y << True", REFUSED), ("y & 1.0", REFUSED),
     ("y & 2**40", REFUSED), ("bits << 1", REFUSED), ("1 << y", "int32"), ("x | 7", "int8"), ("x | 300", REFUSED)],
)  # fmt: skip
def test_types_of_operations_on_bits_with_a_constant(run: Any, value: str, expected: str) -> None:
    operands = dict(x=torch.ones(2, dtype=torch.int8), y=torch.ones(2, dtype=torch.int32), bits=torch.ones(2) > 0)
    if expected == REFUSED:
        assert run.refused(value, **operands) == "types"
    else:
        assert run.value(value, **operands).dtype.name == expected


FORMATS = {
    dtypes.float16: SimpleType.F16,
    dtypes.bfloat16: SimpleType.BF16,
    dtypes.tfloat32: SimpleType.TF32,
    dtypes.float32: SimpleType.F32,
    dtypes.float8_e5m2: SimpleType.F8E5M2,
    dtypes.float8_e4m3fn: SimpleType.F8E4M3FN,
}
LARGEST = {dtypes.float8_e4m3fn: 448.0, dtypes.float8_e5m2: 57344.0}


def rounded(value: float, dtype: dtypes.DType) -> float:
    """As cuTile rounds a constant: to nearest even, by its own arithmetic on bits."""
    return float(float_from_bits(float_to_bits(value, FORMATS[dtype]), FORMATS[dtype]))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@settings(max_examples=40)
@given(st.floats(width=64, allow_nan=False))
@example(1 + 2**-8)
@example(1 + 3 * 2**-8)
@example(1 + 2**-8 + 2**-40)
@example(1 + 2**-11 + 2**-50)
@example(-(1 + 2**-11 + 2**-50))
@example(1 + 3 * 2**-11 - 2**-50)
@example(2**-24 * 1.5)
@example(2.0**-149)
@example(65519.999999999)
@example(65520.0)
def test_floats_are_rounded_once_to_nearest_even(dtype: dtypes.DType, value: float) -> None:
    if abs(value) > LARGEST.get(dtype, math.inf):
        return
    found = dtypes.convert(torch.tensor([value], dtype=torch.float64), dtypes.float64, dtype).to(torch.float64)
    expected = rounded(value, dtype)
    assert struct.pack("<d", float(found)) == struct.pack("<d", expected), (float(found), expected)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@settings(max_examples=40)
@given(st.floats(width=32, allow_nan=False))
def test_a_constant_is_a_float32_before_it_is_anything_else(dtype: dtypes.DType, value: float) -> None:
    if abs(value) <= LARGEST.get(dtype, math.inf):
        assert float(dtypes.constant(value, dtype)) == rounded(value, dtype)


def test_a_constant_beside_float64_has_passed_through_float32(run: Any) -> None:
    from cuda.tile._ir.core_ops import canonicalize_const_value_for_type

    once = canonicalize_const_value_for_type(0.1, TileTy(ct.float32, ()))
    x = torch.ones(2, dtype=torch.float64)
    assert run.value("x * 0.1", x=x).values.tolist() == [once, once]
    assert run.value("ct.full((2,), 0.1, ct.float64)").values.tolist() == [once, once]


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.is_integral], ids=str)
def test_a_constant_of_an_integer_type_is_cut_to_its_bits(dtype: dtypes.DType) -> None:
    from cuda.tile._ir.core_ops import canonicalize_const_value_for_type

    for value in (*(n for n in NUMBERS if math.isfinite(n)), 2**40 + 3, 2.9, -2.9):
        expected = canonicalize_const_value_for_type(value, TileTy(native(dtype.name), ()))
        assert dtypes.constant(value, dtype).item() == expected, value


@settings(max_examples=40)
@given(st.integers(-(2**31), 2**31 - 1))
@example(2**24 + 1)
@example(2**30 + 2**22 + 1)
def test_integers_are_rounded_once(value: int) -> None:
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32):
        found = dtypes.convert(torch.tensor([value], dtype=torch.int32), dtypes.int32, dtype)
        assert float(found) == rounded(float(value), dtype)


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1 + 2**-11, 0x3F800000), (1 + 3 * 2**-11, 0x3F804000), (1 + 2**-11 + 2**-23, 0x3F802000),
     (1.0, 0x3F800000), (-(1 + 2**-11), -0x40800000), (3.4028234e38, 0x7F800000)],
)  # fmt: skip
def test_bits_of_tfloat32(value: float, bits: int) -> None:
    found = dtypes.to_tfloat32(torch.tensor([value], dtype=torch.float32))
    assert found.view(torch.int32).tolist() == [bits]


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [("bfloat16", 1 + 2**-8, 0x3F80), ("bfloat16", 1 + 3 * 2**-8, 0x3F82), ("bfloat16", 1 + 2**-8 + 2**-20, 0x3F81),
     ("float16", 1 + 2**-11, 0x3C00), ("float16", 1 + 3 * 2**-11, 0x3C02), ("float16", 65519.0, 0x7BFF),
     ("float16", 65520.0, 0x7C00), ("float16", 2**-25, 0x0000), ("float16", 3 * 2**-25, 0x0002)],
)  # fmt: skip
def test_bits_after_astype(run: Any, dtype: str, value: float, bits: int) -> None:
    x = torch.tensor([value], dtype=torch.float32)
    assert run.value(f"ct.bitcast(x.astype(ct.{dtype}), ct.uint16)", x=x).values.tolist() == [bits]


def test_types_are_named_by_torch_numpy_and_python(run: Any) -> None:
    import numpy

    for named, expected in (
        *(
            (torch.bfloat16, "bfloat16"),
            (torch.bool, "bool_"),
            (numpy.float32, "float32"),
            (numpy.dtype("int8"), "int8"),
        ),
        *((int, "int32"), (float, "float32"), (bool, "bool_"), (torch.float8_e5m2, "float8_e5m2")),
    ):
        assert dtypes.dtype_of(named).name == expected
    for named in (torch.complex64, "no type", numpy.complex64, SimpleNamespace()):
        with pytest.raises(InterpreterError):
            dtypes.dtype_of(named)
