"""Operations element by element, against exact arithmetic in float64 or in Python's integers."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

INTEGERS = {
    "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "uint8": torch.uint8, "uint16": torch.uint16, "uint32": torch.uint32, "uint64": torch.uint64,
}  # fmt: skip
FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
SIGNED = [name for name in INTEGERS if name.startswith("int")]
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
WHOLE: dict[str, Callable[[int, int], int]] = {
    "x + y": operator.add, "x - y": operator.sub, "x * y": operator.mul, "x // y": operator.floordiv,
    "x % y": operator.mod, "ct.cdiv(x, y)": lambda x, y: -(-x // y), "ct.minimum(x, y)": min, "max(x, y)": max,
    "ct.add(x, y)": operator.add, "ct.sub(x, y)": operator.sub, "ct.mul(x, y)": operator.mul,
    "ct.floordiv(x, y)": operator.floordiv, "ct.mod(x, y)": operator.mod, "divmod(x, y)[0]": operator.floordiv,
    "ct.divmod(x, y)[1]": operator.mod, "min(x, y)": min, "ct.maximum(x, y)": max,
}  # fmt: skip
BITS: dict[str, Callable[[int, int], int]] = {
    "x & y": operator.and_, "x | y": operator.or_, "x ^ y": operator.xor, "ct.bitwise_and(x, y)": operator.and_,
    "ct.bitwise_or(x, y)": operator.or_, "ct.bitwise_xor(x, y)": operator.xor,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "x == y": operator.eq, "x != y": operator.ne, "x < y": operator.lt, "x <= y": operator.le, "x > y": operator.gt,
    "x >= y": operator.ge, "ct.equal(x, y)": operator.eq, "ct.not_equal(x, y)": operator.ne,
    "ct.less(x, y)": operator.lt,
    "ct.less_equal(x, y)": operator.le, "ct.greater(x, y)": operator.gt, "ct.greater_equal(x, y)": operator.ge,
}  # fmt: skip
PAIRS = [(7, 2), (7, 3), (8, 4), (1, 5), (0, 3), (5, 5)]
NEGATIVE = [(-7, 2), (7, -2), (-7, -2), (-8, 4), (-1, 5), (-6, 3)]


def columns(pairs: list[Any], dtype: Any) -> dict[str, Any]:
    """The pairs as two tiles; the last is repeated until there are as many as a tile has elements."""
    padded = pairs + [pairs[-1]] * (2 ** math.ceil(math.log2(len(pairs))) - len(pairs))
    return {name: torch.tensor([pair[at] for pair in padded]).to(dtype) for at, name in enumerate("xy")}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", ["tiles", "scalars"])
def test_integers(run: Any, dtype: str, shape: str) -> None:
    pairs = PAIRS + (NEGATIVE if dtype in SIGNED else [])
    operations = WHOLE | BITS | COMPARISONS
    together = f"[{', '.join(operations)}]"
    if shape == "tiles":
        found = [(t.dtype.name, t.values.tolist()) for t in run.value(together, **columns(pairs, INTEGERS[dtype]))]
    else:
        operands = [{n: torch.tensor(v).to(INTEGERS[dtype]) for n, v in zip("xy", p, strict=True)} for p in pairs]
        results = list(zip(*(run.value(together, **each) for each in operands), strict=True))
        found = [(each[0].dtype.name, [t.values.item() for t in each]) for each in results]
    high = (1 << (INTEGERS[dtype].itemsize * 8)) - 1
    for (expression, expected), (name, values) in zip(operations.items(), found, strict=True):
        wanted = [expected(x, y) & high if dtype not in SIGNED else expected(x, y) for x, y in pairs]
        result = "bool_" if expression in COMPARISONS else dtype
        assert (name, values[: len(pairs)]) == (result, wanted), expression


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", ARITHMETIC)
def test_floats_are_rounded_once(run: Any, dtype: str, sign: str) -> None:
    torch.manual_seed(3)
    x, y = (torch.randn(512, dtype=torch.float64).to(FLOATS[dtype]) for _ in range(2))
    exact = ARITHMETIC[sign](x.double(), y.double()).to(FLOATS[dtype])
    found = run.value(f"x {sign} y", x=x, y=y)
    assert found.dtype.name == dtype
    assert torch.equal(found.values, exact)
    name = {"+": "add", "-": "sub", "*": "mul", "/": "truediv"}[sign]
    assert torch.equal(run.value(f"ct.{name}(x, y)", x=x, y=y).values, exact)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("expression", ["x // y", "x % y", *COMPARISONS])
def test_division_and_comparison_of_floats(run: Any, dtype: str, expression: str) -> None:
    values = [5.5, -5.5, 2.25, -2.25, 0.5, -0.5, 7.0, -7.0]
    pairs = list(itertools.product(values, values))
    expected = {"x // y": operator.floordiv, "x % y": operator.mod} | COMPARISONS
    found = run.value(expression, **columns(pairs, FLOATS[dtype]))
    assert found.dtype.name == ("bool_" if expression in COMPARISONS else dtype)
    wanted = torch.tensor([expected[expression](x, y) for x, y in pairs], dtype=torch.float64)
    if "%" in expression:
        assert torch.equal(found.values, wanted.to(FLOATS[dtype]))
    else:
        # the quotient itself is rounded before its floor is taken
        torch.testing.assert_close(found.values.double(), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64", "bool_"])
def test_a_quotient_is_a_float32(run: Any, dtype: str, same: Any) -> None:
    x = torch.tensor([1, 0, 1, 1]).to(INTEGERS.get(dtype, torch.bool))
    found = run.value("x / 3", x=x)
    assert found.dtype.name == "float32"
    same(found, (x.double() / 3).to(torch.float32))
    # beyond the range of x's own type
    same(run.value("x / 1000", x=x), (x.double() / 1000).to(torch.float32))
    assert run.value("x / 2.0", x=torch.ones(2, dtype=torch.bfloat16)).dtype.name == "bfloat16"


@pytest.mark.parametrize("dtype", [*SIGNED])
@pytest.mark.parametrize("form", ["(4,)", "()"])
@pytest.mark.parametrize(
    ("expression", "value"),
    [("x + 1", "high"), ("x - 1", "low"), ("x * 2", "high"), ("-x", "low"), ("abs(x)", "low"), ("1 - x", "low"),
     ("x << 1", "high"), ("x + x", "high"), ("x * x", "high"), ("x * x", "low"), ("x - (-x - 1)", "low")],
)  # fmt: skip
def test_a_signed_integer_that_leaves_its_range_is_an_error(
    run: Any, dtype: str, form: str, expression: str, value: str
) -> None:
    info = torch.iinfo(INTEGERS[dtype])
    x = torch.full(eval(form), {"high": info.max, "low": info.min}[value], dtype=INTEGERS[dtype])
    assert run.refused(expression, x=x) == "overflow"


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("form", ["(4,)", "()"])
def test_the_ends_of_a_range_are_in_it(run: Any, dtype: str, form: str) -> None:
    info = torch.iinfo(INTEGERS[dtype])
    x = torch.full(eval(form), info.max - 1, dtype=INTEGERS[dtype])
    assert run.value("x + 1", x=x).values.flatten()[0].item() == info.max
    assert run.value("-x - 1 - 1", x=x).values.flatten()[0].item() == info.min
    assert run.value("(x // 2) * 2", x=x).values.flatten()[0].item() == info.max - 1


@pytest.mark.parametrize("dtype", [n for n in INTEGERS if n not in SIGNED])
@pytest.mark.parametrize("form", ["(4,)", "()"])
def test_an_unsigned_integer_wraps(run: Any, dtype: str, form: str) -> None:
    high = (1 << (INTEGERS[dtype].itemsize * 8)) - 1
    zero = torch.zeros(eval(form), dtype=torch.int64).to(INTEGERS[dtype])
    top = run.value("x - 1", x=zero)
    assert top.values.flatten()[0].item() == high
    for expression, expected in (("x - 1 + 2", 1), ("-(x + 1)", high), ("~x", high), ("(x - 1) * (x - 1)", 1)):
        assert run.value(expression, x=zero).values.flatten()[0].item() == expected, expression
    assert bool((run.value("(x - 1) > x", x=zero)).values.all())
    assert run.value("(x - 1) < x", x=zero).values.sum() == 0


@pytest.mark.parametrize("form", ["(4,)", "()"])
@pytest.mark.parametrize("expression", ["x // z", "x % z", "ct.cdiv(x, z)", "x << 32", "x >> 32", "x << (z - 1)"])
def test_operations_without_a_result_are_errors(run: Any, form: str, expression: str) -> None:
    x = torch.ones(eval(form), dtype=torch.int32)
    assert run.refused(expression, x=x, z=torch.zeros_like(x)) == "overflow"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("x << 3", [0, 8, 16, -8]), ("x >> 1", [0, 0, 1, -1]), ("ct.bitwise_lshift(x, y)", [0, 2, 8, -8]),
     ("ct.bitwise_rshift(x, y)", [0, 0, 0, -1]), ("~x", [-1, -2, -3, 0]), ("ct.bitwise_not(x)", [-1, -2, -3, 0])],
)  # fmt: skip
def test_shifts_and_bits(run: Any, expression: str, expected: list[int], same: Any) -> None:
    x, y = torch.tensor([0, 1, 2, -1], dtype=torch.int32), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    same(run.value(expression, x=x, y=y), expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("~b", [False, True]), ("b & c", [True, False]), ("b | c", [True, True]), ("b ^ c", [False, True]),
     ("b == c", [True, False]), ("b < c", [False, True]), ("b & True", [True, False])],
)  # fmt: skip
def test_booleans(run: Any, expression: str, expected: list[bool], same: Any) -> None:
    found = run.value(expression, b=torch.tensor([True, False]), c=torch.tensor([True, True]))
    assert found.dtype.name == "bool_"
    same(found, expected)


def test_a_boolean_becomes_an_integer(run: Any, same: Any) -> None:
    b = torch.tensor([True, False])
    for expression, expected in (("+b", [1, 0]), ("-b", [-1, 0]), ("b + 1", [2, 1]), ("b * 3", [3, 0])):
        found = run.value(expression, b=b)
        assert found.dtype.name == "int32", expression
        same(found, expected)
    for expression in ("b + b", "b * True", "b % b", "b // b"):
        assert run.refused(expression, b=b) == "types", expression


@pytest.mark.parametrize("name", ["minimum", "maximum"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_left_out_unless_asked_for(run: Any, name: str, dtype: str, same: Any) -> None:
    x, y = (
        torch.tensor(v, dtype=FLOATS[dtype]) for v in ([math.nan, 1.0, math.nan, 2.0], [3.0, math.nan, math.nan, 4.0])
    )
    last = 2.0 if name == "minimum" else 4.0
    same(run.value(f"ct.{name}(x, y)", x=x, y=y), [3.0, 1.0, math.nan, last])
    same(run.value(f"{name[:3]}(x, y)", x=x, y=y), [3.0, 1.0, math.nan, last])
    same(run.value(f"ct.{name}(x, y, propagate_nan=True)", x=x, y=y), [math.nan, math.nan, math.nan, last])


def test_comparison_with_nan(run: Any, same: Any) -> None:
    x = torch.tensor([math.nan, 1.0])
    same(run.value("x != x", x=x), [True, False])
    same(run.value("x == x", x=x), [False, True])
    same(run.value("ct.isnan(x)", x=x), [True, False])


UNARY = {
    "exp": math.exp, "exp2": lambda v: 2.0**v, "log": math.log, "log2": math.log2, "sqrt": math.sqrt, "sin": math.sin,
    "rsqrt": lambda v: v**-0.5, "cos": math.cos, "tan": math.tan, "sinh": math.sinh, "cosh": math.cosh,
    "tanh": math.tanh,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool_"])
def test_functions(run: Any, name: str, dtype: str) -> None:
    of = torch.tensor([0.25, 0.5, 1.0, 3.0]).to(
        FLOATS.get(dtype, {"int32": torch.int32, "bool_": torch.bool}.get(dtype))
    )
    of = torch.ones_like(of) if dtype in ("int32", "bool_") else of
    found = run.value(f"ct.{name}(x)", x=of)
    assert found.dtype.name == (dtype if dtype in FLOATS else "float32")
    exact = torch.tensor([UNARY[name](float(v)) for v in of], dtype=torch.float64)
    ulp = torch.finfo(found.values.dtype).eps
    torch.testing.assert_close(found.values.double(), exact, rtol=2 * ulp, atol=0)
    if dtype in ("float16", "bfloat16"):
        assert torch.equal(found.values, exact.to(of.dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_to_whole_numbers_and_signs(run: Any, dtype: str, same: Any) -> None:
    x = torch.tensor([1.5, -1.5, -0.0, 2.0], dtype=FLOATS[dtype])
    same(run.value("ct.floor(x)", x=x), [1.0, -2.0, -0.0, 2.0])
    same(run.value("ct.ceil(x)", x=x), [2.0, -1.0, -0.0, 2.0])
    same(run.value("ct.abs(x)", x=x), [1.5, 1.5, 0.0, 2.0])
    same(run.value("-x", x=x), [-1.5, 1.5, 0.0, -2.0])
    assert torch.signbit(run.value("ct.negative(x)", x=x).values).tolist() == [True, False, False, True]
    for name in ("floor", "ceil", "isnan"):
        assert run.refused(f"ct.{name}(x)", x=torch.ones(2, dtype=torch.int32)) == "types"


@pytest.mark.parametrize("expression", ["x ** y", "ct.pow(x, y)", "x ** 2", "2.0 ** x", "ct.atan2(x, y)"])
def test_powers_and_angles(run: Any, expression: str) -> None:
    x, y = torch.tensor([0.5, 1.0, 2.0, 4.0]), torch.tensor([2.0, -1.0, 0.5, 3.0])
    exact = eval(
        expression.replace("ct.pow", "torch.pow").replace("ct.", "torch."),
        dict(x=x.double(), y=y.double(), torch=torch),
    )
    torch.testing.assert_close(run.value(expression, x=x, y=y).values.double(), exact, rtol=1e-6, atol=0)


def test_a_float_to_a_whole_power_keeps_its_type(run: Any) -> None:
    for expression in ("x ** 2", "x ** n", "x ** 2.0"):
        found = run.value(expression, x=torch.ones(2, dtype=torch.bfloat16), n=torch.ones(2, dtype=torch.int32))
        assert found.dtype.name == "bfloat16", expression


@pytest.mark.parametrize(
    "expression",
    ["ct.cdiv(f, f)", "ct.cdiv(f, 2)", "divmod(f, f)", "h + g", "i + u", "i & l", "f & i", "f << 1", "i + 'a'", "~f",
     "e + e", "e * 2.0", "-e", "ct.exp(e)", "abs(e)", "i + 2**40 * i8", "u - (-1)", "f + None", "f[0]"],
)  # fmt: skip
def test_operands_that_do_not_go_together(run: Any, expression: str) -> None:
    operands = dict(
        f=torch.ones(2), h=torch.ones(2, dtype=torch.float16), g=torch.ones(2, dtype=torch.bfloat16),
        i=torch.ones(2, dtype=torch.int32), l=torch.ones(2, dtype=torch.int64), u=torch.ones(2, dtype=torch.uint8),
        i8=torch.ones(2, dtype=torch.int8), e=torch.ones(2).to(torch.float8_e5m2),
    )  # fmt: skip
    if "None" in expression or "'a'" in expression:
        with pytest.raises(TypeError):
            run.value(expression, **operands)
    else:
        assert run.refused(expression, **operands) == "types"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ct.cdiv(9, 4)", 3),
        ("ct.cdiv(-9, 4)", -2),
        ("ct.add(1, 2)", 3),
        ("ct.mul(2, 1.5)", 3.0),
        ("ct.truediv(1, 4)", 0.25),
        ("divmod(-7, 2)", (-4, 1)),
        ("ct.divmod(7, 2)", (3, 1)),
        ("min(3, 5)", 3),
        ("ct.maximum(3, 5.5)", 5.5),
        ("max(1, 2, 3)", 3),
        ("ct.negative(3)", -3),
        ("ct.bitwise_not(0)", -1),
        ("ct.bitwise_not(True)", False),
        ("ct.equal(1, 1.0)", True),
        ("ct.floor(2.5)", 2),
        ("ct.ceil(2.5)", 3),
        ("abs(-3)", 3),
        ("ct.abs(-2.5)", 2.5),
        ("ct.isnan(1.0)", False),
        ("ct.pow(2, 5)", 32),
        ("ct.atan2(0.0, 1.0)", 0.0),
        ("ct.sqrt(4.0)", 2.0),
        ("ct.exp2(3.0)", 8.0),
        ("7 // 2", 3),
    ],
)
def test_numbers_stay_numbers(run: Any, expression: str, expected: Any) -> None:
    found = run.value(expression)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("expression", ["ct.cdiv(9, 4)", "ct.minimum(1, 2)", "ct.maximum(1, 2)"])
def test_numbers_on_the_host(run: Any, expression: str) -> None:
    assert run.load(f"value = {expression}\n").value in (3, 1, 2)


@pytest.mark.parametrize("expression", ["ct.cdiv(1, 0)", "ct.mod(1, 0)", "divmod(1, 0)", "ct.truediv(1.0, 0)"])
def test_numbers_divided_by_zero(run: Any, expression: str) -> None:
    assert run.refused(expression) == "overflow"


@pytest.mark.parametrize(
    ("before", "after", "values", "expected"),
    [
        ("float32", "int32", [1.9, -1.9, 0.5, 3.0], [1, -1, 0, 3]),
        ("float32", "uint8", [1.9, 255.9, 0.5, 3.0], [1, 255, 0, 3]),
        ("float64", "int64", [2.0**63, -(2.0**70), math.nan, -2.5], [2**63 - 1, -(2**63), 0, -2]),
        ("float32", "int16", [1e9, -math.inf, math.nan, -2.5], [2**15 - 1, -(2**15), 0, -2]),
        ("int32", "int8", [127, 128, -129, 256], [127, -128, 127, 0]),
        ("int32", "uint8", [-1, 256, 300, 5], [255, 0, 44, 5]),
        ("uint8", "int8", [255, 128, 127, 0], [-1, -128, 127, 0]),
        ("int8", "uint16", [-1, 1, 0, 5], [65535, 1, 0, 5]),
        ("int32", "bool_", [0, 2, -1, 256], [False, True, True, True]),
        ("float32", "bool_", [0.0, -0.0, 0.1, math.nan], [False, False, True, True]),
        ("bool_", "float32", [True, False, True, True], [1.0, 0.0, 1.0, 1.0]),
        ("bool_", "int64", [True, False, True, True], [1, 0, 1, 1]),
    ],
)
def test_astype(run: Any, before: str, after: str, values: list[Any], expected: list[Any], same: Any) -> None:
    types = INTEGERS | FLOATS | {"bool_": torch.bool}
    x = torch.tensor(values).to(types[before])
    for expression in (f"x.astype(ct.{after})", f"ct.astype(x, ct.{after})"):
        found = run.value(expression, x=x)
        assert found.dtype.name == after
        same(found, expected)
    scalars = [run.value(f"x.astype(ct.{after})", x=one.reshape(())).values.item() for one in x]
    assert scalars == expected
    assert [run.value(f"ct.{after}(x)", x=one.reshape(())).values.item() for one in x] == expected


def test_a_rounding_mode_that_changes_results_is_refused(run: Any) -> None:
    from ssmgen.errors import InterpreterError

    x = torch.ones(2)
    for expression in (
        "x.astype(ct.bfloat16, rounding_mode=ct.RoundingMode.RZ)",
        "ct.add(x, x, rounding_mode=ct.RoundingMode.RP)",
    ):
        with pytest.raises(InterpreterError, match="does not know"):
            run.value(expression, x=x)
    assert run.value("ct.exp(x, rounding_mode=ct.RoundingMode.APPROX)", x=x) is not None
    assert run.value("ct.exp2(x, flush_to_zero=True)", x=x) is not None


@pytest.mark.parametrize(
    ("expression", "dtype", "expected"),
    [
        ("ct.where(b, x, y)", "float32", [1.0, 20.0]),
        ("ct.where(b, x, 0)", "float32", [1.0, 0.0]),
        ("ct.where(b, i, 2.5)", "float32", [3.0, 2.5]),
        ("ct.where(b, 1, 0)", "int32", [1, 0]),
        ("ct.where(b, 1.0, 0)", "float32", [1.0, 0.0]),
        ("ct.where(i, x, y)", "float32", [1.0, 20.0]),
        ("ct.where(b, i, True)", "int32", [3, 1]),
        ("ct.where(True, x, y)", "float32", [1.0, 2.0]),
        ("ct.where(x > 1, i, i + 1)", "int32", [4, 0]),
    ],
)
def test_where(run: Any, expression: str, dtype: str, expected: list[Any], same: Any) -> None:
    found = run.value(
        expression, b=torch.tensor([True, False]), x=torch.tensor([1.0, 2.0]), y=torch.tensor([10.0, 20.0]),
        i=torch.tensor([3, 0], dtype=torch.int32),
    )  # fmt: skip
    assert found.dtype.name == dtype
    same(found, expected)


def test_operands_broadcast(run: Any, same: Any) -> None:
    x, y = torch.arange(4.0).reshape(4, 1), torch.arange(2.0)
    same(run.value("x + y", x=x, y=y), x + y)
    same(run.value("ct.where(x > y, x, y)", x=x, y=y), torch.maximum(x, y))
    assert run.refused("x + y", x=torch.ones(4), y=torch.ones(2)) == "shapes"
