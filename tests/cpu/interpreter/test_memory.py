"""Loads, stores, gathers, scatters, views and atomic operations, and the arguments of kernels."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen.errors import InterpreterError, SanitizerError  # noqa: E402

PLANE = torch.arange(6 * 10, dtype=torch.int32).reshape(6, 10)
CUBE = torch.arange(4 * 6 * 10, dtype=torch.float32).reshape(4, 6, 10)
PADDINGS = {"ZERO": 0.0, "NEG_ZERO": -0.0, "NAN": math.nan, "POS_INF": math.inf, "NEG_INF": -math.inf}
TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    torch.float8_e8m0fnu,
)


def tile_at(x: Any, index: Any, shape: Any, order: Any) -> Any:
    """The tile at `index` of `x`, zeros beyond it."""
    turned = x.permute(order)
    padded = torch.zeros(shape, dtype=x.dtype)
    part = turned[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))]
    padded[tuple(slice(0, n) for n in part.shape)] = part
    return padded


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_loads_and_stores_of_tiles_in_every_order(run: Any, order: tuple[int, ...]) -> None:
    shape = (2, 4, 8)
    space = [math.ceil(CUBE.shape[axis] / n) for axis, n in zip(order, shape, strict=True)]
    loaded, written = [], torch.zeros_like(CUBE)
    run(
        f"""
        @ct.kernel
        def kernel(x, y, out: ct.Constant):
            at = (ct.bid(0), ct.bid(1), ct.bid(2))
            t = ct.load(x, at, {shape}, order={order}, padding_mode=ct.PaddingMode.ZERO)
            out.append(t)
            ct.store(y, at, t * 2, order={order})
        """,
        CUBE, written, loaded, grid=space,
    )  # fmt: skip
    indices = [i[::-1] for i in itertools.product(*map(range, space[::-1]))]
    for index, found in zip(indices, loaded, strict=True):
        assert torch.equal(found.values, tile_at(CUBE, index, shape, order)), index
    assert torch.equal(written, CUBE * 2)


@pytest.mark.parametrize(("name", "order"), [("C", (0, 1)), ("F", (1, 0))])
def test_names_of_orders(run: Any, name: str, order: tuple[int, ...], same: Any) -> None:
    for index in ((0, 0), (1, 1)):
        loaded = run.value(f"ct.load(x_array, {index}, (2, 2), order={name!r})", x=PLANE[:4, :8])
        same(loaded, tile_at(PLANE[:4, :8], index, (2, 2), order))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_element_type_comes_and_goes(run: Any, dtype: Any) -> None:
    x = torch.tensor([1, 0, 2, 1, 1]).to(dtype)
    y, z, w = (torch.zeros(5).to(dtype) for _ in range(3))
    run(
        """
        @ct.kernel
        def kernel(x, y, z, w):
            ct.store(y, (0,), ct.load(x, (0,), (8,), padding_mode=ct.PaddingMode.ZERO))
            at = ct.arange(8, dtype=ct.int32)
            ct.scatter(z, at, ct.gather(x, at))
            for i in range(5):
                ct.store(w, (i,), ct.load(x, (i,), ()))
        """,
        x, y, z, w,
    )  # fmt: skip
    for found in (y, z, w):
        assert torch.equal(found.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("mode", PADDINGS)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int32,
        torch.uint64,
        torch.bool,
        torch.float8_e5m2,
    ],
    ids=str,
)
def test_padding(run: Any, mode: str, dtype: Any) -> None:
    text = f"""
    @ct.kernel
    def kernel(x, out: ct.Constant):
        out.append(ct.load(x, (1,), (4,), padding_mode=ct.PaddingMode.{mode}))  # here
        out.append(x.tiled_view(4, padding_mode=ct.PaddingMode.{mode}).load(1))
    """
    x, out = torch.ones(6).to(dtype), []
    if not dtype.is_floating_point and mode != "ZERO":
        assert run.error(text, x, out).rule == "types"
        return
    run(text, x, out)
    for found in out:
        values = found.values.double()
        assert values[:2].tolist() == [1.0, 1.0]
        torch.testing.assert_close(
            values[2:], torch.full((2,), PADDINGS[mode], dtype=torch.float64), rtol=0, atol=0, equal_nan=True
        )
        assert torch.signbit(values[2:]).tolist() == [math.copysign(1, PADDINGS[mode]) < 0] * 2 or mode == "NAN"


def test_a_tile_of_no_axes_is_one_element(run: Any) -> None:
    y = torch.zeros(6, 10, dtype=torch.int32)
    out: list[Any] = []
    run(
        """
        @ct.kernel
        def kernel(x, y, out: ct.Constant):
            one = ct.load(x, (2, 3), ())
            out.append(one)
            ct.store(y, (2, 3), one + 1)
            ct.store(y, (one - 20, 0), 7)
            out.append(ct.num_tiles(x, 1, ()))
        """,
        PLANE, y, out,
    )  # fmt: skip
    assert (out[0].shape, out[0].value, out[1].value) == ((), 23, 10)
    assert (y[2, 3].item(), y[3, 0].item(), int(y.sum())) == (24, 7, 31)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("ct.num_tiles(x, 0, (4, 4))", 2), ("ct.num_tiles(x, 1, (4, 4))", 3), ("ct.num_tiles(x, -1, (4, 8))", 2),
     ("ct.num_tiles(x, 0, (4, 4), order='F')", 3), ("ct.num_tiles(x, axis=1, shape=(4, 2), order=(1, 0))", 3),
     ("x.tiled_view((4, 4)).num_tiles(1)", 3), ("x.tiled_view((4, 4), traversal_steps=(1, 3)).num_tiles(0)", 6),
     ("x.tiled_view((4, 4), traversal_steps=(1, 3)).num_tiles(-1)", 4), ("x.shape[1]", 10), ("x.strides[0]", 10)],
)  # fmt: skip
def test_sizes_are_known_at_run_time(run: Any, expression: str, expected: int) -> None:
    out: list[Any] = []
    run(f"@ct.kernel\ndef kernel(x, out: ct.Constant):\n    out.append({expression})\n", PLANE, out)
    assert (out[0].dtype.name, out[0].value) == ("int32", expected)
    assert (
        run.error(f"@ct.kernel\ndef kernel(x):\n    ct.zeros(({expression},), ct.int32)  # here\n", PLANE).rule
        == "tile"
    )


def test_tiled_views(run: Any, same: Any) -> None:
    out: list[Any] = []
    y = torch.zeros_like(PLANE)
    run(
        """
        @ct.kernel
        def kernel(x, y, out: ct.Constant):
            view = x.tiled_view((2, 4), traversal_steps=(1, 3))
            out.append(view.load((4, 2)))
            assert (view.tile_shape, view.traversal_steps, view.dtype) == ((2, 4), (1, 3), ct.int32)
            assert x.tiled_view((2, 4)).traversal_steps == (2, 4)
            single = x.tiled_view(())
            assert single.traversal_steps == (1, 1)
            out.append(single.load((1, 1)))
            written = y.tiled_view((2, 4), traversal_steps=(3, 5))
            written.store((0, 0), 5)
            written.store((1, 1), ct.ones((4,), ct.int32))
            written.store((0, 1), ct.full((2, 1), 3, ct.int16))
        """,
        PLANE, y, out,
    )  # fmt: skip
    same(out[0], PLANE[4:6, 6:10])
    assert out[1].value == 11
    expected = torch.zeros_like(PLANE)
    expected[0:2, 0:4] = 5
    expected[3:5, 5:9] = 1
    expected[0:2, 5:9] = 3
    assert torch.equal(y, expected)


@pytest.mark.parametrize("steps", [3, (3,)])
def test_steps_of_a_row(run: Any, steps: Any, same: Any) -> None:
    out: list[Any] = []
    view = f"x.tiled_view(4, traversal_steps={steps})"
    run(f"@ct.kernel\ndef kernel(x, out: ct.Constant):\n    out.append({view}.load(2))\n", torch.arange(16), out)
    same(out[0], torch.arange(6, 10))


@pytest.mark.parametrize(
    "view",
    [
        CUBE.transpose(0, 2),
        CUBE[:, 1:5, 2:],
        CUBE[2:3].expand(4, 6, 10),
        CUBE[::2],
        torch.zeros(8, 8)[1:1],
        CUBE[..., ::3],
    ],
    ids=lambda v: str(tuple(v.shape)) + str(v.stride()),
)
def test_views_of_a_storage(run: Any, view: Any) -> None:
    out: list[Any] = []
    rank = view.dim()
    index = ", ".join(["0"] * rank)
    text = f"""
    @ct.kernel
    def kernel(x, out: ct.Constant):
        out.append(x.shape + x.strides)
        if x.shape[0] > 0:
            out.append(ct.load(x, ({index}), {(2,) * rank}))
            out.append(ct.gather(x, ({", ".join(["1"] * rank)})))
    """
    run(text, view, out)
    assert [n.value for n in out[0]] == [*view.shape, *view.stride()]
    if view.shape[0]:
        assert torch.equal(out[1].values, view[(slice(0, 2),) * rank])
        assert out[2].values.item() == view[(1,) * rank].item()


# --- chosen elements


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("ct.gather(x, (r, c))", PLANE[[5, 0, 3, 1], [9, 0, 2, 8]]),
        ("ct.gather(x, (r[:, None], c[None, :]))", PLANE[[5, 0, 3, 1]][:, [9, 0, 2, 8]]),
        ("ct.gather(x, (2, c))", PLANE[2, [9, 0, 2, 8]]),
        ("ct.gather(x, (r - 1, c))", [49, 0, 22, 8]),
        ("ct.gather(x, (r + 1, c))", [0, 10, 42, 28]),
        ("ct.gather(x, (r, c + 1), padding_value=-7)", [-7, 1, 33, 19]),
        ("ct.gather(x, (r, c), mask=c > 2)", [59, 0, 0, 18]),
        ("ct.gather(x, (r, c), mask=c > 2, padding_value=r)", [59, 0, 3, 18]),
        ("ct.gather(x, (r, c), mask=False)", [0, 0, 0, 0]),
        ("ct.gather(x, (r, c), mask=True, check_bounds=False)", [59, 0, 32, 18]),
        ("ct.gather(x, (r + 9, c), mask=r > 9, check_bounds=False)", [0, 0, 0, 0]),
        ("ct.gather(x, (r.astype(ct.uint8), c.astype(ct.int64)))", [59, 0, 32, 18]),
        ("ct.gather(x, (1, 1))", 11),
        ("ct.gather(x, (r - 1, c), padding_value=i16)", [49, 4, 22, 8]),
    ],
)
def test_gather(run: Any, expression: str, expected: Any, same: Any) -> None:
    out: list[Any] = []
    run(
        f"""
        @ct.kernel
        def kernel(x, out: ct.Constant):
            r, c = ct.astile((5, 0, 3, 1), dtype=ct.int32), ct.astile((9, 0, 2, 8), dtype=ct.int32)
            i16 = ct.full((), 4, ct.int16)
            out.append({expression})
        """,
        PLANE, out,
    )  # fmt: skip
    assert out[0].dtype.name == "int32"
    same(out[0], expected)


def test_a_row_is_gathered_from_and_scattered_to_without_a_tuple(run: Any) -> None:
    x, y = torch.arange(5.0), torch.zeros(5)
    run(
        """
        @ct.kernel
        def kernel(x, y):
            at = ct.arange(8, dtype=ct.int32) - 2
            ct.scatter(y, at, ct.gather(x, 4 - at) + 1, mask=at != 2)
        """,
        x, y,
    )  # fmt: skip
    assert y.tolist() == [5.0, 4.0, 0.0, 2.0, 1.0]


def test_scatter(run: Any) -> None:
    y = torch.zeros(6, 10, dtype=torch.float32)
    run(
        """
        @ct.kernel
        def kernel(y):
            r = ct.arange(4, dtype=ct.int32)
            ct.scatter(y, (r[:, None] * 2 - 1, r[None, :]), r.astype(ct.float32) + 1)
            ct.scatter(y, (r, 9), 7)
            ct.scatter(y, (0, r), ct.full((4,), 2, ct.bfloat16), mask=r >= 2)
            ct.scatter(y, (5, 8), 3.0)
        """,
        y,
    )  # fmt: skip
    expected = torch.zeros(6, 10)
    for row in (1, 3, 5):
        expected[row, :4] = torch.arange(1.0, 5.0)
    expected[:4, 9] = 7
    expected[0, 2:4] = 2
    expected[5, 8] = 3
    assert torch.equal(y, expected)


def test_advanced_indexing(run: Any, same: Any) -> None:
    out: list[Any] = []
    y = torch.zeros(6, 10, dtype=torch.int32)
    run(
        """
        @ct.kernel
        def kernel(x, y, out: ct.Constant, start):
            rows = ct.astile((5, 0, 7, -1), dtype=ct.int32)
            zero = ct.PaddingMode.ZERO
            out.append(ct.load_advanced_indexing(x, (rows, ct.Slice(start, 4)), padding_mode=zero))
            out.append(ct.load_advanced_indexing(x, (ct.Slice(4, 4), rows), padding_mode=zero))
            ct.store_advanced_indexing(y, (rows, ct.Slice(start, 4)), out[0] * 2)
        """,
        PLANE, y, out, 8,
    )  # fmt: skip
    same(out[0], [[58, 59, 0, 0], [8, 9, 0, 0], [0] * 4, [0] * 4])
    same(out[1], [[45, 40, 47, 0], [55, 50, 57, 0], [0] * 4, [0] * 4])
    expected = torch.zeros(6, 10, dtype=torch.int32)
    expected[[5, 0], 8:] = PLANE[[5, 0], 8:] * 2
    assert torch.equal(y, expected)


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ct.load_advanced_indexing(x, (ct.Slice(0, 2), ct.Slice(0, 2)))", "types"),
        ("ct.load_advanced_indexing(x, (r, r))", "types"),
        ("ct.load_advanced_indexing(x, (r[:, None], ct.Slice(0, 2)))", "types"),
        ("ct.load_advanced_indexing(x, (r.astype(ct.float32), ct.Slice(0, 2)))", "types"),
        ("ct.load_advanced_indexing(x, (r, ct.Slice(0, 3)))", "tile"),
        ("ct.load_advanced_indexing(x, (r, ct.Slice(0, n)))", "tile"),
        ("ct.load_advanced_indexing(x, (r, ct.Slice(12, 4)))", "outside"),
        ("ct.load_advanced_indexing(x, (r + 6, ct.Slice(0, 4)))", "outside"),
        ("ct.store_advanced_indexing(x, (r, ct.Slice(0, 4)), ct.zeros((4, 4), ct.float32))", "types"),
        ("ct.store_advanced_indexing(x, (r, ct.Slice(0, 4)), ct.zeros((4, 2), ct.int32))", "shapes"),
        ("ct.gather(x, r)", "shapes"),
        ("ct.gather(x, (r, r.astype(ct.float32)))", "types"),
        ("ct.gather(x, (r, ct.arange(2, dtype=ct.int32)))", "shapes"),
        ("ct.gather(x, (r, r), mask=r)", "types"),
        ("ct.gather(x, (r, r), mask=ct.arange(2, dtype=ct.int32) > 0)", "shapes"),
        ("ct.gather(x, (r, r), padding_value=0.5)", "types"),
        ("ct.gather(x, (r, r), padding_value=r.astype(ct.int64))", "types"),
        ("ct.gather(x, (r, r), padding_value=ct.zeros((2,), ct.int32))", "shapes"),
        ("ct.scatter(x, (r, r), 2**40)", "types"),
        ("ct.scatter(x, (r, r), ct.zeros((2, 4), ct.int32))", "shapes"),
        ("ct.load(x, (0,), (2, 2))", "shapes"),
        ("ct.load(x, (0, 0), (2,))", "shapes"),
        ("ct.load(x, (0, 0.0), (2, 2))", "types"),
        ("ct.load(x, (0, True), (2, 2))", "types"),
        ("ct.load(x, (0, r), (2, 2))", "types"),
        ("ct.load(x, (0, 0), (2, n))", "tile"),
        ("ct.load(x, (0, 0), (2, 3))", "tile"),
        ("ct.load(x, (0, 0), (2, 2), order=(0, 0))", "shapes"),
        ("ct.load(x, (0, 0), (2, 2), latency=11)", "types"),
        ("ct.load(x, (0, 0), (2, 2), padding_mode=0)", "types"),
        ("ct.store(x, (0, 0), ct.zeros((4,), ct.int32))", "shapes"),
        ("ct.store(x, (0, 0), 1.5)", "types"),
        ("ct.store(x, (0, 0), 2**31)", "types"),
        ("ct.load(r, (0,), (2,))", "types"),
        ("x[0]", "types"),
        ("x.tiled_view((2, 2), traversal_steps=(0, 1))", "shapes"),
        ("x.tiled_view((2, 2)).store((0, 0), ct.zeros((4, 2), ct.int32))", "shapes"),
        ("ct.num_tiles(x, 0, (2,))", "shapes"),
        ("ct.num_tiles(x, 2, (2, 2))", "shapes"),
        ("x.slice(2, 0, 1)", "shapes"),
    ],
)
def test_accesses_that_do_not_fit(run: Any, statement: str, rule: str) -> None:
    text = f"""
    @ct.kernel
    def kernel(x, n):
        r = ct.arange(4, dtype=ct.int32)
        {statement}  # here
    """
    assert run.error(text, PLANE.clone(), 2).rule == rule


# --- slices


def test_slices_of_an_array(run: Any, same: Any) -> None:
    out: list[Any] = []
    x = PLANE.clone()
    run(
        """
        @ct.kernel
        def kernel(x, first, out: ct.Constant):
            part = x.slice(1, first, first + 5)
            out.append(part.shape)
            out.append(ct.load(part, (0, 0), (2, 4)))
            out.append(ct.load(part.slice(axis=0, start=1, stop=3), (0, 1), (2, 4), padding_mode=ct.PaddingMode.ZERO))
            ct.store(part.slice(-1, 4, 5), (5, 0), 0)
            ct.zeros((x.slice(0, 1, 5).shape[0],), ct.int32)
            out.append(x.slice(0, 6, 6).shape)
            out.append(ct.gather(part, (0, 5)))
        """,
        x, 3, out,
    )  # fmt: skip
    assert [n.value for n in out[0]] == [6, 5]
    same(out[1], PLANE[0:2, 3:7])
    same(out[2], [[17, 0, 0, 0], [27, 0, 0, 0]])
    assert x[5, 7] == 0
    assert (x != PLANE).sum() == 1
    assert out[3][0] == 0
    assert out[4].value == 0


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11), (11, 11)])
def test_slices_outside_an_array(run: Any, start: int, stop: int) -> None:
    text = f"@ct.kernel\ndef kernel(x):\n    x.slice(1, {start}, {stop})  # here\n"
    assert run.error(text, PLANE).rule == "outside"


# --- atomic operations

OLD, NEW = [5, -3, 7, 12], [3, 4, -7, 12]
ATOMIC = {
    "add": lambda old, new: old + new, "max": max, "min": min, "and": lambda old, new: old & new,
    "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new, "xchg": lambda old, new: new,
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMIC)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_atomic_operations(run: Any, name: str, dtype: Any, same: Any) -> None:
    high = (1 << (8 * dtype.itemsize)) - 1
    old, new = OLD, NEW
    if str(dtype).startswith("torch.uint"):
        old, new = ([abs(v) for v in values] for values in (OLD, NEW))
    x, update, out = torch.tensor(old).to(dtype), torch.tensor(new).to(dtype), []
    wanted = [
        ATOMIC[name](a, b) & high if high and min(old) >= 0 else ATOMIC[name](a, b)
        for a, b in zip(old, new, strict=True)
    ]
    run(
        f"""
        @ct.kernel
        def kernel(x, update, out: ct.Constant):
            out.append(ct.atomic_{name}(x, ct.arange(4, dtype=ct.int32), ct.load(update, (0,), (4,))))
        """,
        x, update, out,
    )  # fmt: skip
    same(out[0], old)
    assert x.tolist() == wanted
    if name != "xchg":
        y = torch.tensor(old).to(dtype)
        run(
            f"@ct.kernel\ndef kernel(y, u):\n    y.tiled_view(4).atomic_store_{name}(0, ct.load(u, (0,), (4,)))\n",
            y,
            update,
        )
        assert y.tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_atomic_sums_of_floats(run: Any, dtype: Any) -> None:
    x = torch.tensor([1.0, 2.0]).to(dtype)
    run("@ct.kernel\ndef kernel(x):\n    ct.atomic_add(x, ct.bid(0) % 2, 0.5)\n", x, grid=(6,))
    assert x.tolist() == [2.5, 3.5]


def test_atomic_operations_on_one_element_follow_one_another(run: Any, same: Any) -> None:
    x, out = torch.tensor([10, 20], dtype=torch.int32), []
    run(
        """
        @ct.kernel
        def kernel(x, out: ct.Constant):
            at = ct.astile((0, 0, 1, 0), dtype=ct.int32)
            out.append(ct.atomic_add(x, at, ct.astile((1, 2, 3, 4), dtype=ct.int32)))
        """,
        x, out,
    )  # fmt: skip
    same(out[0], [10, 11, 20, 13])
    assert x.tolist() == [17, 23]


def test_compare_and_swap(run: Any, same: Any) -> None:
    x, out = torch.tensor([[6, 1], [6, 2]], dtype=torch.int32), []
    run(
        """
        @ct.kernel
        def kernel(x, out: ct.Constant):
            at = ct.arange(4, dtype=ct.int32)
            out.append(ct.atomic_cas(x, (at // 2, at % 2), 6, at + 30))
            out.append(ct.atomic_cas(x, (at, 0), at + 7, 0))
        """,
        x, out,
    )  # fmt: skip
    same(out[0], [6, 1, 6, 2])
    assert x.tolist() == [[30, 1], [32, 2]]
    # outside the array what was expected comes back
    same(out[1], [30, 32, 9, 10])


def test_what_an_atomic_operation_hands_back_for_an_index_outside_is_undetermined(run: Any) -> None:
    text = """
    @ct.kernel
    def kernel(x, y):
        at = ct.arange(4, dtype=ct.int32)
        old = ct.atomic_add(x, at, 1)
        ct.store(y, (0,), ct.where(at < 2, old, -1))
        ct.store(y, (0,), old)  # here
    """
    x, y = torch.tensor([5, 6], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert run.error(text, x, y).rule == "undetermined"
    assert (x.tolist(), y.tolist()) == ([6, 7], [5, 6, -1, -1])


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ct.atomic_add(i, 0, 1.5)", "types"),
        ("ct.atomic_and(l, 0, 1)", "types"),
        ("ct.atomic_or(i, 0, ct.full((), 1, ct.int64))", "types"),
        ("ct.atomic_add(i, 0, 2**31 - 1)", "overflow"),
        ("ct.atomic_add(i, ct.arange(4, dtype=ct.int32), ct.zeros((2,), ct.int32))", "shapes"),
        ("ct.atomic_add(i, 9, 1, check_bounds=False)", "outside"),
        ("i.tiled_view(4).atomic_store_add(1, 1)", "outside"),
    ],
)
def test_atomic_operations_that_do_not_fit(run: Any, statement: str, rule: str) -> None:
    text = f"@ct.kernel\ndef kernel(i, l):\n    {statement}  # here\n"
    assert run.error(text, torch.ones(4, dtype=torch.int32), torch.ones(4, dtype=torch.int64)).rule == rule


# --- arguments


def test_arguments(run: Any) -> None:
    import numpy

    out: list[Any] = []
    run(
        """
        from typing import Annotated
        Static = Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(-1,), static_stride_dims=(0,))]
        Wide = Annotated[list, ct.ListAnnotation(element=ct.IndexedWithInt64)]
        @ct.kernel
        def kernel(x: ct.IndexedWithInt64, y: Static, big: ct.ScalarInt64, n, flag, scale, size: ct.Constant[int],
                   bare: ct.Constant, many, wide: Wide, out: ct.Constant):
            ct.zeros((size, y.shape[1], y.strides[0] // 2, bare), ct.int32)
            out += [x.shape[0], y.shape[0], big, n, flag, scale, many[n - 7].shape[0], wide[0].shape[0], len(many)]
            out.append(ct.load(many[1], (0,), (2,)))
        """,
        torch.zeros(3), torch.zeros(3, 8)[:, :4], 2**40, 7, True, 0.1, 4, 2, [torch.zeros(5), torch.arange(2)],
        [torch.zeros(6)], out,
    )  # fmt: skip
    shapes = [
        (v.dtype.name, v.value if v.dtype.is_integral or v.dtype.name == "bool_" else v.values.item()) for v in out[:8]
    ]
    assert shapes == [
        ("int64", 3), ("int32", 3), ("int64", 2**40), ("int32", 7), ("bool_", True), ("float32", numpy.float32(0.1)),
        ("int32", 5), ("int64", 6),
    ]  # fmt: skip
    assert out[8] == 2
    assert out[9].values.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((torch.zeros(2), 2**31), "overflow"),
        ((torch.zeros(2),), "types"),
        ((torch.zeros(2), "a"), InterpreterError),
        ((torch.zeros(2), None), InterpreterError),
    ],
    ids=["too large", "too few", "a string", "None"],
)
def test_arguments_that_do_not_fit(run: Any, arguments: Any, error: Any) -> None:
    text = "@ct.kernel\ndef kernel(x, n):\n    pass\n"
    if isinstance(error, str):
        assert run.error(text, *arguments).rule == error
    else:
        with pytest.raises(error):
            run(text, *arguments)


def test_sizes_that_int32_cannot_hold_need_an_annotation(run: Any) -> None:
    storage = torch.zeros(1, dtype=torch.int8)
    x = storage.as_strided((2**31, 1), (0, 1))
    assert run.error("@ct.kernel\ndef kernel(x):\n    pass\n", x).rule == "overflow"
    run("@ct.kernel\ndef kernel(x: ct.IndexedWithInt64):\n    ct.load(x, (2**20, 0), (4, 1))\n", x)


def test_an_offset_that_int32_cannot_hold_needs_an_annotation() -> None:
    from ssmgen.interpreter.arrays import Array
    from ssmgen.interpreter.dtypes import int64
    from ssmgen.interpreter.memory import Memory, Shadow

    tensor = torch.empty((2**17, 2**15), dtype=torch.int8, device="meta")
    shadow = Shadow(tensor, 1, tensor, False)
    assert Array(tensor, "x", Memory(), shadow).slice(0, 2**16 - 1, 2**17).tensor.shape[0] == 2**16 + 1
    assert Array(tensor, "x", Memory(), shadow, int64).slice(0, 2**16, 2**17).tensor.shape[0] == 2**16
    with pytest.raises(SanitizerError) as caught:
        Array(tensor, "x", Memory(), shadow).slice(0, 2**16, 2**17)
    assert caught.value.rule == "overflow"
