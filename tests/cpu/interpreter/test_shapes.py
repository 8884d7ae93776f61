"""Making tiles and changing their shape, and reductions, scans and products, against torch in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

BLOCK = torch.arange(32, dtype=torch.int32).reshape(4, 8)
CUBE = torch.arange(64, dtype=torch.int32).reshape(4, 2, 8)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ct.arange(4, dtype=ct.int32)", torch.arange(4, dtype=torch.int32)),
        ("ct.arange(4, dtype=ct.int64, start=2, step=3)", torch.tensor([2, 5, 8, 11])),
        ("ct.arange(8, dtype=ct.uint8, start=7, step=-1)", torch.arange(7, -1, -1, dtype=torch.uint8)),
        ("ct.arange(4, dtype=ct.float32)", torch.arange(4.0)),
        ("ct.arange(4, dtype=ct.bfloat16, start=0.5, step=0.25)", torch.arange(0.5, 1.5, 0.25, dtype=torch.bfloat16)),
        ("ct.arange(4, dtype=ct.int32, start=n)", torch.arange(5, 9, dtype=torch.int32)),
        ("ct.full((2, 2), 3, ct.int8)", torch.full((2, 2), 3, dtype=torch.int8)),
        ("ct.full(4, n, ct.float32)", torch.full((4,), 5.0)),
        ("ct.full((), 2.5, ct.bfloat16)", torch.tensor(2.5, dtype=torch.bfloat16)),
        ("ct.full((2,), -1, ct.uint16)", torch.tensor([65535, 65535], dtype=torch.uint16)),
        ("ct.full((2,), 3.9, ct.int32)", torch.tensor([3, 3], dtype=torch.int32)),
        ("ct.full((2,), -math.inf, ct.float16)", torch.full((2,), -math.inf, dtype=torch.float16)),
        ("ct.zeros((2, 1), dtype=ct.float64)", torch.zeros(2, 1, dtype=torch.float64)),
        ("ct.ones((2,), torch.float8_e5m2).astype(ct.float32)", torch.ones(2)),
        ("ct.ones((2,), dtype=ct.bool_)", torch.tensor([True, True])),
        ("ct.astile(((1, 2), (3, 4)), dtype=ct.int32)", torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)),
        ("ct.astile((0.5, n), dtype=ct.float32)", torch.tensor([0.5, 5.0])),
        ("ct.astile(n, dtype=ct.float32)", torch.tensor(5.0)),
        ("ct.astile((16777217, 2), dtype=ct.int32)", torch.tensor([16777217, 2], dtype=torch.int32)),
    ],
)
def test_making_tiles(run: Any, expression: str, expected: Any) -> None:
    found = run.value(expression, "import math, torch", n=torch.tensor(5, dtype=torch.int32))
    assert found.values.dtype == expected.dtype
    assert torch.equal(found.values, expected)


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        ("ct.arange(3, dtype=ct.int32)", "tile"),
        ("ct.arange(n, dtype=ct.int32)", "tile"),
        ("ct.arange(256, dtype=ct.int8)", "overflow"),
        ("ct.full((2, 3), 0, ct.int32)", "tile"),
        ("ct.zeros((0,), ct.int32)", "tile"),
        ("ct.full((2,), math.nan, ct.int32)", "types"),
        ("ct.full((2,), ct.ones((2,), ct.int32), ct.int32)", "shapes"),
        ("ct.zeros((2.0,), ct.int32)", "types"),
        ("ct.zeros((n,), ct.int32)", "tile"),
        ("ct.astile((1, 2, 3), dtype=ct.int32)", "tile"),
        ("ct.astile(((1, 2), (3,)), dtype=ct.int32)", "shapes"),
    ],
)
def test_tiles_that_cannot_be_made(run: Any, expression: str, rule: str) -> None:
    assert run.refused(expression, "import math", n=torch.tensor(4, dtype=torch.int32)) == rule


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.reshape((8, 4))", BLOCK.reshape(8, 4)),
        ("ct.reshape(x, (2, -1, 4))", BLOCK.reshape(2, -1, 4)),
        ("x.reshape((-1,))", BLOCK.reshape(-1)),
        ("x.permute((1, 0))", BLOCK.T),
        ("ct.permute(c, (2, 0, -2))", CUBE.permute(2, 0, 1)),
        ("x.transpose()", BLOCK.T),
        ("ct.transpose(c, 0, -1)", CUBE.transpose(0, 2)),
        ("ct.expand_dims(x, 0)", BLOCK[None]),
        ("ct.expand_dims(x, -1)", BLOCK[..., None]),
        ("ct.expand_dims(x, 1)", BLOCK[:, None]),
        ("x[None]", BLOCK[None]),
        ("x[:, None, :]", BLOCK[:, None]),
        ("x[..., None]", BLOCK[..., None]),
        ("x[None, ..., None]", BLOCK[None, ..., None]),
        ("ct.broadcast_to(x, (2, 4, 8))", BLOCK.expand(2, 4, 8)),
        ("ct.broadcast_to(x[:, None], (4, 2, 8))", BLOCK[:, None].expand(4, 2, 8)),
        ("ct.cat((x, x + 1), 0)", torch.cat([BLOCK, BLOCK + 1])),
        ("ct.cat((x, x + 1), -1)", torch.cat([BLOCK, BLOCK + 1], 1)),
        ("ct.cat((x,), 0)", BLOCK),
        ("ct.extract(x, (1, 0), (2, 4))", BLOCK[2:4, 0:4]),
        ("x.extract((1, 1), (2, 4))", BLOCK[2:4, 4:8]),
        ("x.extract((n, 7), (1, 1))", BLOCK[1:2, 7:8]),
        ("x.extract((3, 5), ())", BLOCK[3, 5]),
        ("ct.extract(x, (3, 5), (1, 1)).item()", BLOCK[3, 5]),
    ],
)
def test_changing_shapes(run: Any, expression: str, expected: Any, same: Any) -> None:
    found = run.value(expression, x=BLOCK, c=CUBE, n=torch.tensor(1, dtype=torch.int32))
    assert found.dtype.name == "int32"
    same(found, expected)


def test_insert_undoes_extract(run: Any, same: Any) -> None:
    expected = BLOCK.clone()
    expected[1, 3] = -5
    same(run.value("x.insert((1, 3), ct.full((), -5, ct.int32))", x=BLOCK), expected)
    same(
        run.value("x.insert((1, 0), v).extract((1, 0), (2, 4)) - v", "v = x.extract((0, 1), (2, 4)) * 7", x=BLOCK),
        torch.zeros(2, 4),
    )
    written = BLOCK.clone()
    written[2:, :4] = -1
    same(run.value("ct.insert(x, (1, 0), ct.full((2, 4), -1, ct.int32))", x=BLOCK), written)
    # a tile does not change
    same(run.value("x", "x.insert((0, 0), ct.zeros((4, 8), ct.int32))", x=BLOCK), BLOCK)


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        ("x.reshape((3, 4))", "shapes"),
        ("x.reshape((-1, -1))", "shapes"),
        ("x.reshape((-1, 64))", "shapes"),
        ("x.permute((0, 0))", "shapes"),
        ("x.permute((0,))", "shapes"),
        ("ct.expand_dims(x, 3)", "shapes"),
        ("c.transpose()", "shapes"),
        ("c.transpose(0)", "shapes"),
        ("ct.broadcast_to(x, (4, 4))", "shapes"),
        ("ct.cat((x, c), 0)", "types"),
        ("ct.cat((x, x.astype(ct.int64)), 0)", "types"),
        ("ct.cat((x, x.extract((0, 0), (2, 4))), 0)", "types"),
        ("ct.cat((x, x.extract((0, 0), (2, 8))), 0)", "tile"),
        ("ct.cat((x, x, x), 0)", "types"),
        ("x.extract((2, 0), (2, 4))", "outside"),
        ("x.extract((-1, 0), (2, 4))", "outside"),
        ("x.extract((0,), (2, 4))", "shapes"),
        ("x.extract((0, 0), (8, 8))", "shapes"),
        ("x.insert((0, 0), ct.zeros((2, 4), ct.int64))", "types"),
        ("x[0]", "types"),
        ("x[:, :, :]", "shapes"),
        ("x.item()", "shapes"),
        ("[n for n in x]", "types"),
        ("bool(x)", "shapes"),
        ("(0, 1)[n]", "tile"),
    ],
)
def test_shapes_that_do_not_fit(run: Any, expression: str, rule: str) -> None:
    assert run.refused(expression, x=BLOCK, c=CUBE, n=torch.tensor(1, dtype=torch.int32)) == rule


def test_a_tile_is_immutable(run: Any) -> None:
    assert run.refused("x", "x[0] = 1", x=BLOCK) == "types"


def test_bits_of_another_type(run: Any, same: Any) -> None:
    x = torch.tensor([1.0, -0.0, math.inf, 0.1])
    same(run.value("ct.bitcast(x, ct.int32)", x=x), x.view(torch.int32))
    same(run.value("ct.bitcast(ct.bitcast(x, ct.uint32), ct.float32)", x=x), x)
    assert run.value("ct.bitcast(1.0, ct.uint32)").values.item() == 0x3F800000
    assert run.value("ct.bitcast(n, ct.uint64)", n=torch.tensor(-1)).values.item() == 2**64 - 1
    for expression in (
        "ct.bitcast(x, ct.int64)",
        "ct.bitcast(x > 0, ct.uint8)",
        "ct.bitcast(x.astype(ct.uint8), ct.bool_)",
    ):
        assert run.refused(expression, x=x) == "types", expression


def test_bytes(run: Any, same: Any) -> None:
    words = torch.tensor([[0x2B2A2928], [0x2F2E2D2C]], dtype=torch.int32)
    same(run.value("ct.pack_to_bytes(x)", x=words), torch.arange(40, 48, dtype=torch.uint8))
    same(run.value("ct.unpack_from_bytes(ct.pack_to_bytes(x), ct.int32)", x=words), words.flatten())
    same(
        run.value("ct.unpack_from_bytes(ct.pack_to_bytes(x), ct.int8)", x=words), torch.arange(40, 48, dtype=torch.int8)
    )
    assert run.value("ct.pack_to_bytes(1)").values.tolist() == [1, 0, 0, 0]
    for expression in (
        "ct.pack_to_bytes(x > 0)",
        "ct.unpack_from_bytes(x, ct.int8)",
        "ct.unpack_from_bytes(b, ct.bool_)",
        "ct.unpack_from_bytes(b.reshape((2, 2)), ct.int8)",
        "ct.unpack_from_bytes(b, ct.int64)",
    ):
        assert run.refused(expression, "b = ct.zeros((4,), ct.uint8)", x=words) == "types", expression


# --- reductions

AXES = [None, 0, 1, -1, (0, 1), (0, -1), (1,), (0, 1, 2)]


def reduced(name: str, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    wide = x.double()
    for axis in sorted(axes, reverse=True):
        wide = {"sum": wide.sum, "prod": wide.prod, "max": wide.amax, "min": wide.amin}[name](axis, keepdim=keepdims)
    return wide


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(run: Any, name: str, keepdims: bool) -> None:
    torch.manual_seed(5)
    for dtype, axis in itertools.product((torch.float32, torch.float64, torch.int32, torch.uint16), AXES):
        x = (
            torch.randint(1, 4, (4, 2, 8)).to(dtype)
            if dtype in (torch.int32, torch.uint16)
            else torch.randn(4, 2, 8, dtype=dtype)
        )
        if name == "prod" and not dtype.is_floating_point:
            x = torch.ones_like(x)
        axes = tuple(range(3)) if axis is None else tuple(a % 3 for a in (axis if isinstance(axis, tuple) else (axis,)))
        exact = reduced(name, x, axes, keepdims)
        found = run.value(f"ct.{name}(x, {axis}, keepdims={keepdims})", x=x)
        assert found.values.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 0 if not dtype.is_floating_point else 1e-12
        torch.testing.assert_close(found.values.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_sum_is_rounded_in_the_tiles_own_type(run: Any) -> None:
    x = torch.tensor([256.0, 1.0, 1.0, 1.0], dtype=torch.bfloat16)
    # in bfloat16 no order of additions reaches 259: 256 + 1 is 256, and 256 + 2 is 258
    assert run.value("ct.sum(x)", x=x).values.item() in (256.0, 258.0, 260.0)
    assert run.value("ct.sum(ct.full((256,), 1.0, ct.bfloat16))").values.item() == 256.0
    assert run.value("ct.sum(x.astype(ct.float32))", x=x).values.item() == 259.0


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("ct.sum(b)", 3), ("ct.max(b)", 1), ("ct.min(b)", 0), ("ct.cumsum(b)", [1, 1, 2, 3]), ("ct.prod(b)", 0)],
)
def test_booleans_are_counted(run: Any, expression: str, expected: Any) -> None:
    found = run.value(expression, b=torch.tensor([True, False, True, True]))
    assert (found.dtype.name, found.values.tolist()) == ("int32", expected)


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_leave_nan_out_unless_asked(run: Any, name: str, same: Any) -> None:
    x = torch.tensor([[math.nan, 1.0], [2.0, math.nan], [math.nan, math.nan], [4.0, 3.0]])
    picked = {"max": [1.0, 2.0, math.nan, 4.0], "min": [1.0, 2.0, math.nan, 3.0]}[name]
    same(run.value(f"ct.{name}(x, 1)", x=x), picked)
    same(run.value(f"ct.{name}(x, 1, propagate_nan=True)", x=x), [math.nan, math.nan, math.nan, picked[3]])


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint16, torch.uint32])
def test_index_of_an_extreme_is_the_first(run: Any, name: str, dtype: Any, same: Any) -> None:
    x = torch.tensor([[3, 1, 3, 1], [2, 2, 2, 2]]).to(dtype)
    rows, columns = {"argmax": ([0, 0], [0, 1, 0, 1]), "argmin": ([1, 0], [1, 0, 1, 0])}[name]
    found = run.value(f"ct.{name}(x, 1)", x=x)
    assert found.dtype.name == "int32"
    same(found, rows)
    same(run.value(f"ct.{name}(x, 0)", x=x), columns)
    same(run.value(f"ct.{name}(x, -1, keepdims=True)", x=x), [[n] for n in rows])
    same(run.value(f"ct.{name}(x)", x=x), rows[0])
    same(run.value(f"ct.{name}(x, keepdims=True)", x=x), [[rows[0]]])
    assert run.refused(f"ct.{name}(x, (0, 1))", x=x) == "types"


@pytest.mark.parametrize("expression", ["ct.sum(x, (0, 0))", "ct.max(x, (0, -2))", "ct.sum(x, 2)", "ct.cumsum(x, 2)"])
def test_axes_that_do_not_fit(run: Any, expression: str) -> None:
    assert run.refused(expression, x=BLOCK) == "shapes"


@pytest.mark.parametrize(
    ("expression", "values", "dtype"),
    [
        ("ct.sum(x)", [2**31 - 1, 1, 0, 0], torch.int32),
        ("ct.sum(x)", [100, 27, 1, 0], torch.int8),
        ("ct.prod(x)", [2**16, 2**16, 1, 1], torch.int32),
        ("ct.prod(x)", [2] * 64, torch.int32),
        ("ct.cumsum(x)", [2**31 - 1, 1, -5, 0], torch.int32),
        ("ct.cumprod(x)", [2] * 64, torch.int32),
    ],
)
def test_a_reduction_that_leaves_its_range(run: Any, expression: str, values: list[int], dtype: Any) -> None:
    assert run.refused(expression, x=torch.tensor(values, dtype=dtype)) == "overflow"


def test_unsigned_reductions_wrap(run: Any) -> None:
    x = torch.tensor([200, 100], dtype=torch.uint8)
    assert run.value("ct.sum(x)", x=x).values.item() == 44
    assert run.value("ct.cumsum(x)", x=x).values.tolist() == [200, 44]
    assert run.value("ct.prod(x)", x=x).values.item() == 20000 % 256


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_totals(run: Any, axis: int, reverse: bool) -> None:
    torch.manual_seed(5)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
        x = torch.randint(1, 3, (4, 8)).to(dtype)
        for name, total in (("cumsum", torch.cumsum), ("cumprod", torch.cumprod)):
            turned = x.double().flip(axis) if reverse else x.double()
            exact = total(turned, axis).flip(axis) if reverse else total(turned, axis)
            found = run.value(f"ct.{name}(x, {axis}, reverse={reverse})", x=x)
            assert found.values.dtype == dtype
            torch.testing.assert_close(found.values.double(), exact, rtol=0, atol=0)
    assert run.value("ct.cumsum(x)", x=BLOCK).values.tolist() == BLOCK.cumsum(0).tolist()


def test_reductions_by_a_function_of_the_kernel(run: Any, same: Any) -> None:
    x = torch.tensor([[3, 1, 2, 5], [4, 7, 6, 0]], dtype=torch.int32)
    same(run.value("ct.reduce(x, 1, lambda a, b: a + b, 0)", x=x), x.sum(1))
    same(run.value("ct.reduce(x, 0, lambda a, b: ct.maximum(a, b), 0, keepdims=True)", x=x), x.amax(0, keepdim=True))
    same(run.value("ct.reduce(x, -1, operator.mul, 1)", "import operator", x=x), x.prod(1))
    before = """
    def larger(a, i, b, j):
        return ct.where(a >= b, a, b), ct.where(a >= b, i, j)
    largest, at = ct.reduce((x, ct.arange(4, dtype=ct.int32)), 1, larger, (0, 0))
    """
    same(run.value("largest", before, x=x), x.amax(1))
    same(run.value("at", before, x=x), x.argmax(1))
    assert run.value("ct.reduce(x > 2, 1, lambda a, b: a | b, False)", x=x).values.tolist() == [True, True]


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_by_a_function_of_the_kernel(run: Any, reverse: bool, same: Any) -> None:
    x = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int32)
    turned = x.flip(1) if reverse else x
    for function, total in (("a + b", turned.cumsum(1)), ("ct.maximum(a, b)", turned.cummax(1).values)):
        found = run.value(f"ct.scan(x, 1, lambda a, b: {function}, 0, reverse={reverse})", x=x)
        same(found, total.flip(1) if reverse else total)
    # the linear recurrence s' = d s + u, of which each step is a pair
    d, u = torch.tensor([0.5, 2.0, 0.25, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    before = "def step(d, u, e, v):\n    return d * e, u * e + v"
    state, expected = 0.0, []
    for factor, term in zip(*(v.tolist()[:: -1 if reverse else 1] for v in (d, u)), strict=True):
        state = state * factor + term
        expected.append(state)
    found = run.value(f"ct.scan((d, u), 0, step, (1.0, 0.0), reverse={reverse})[1]", before, d=d, u=u)
    same(found, expected[::-1] if reverse else expected)


def test_tuples_broadcast_before_they_are_reduced(run: Any, same: Any) -> None:
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 20.0])
    before = "def pairs(a, b, c, d):\n    return a + c, b + d"
    for at, expected in ((0, [3.0, 7.0]), (1, [30.0, 30.0])):
        same(run.value(f"ct.reduce((x, y), 1, pairs, (0.0, 0.0))[{at}]", before, x=x, y=y), expected)
    same(run.value("ct.scan((x, y), 1, pairs, (0.0, 0.0))[1]", before, x=x, y=y), [[10.0, 30.0], [10.0, 30.0]])


@pytest.mark.parametrize("operation", ["reduce", "scan"])
@pytest.mark.parametrize(
    "function", ["lambda a, b: a + b + 0.5", "lambda a, b: 1", "lambda a, b: (a, b)", "lambda a, b: a.astype(ct.int64)"]
)
def test_a_reducing_function_hands_back_what_it_was_given(run: Any, operation: str, function: str) -> None:
    assert run.refused(f"ct.{operation}(x, 0, {function}, 0)", x=BLOCK) == "types"


def test_what_a_reducing_function_hands_back_becomes_the_tiles_own_type(run: Any, same: Any) -> None:
    for operation, expected in (("reduce", BLOCK.amax(1)), ("scan", BLOCK)):
        found = run.value(f"ct.{operation}(x, 1, lambda a, b: ct.maximum(a, b).astype(ct.int16), 0)", x=BLOCK)
        assert found.dtype.name == "int32"
        same(found, expected)


# --- products

KINDS = {
    torch.float16: [torch.float16, torch.float32], torch.bfloat16: [torch.float32], torch.float32: [torch.float32],
    torch.float64: [torch.float64], torch.float8_e4m3fn: [torch.float16, torch.float32],
    torch.float8_e5m2: [torch.float16, torch.float32], torch.int8: [torch.int32], torch.uint8: [torch.int32],
}  # fmt: skip
SHAPES = [((4, 8), (8, 2)), ((2, 4, 8), (8, 2)), ((4, 8), (2, 8, 2)), ((1, 4, 8), (2, 8, 2)), ((2, 4, 8), (2, 8, 2))]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_mma(run: Any, dtype: Any, shapes: Any) -> None:
    torch.manual_seed(11)
    if dtype.is_floating_point:
        x, y = (torch.randn(shape).to(dtype) for shape in shapes)
    else:
        x, y = (torch.randint(0, 100, shape).to(dtype) for shape in shapes)
    for kind in KINDS[dtype]:
        exact = torch.matmul(x.double(), y.double())
        acc = (
            torch.randn(exact.shape).to(kind)
            if kind.is_floating_point
            else torch.randint(-99, 99, exact.shape).to(kind)
        )
        exact = exact + acc.double()
        found = run.value("ct.mma(x, y, acc)", x=x, y=y, acc=acc)
        assert found.values.dtype == kind
        tolerance = {torch.float16: 1e-3, torch.float32: 1e-5}.get(kind, 1e-12)
        torch.testing.assert_close(found.values.double(), exact, rtol=tolerance, atol=tolerance)
        if kind == torch.float16:
            assert torch.equal(found.values, (torch.matmul(x.float(), y.float()) + acc.float()).half())


def test_mma_of_tfloat32_rounds_its_operands_and_of_float32_does_not(run: Any) -> None:
    x, y = torch.full((2, 2), 1 + 2**-12), torch.ones(2, 2)
    before = "acc = ct.zeros((2, 2), ct.float32)"
    assert run.value("ct.mma(x, y, acc)", before, x=x, y=y).values[0, 0].item() == 2 + 2**-11
    found = run.value("ct.mma(x.astype(ct.tfloat32), y.astype(ct.tfloat32), acc)", before, x=x, y=y)
    assert (found.dtype.name, found.values[0, 0].item()) == ("float32", 2.0)


def test_mma_of_signed_and_unsigned_bytes(run: Any) -> None:
    x, y = torch.full((2, 2), -3, dtype=torch.int8), torch.full((2, 2), 200, dtype=torch.uint8)
    found = run.value("ct.mma(x, y, ct.ones((2, 2), ct.int32))", x=x, y=y)
    assert found.values.tolist() == [[-1199, -1199]] * 2


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        ("ct.mma(h, f, acc)", "types"),
        ("ct.mma(h, h, ct.zeros((4, 4), ct.float64))", "types"),
        ("ct.mma(b, b, ct.zeros((4, 4), ct.bfloat16))", "types"),
        ("ct.mma(i, i, ct.zeros((4, 4), ct.int32))", "types"),
        ("ct.mma(f, f, 0.0)", "types"),
        ("ct.mma(f, f.reshape((2, 8)), acc)", "shapes"),
        ("ct.mma(f, f, ct.zeros((4, 2), ct.float32))", "shapes"),
        ("ct.mma(f, f.reshape((16,)), acc)", "shapes"),
        ("f @ h.astype(ct.float8_e5m2)", "types"),
        ("f @ 2.0", "types"),
        ("i @ i", "types"),
    ],
)
def test_products_that_do_not_fit(run: Any, expression: str, rule: str) -> None:
    operands = dict(
        f=torch.ones(4, 4),
        h=torch.ones(4, 4).half(),
        b=torch.ones(4, 4).bfloat16(),
        i=torch.ones(4, 4, dtype=torch.int16),
    )
    assert run.refused(expression, "acc = ct.zeros((4, 4), ct.float32)", **operands) == rule


def test_a_product_that_leaves_its_range(run: Any) -> None:
    x = torch.full((2, 2), 127, dtype=torch.int8)
    assert run.refused("ct.mma(x, x, ct.full((2, 2), 2**31 - 1, ct.int32))", x=x) == "overflow"


@pytest.mark.parametrize(
    "shapes", [*SHAPES, ((8,), (8,)), ((8,), (8, 2)), ((4, 8), (8,)), ((2, 4, 8), (8,)), ((8,), (2, 8, 2))], ids=str
)
def test_matmul(run: Any, shapes: Any) -> None:
    torch.manual_seed(11)
    x, y = (torch.randint(-4, 5, shape).float() for shape in shapes)
    exact = torch.matmul(x.double(), y.double())
    for expression in ("x @ y", "ct.matmul(x, y)"):
        found = run.value(expression, x=x, y=y)
        assert found.dtype.name == "float32"
        assert torch.equal(found.values.double(), exact)
    mixed = run.value("x @ y", x=x.bfloat16(), y=y)
    assert mixed.dtype.name == "float32"
    assert torch.equal(mixed.values.double(), exact)
    assert run.value("x @ y", x=x.bfloat16(), y=y.bfloat16()).dtype.name == "bfloat16"


def test_mma_scaled(run: Any) -> None:
    torch.manual_seed(11)
    x, y = torch.randn(4, 64).to(torch.float8_e4m3fn), torch.randn(64, 2).to(torch.float8_e4m3fn)
    s, t = (torch.exp2(torch.randint(-2, 3, shape).float()).to(torch.float8_e8m0fnu) for shape in ((4, 2), (2, 2)))
    left = x.double() * s.float().double().repeat_interleave(32, 1)
    right = y.double() * t.float().double().repeat_interleave(32, 0)
    before = "acc = ct.full((4, 2), 1.0, ct.float32)"
    found = run.value("ct.mma_scaled(x, s, y, t, acc)", before, x=x, y=y, s=s, t=t)
    torch.testing.assert_close(found.values.double(), left @ right + 1, rtol=1e-5, atol=1e-5)
    wrong = run.refused("ct.mma_scaled(x, t, y, t, acc)", before, x=x, y=y, t=t)
    assert wrong == "shapes"
