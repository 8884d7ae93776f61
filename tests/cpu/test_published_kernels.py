"""Kernels that others published, run in the interpreter as they are: cuTile's samples, and TileGym's Mamba-2.

Neither is part of this repository. CUTILE_SAMPLES names cuTile's folder of samples, with the kernels in them, and
TILEGYM the folder that `tilegym/` lies in; without them there is nothing to run. A kernel that breaks a rule of
cuTile's has a test that says so.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen import interpreter  # noqa: E402
from ssmgen.errors import SanitizerError  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402

SAMPLES, TILEGYM = os.environ.get("CUTILE_SAMPLES"), os.environ.get("TILEGYM")
samples = pytest.mark.skipif(not SAMPLES, reason="CUTILE_SAMPLES names no folder of cuTile's samples")
tilegym = pytest.mark.skipif(not TILEGYM, reason="TILEGYM names no folder that contains tilegym/")

bfloat16, float16, float32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


@pytest.fixture(autouse=True)
def unwritten_memory_shows() -> Iterator[None]:
    """Every torch.empty of a test is unwritten until a kernel writes it."""
    # tensors are small: threads would only wait for each other
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with interpreter.watch():
        yield
    torch.set_num_threads(threads)


def standin(**members: Any) -> ModuleType:
    module = ModuleType("standin")
    vars(module).update(members)
    return module


@functools.cache
def load(path: Path) -> Any:
    """The file, with stand-ins for what only its host code needs."""
    around = {
        "cupy": standin(),
        "utils.benchmark": standin(report_benchmark=None),
        "tilegym.autotune": standin(is_autotune_disabled=lambda: True),
        "tilegym.backend": standin(register_impl=lambda *_, **__: lambda f: f),
        "tilegym.ops.cutile.utils": standin(next_power_of_2=None),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, module in around.items():
            patch.setitem(sys.modules, name, module)
        return interpreter.load_file(path)


def sample(name: str) -> Any:
    assert SAMPLES
    return load(Path(SAMPLES) / f"{name}.py")


def gym(name: str) -> Any:
    assert TILEGYM
    return load(Path(TILEGYM) / "tilegym" / "ops" / "cutile" / f"{name}.py")


def launch(module: Any, kernel: str, grid: tuple[int, ...], *arguments: Any) -> None:
    module.ct_launcher.launch(None, grid, getattr(module, kernel), arguments)


def normal(*shape: int, dtype: Any = float32, scale: float = 1.0) -> Any:
    return (torch.randn(shape) * scale).to(dtype)


def close(actual: Any, expected: Any, limit: float) -> None:
    """The largest error, as a part of the largest value, is within the limit."""
    error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max()
    print(f"error {float(error):.2g} of {limit:.2g}")
    assert error <= limit


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


# rounding of results, and of operands where a kernel rounds them
HALF, BRAIN, TENSOR_FLOAT, SINGLE = 2**-10, 2**-8, 2**-10, 1e-6


@samples
@pytest.mark.parametrize("kernel", ["vec_add_kernel_1d", "vec_add_kernel_1d_gather"])
@pytest.mark.parametrize("length", [128, 101])
def test_vector_addition(kernel: str, length: int) -> None:
    a, b, c = normal(length), normal(length), torch.empty(length)
    launch(sample("VectorAddition"), kernel, (cdiv(length, 32),), a, b, c, 32)
    assert torch.equal(c, a + b)


@samples
@pytest.mark.parametrize("kernel", ["vec_add_kernel_2d", "vec_add_kernel_2d_gather"])
@pytest.mark.parametrize("shape", [(32, 64), (21, 37)])
def test_matrix_addition(kernel: str, shape: tuple[int, int]) -> None:
    a, b, c = normal(*shape), normal(*shape), torch.empty(shape)
    launch(sample("VectorAddition"), kernel, (cdiv(shape[0], 8), cdiv(shape[1], 16)), a, b, c, 8, 16)
    assert torch.equal(c, a + b)


@samples
def test_quickstart() -> None:
    a, b, c = normal(96), normal(96), torch.empty(96)
    launch(sample("VectorAdd_quickstart"), "vector_add", (6,), a, b, c, 16)
    assert torch.equal(c, a + b)


@samples
@pytest.mark.parametrize("dtype", [float16, float32])
@pytest.mark.parametrize("shape", [(64, 32), (50, 23)])
def test_transpose(dtype: Any, shape: tuple[int, int]) -> None:
    x, y = normal(*shape, dtype=dtype), torch.empty(shape[::-1], dtype=dtype)
    launch(sample("Transpose"), "transpose_kernel", (cdiv(shape[0], 16), cdiv(shape[1], 16)), x, y, 16, 16)
    assert torch.equal(y, x.T)


@samples
@pytest.mark.parametrize(("kernel", "blocks"), [("matmul_kernel", None), ("persistent_matmul_kernel", 5)])
@pytest.mark.parametrize(("dtype", "limit"), [(float32, TENSOR_FLOAT), (float16, HALF)])
@pytest.mark.parametrize("shape", [(64, 48, 96), (150, 50, 70)])
def test_matmul(kernel: str, blocks: int | None, dtype: Any, limit: float, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype), torch.empty(m, n, dtype=dtype)
    grid = (blocks or cdiv(m, 16) * cdiv(n, 16),)
    launch(sample("MatMul"), kernel, grid, a, b, c, 16, 16, 32)
    close(c, a.double() @ b.double(), limit)


@samples
@pytest.mark.parametrize("dtype", [float16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_batch_matmul(dtype: Any) -> None:
    a, b = normal(2, 40, 50, dtype=dtype), normal(2, 50, 36, dtype=dtype)
    out_dtype = dtype if dtype is float16 else float32
    c = torch.empty(2, 40, 36, dtype=out_dtype)
    launch(sample("BatchMatMul"), "batch_matmul_kernel", (2, 3, 2), a, b, c, 16, 32, 16)
    close(c, a.double() @ b.double(), HALF if dtype is float16 else SINGLE)


@samples
@pytest.mark.parametrize("swizzled", [False, True])
def test_block_scaled_matmul(swizzled: bool) -> None:
    module, m, n, k = sample("BlockScaledMatMul"), 256, 128, 256
    a, a_scale = module.block_quantize(torch.rand(m, k), 32)
    b, b_scale = module.block_quantize(torch.rand(n, k), 32)
    c = torch.empty(m, n)
    scales = (a_scale, b_scale.T)
    if swizzled:
        scales = (module.swizzle_32_4_4(a_scale), module.swizzle_32_4_4(b_scale))
    launch(module, "block_scaled_matmul_kernel", (2,), a, scales[0], b.T, scales[1], c, 128, 128, 128, 32)
    whole_a, whole_b = (
        q.double() * s.to(float32).double().repeat_interleave(32, 1) for q, s in ((a, a_scale), (b, b_scale))
    )
    close(c, whole_a @ whole_b.T, SINGLE)


@samples
@pytest.mark.parametrize("dtype", [float16, float32])
def test_all_gather_matmul(dtype: Any) -> None:
    peers = [normal(32, 64, dtype=dtype) for _ in range(3)]
    w, out = normal(64, 48, dtype=dtype), torch.empty(96, 48)
    launch(sample("AllGatherMatmul"), "gather_matmul_kernel", (6, 3), peers, w, out, 16, 16, 32)
    close(out, torch.cat(peers).double() @ w.double(), TENSOR_FLOAT if dtype is float32 else SINGLE)


def attention(q: Any, k: Any, v: Any, causal: bool, position: int) -> Any:
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = torch.arange(q.shape[2])[:, None] + position, torch.arange(k.shape[2])[None]
        scores = scores.masked_fill(rows < columns, -math.inf)
    return scores.softmax(-1) @ v.repeat_interleave(group, 1)


def run_attention(q: Any, k: Any, v: Any, causal: bool, position: int) -> Any:
    out = torch.empty_like(q)
    batch, heads, length, width = q.shape
    launch(
        sample("AttentionFMHA"), "fmha_kernel", (cdiv(length, 16), batch * heads), q, k, v, out,
        1 / math.sqrt(width), position, width, heads, 16, 16, heads // k.shape[1], causal, k.shape[2] % 16 == 0,
    )  # fmt: skip
    return out


@samples
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "position"), [(48, 48, 0), (16, 64, 48), (21, 48, 16)], ids=["square", "late", "odd"]
)
@pytest.mark.parametrize(("dtype", "limit"), [(float16, HALF), (bfloat16, BRAIN)])
def test_attention(dtype: Any, limit: float, queries: int, keys: int, position: int, causal: bool) -> None:
    q = normal(2, 4, queries, 16, dtype=dtype)
    k, v = (normal(2, 2, keys, 16, dtype=dtype) for _ in range(2))
    close(run_attention(q, k, v, causal, position), attention(q, k, v, causal, position), 2 * limit)


@samples
@pytest.mark.parametrize("causal", [False, True])
def test_attention_counts_on_padding_that_no_mode_determines(causal: bool) -> None:
    """Keys and values beyond their array are loaded with no padding mode, and masked by adding -inf, by p = 0."""
    q, k, v = (normal(1, 2, 40, 16, dtype=float16) for _ in range(3))
    with pytest.raises(SanitizerError) as caught:
        run_attention(q, k, v, causal, 0)
    assert caught.value.rule == "undetermined"


@samples
def test_fft() -> None:
    module, factors, packed = sample("FFT"), (2, 4, 8), 16
    n = math.prod(factors)
    x = torch.randn(2, n, dtype=torch.complex64)
    tables = module.make_twiddles(factors, float32, "cpu")
    source = torch.view_as_real(x).reshape(2, 2 * n // packed, packed).contiguous()
    y = torch.empty_like(source)
    launch(module, "fft_kernel", (1,), source, y, *tables, n, *factors, 2, packed)
    expected = torch.view_as_real(torch.fft.fft(x.to(torch.complex128)))
    # three stages, each a sum of up to 16 products in float32
    close(y.reshape(2, n, 2), expected, 4 * SINGLE)


@samples
def test_fft_over_its_own_grid_loads_tiles_wholly_outside() -> None:
    """Its host launches a block for each row of the batch, and each block takes the whole batch as one tile."""
    module, n = sample("FFT"), 8
    tables = module.make_twiddles((2, 2, 2), float32, "cpu")
    source = normal(2, n, 2)
    with pytest.raises(SanitizerError) as caught:
        launch(module, "fft_kernel", (2,), source, torch.empty(2, n, 2), *tables, n, 2, 2, 2, 2, 2)
    assert caught.value.rule == "outside"


@samples
@pytest.mark.parametrize(("dtype", "limit"), [(float32, SINGLE), (bfloat16, BRAIN)])
@pytest.mark.parametrize(("columns", "tile"), [(64, 32), (50, 32)])
def test_layer_norm(dtype: Any, limit: float, columns: int, tile: int) -> None:
    module, rows, groups = sample("LayerNorm"), 10, 4
    x, dy = normal(rows, columns, dtype=dtype) - 2.3, normal(rows, columns, dtype=dtype)
    weight, bias = normal(columns, dtype=dtype), normal(columns, dtype=dtype)
    y, mean, rstd = torch.empty_like(x), torch.empty(rows), torch.empty(rows)
    launch(module, "layer_norm_fwd", (rows,), x, weight, bias, y, mean, rstd, 1e-5, tile)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    expected = torch.nn.functional.layer_norm(wide[0], (columns,), wide[1], wide[2], 1e-5)
    close(y, expected.detach(), limit)

    dx, dw, db = torch.empty_like(x), torch.zeros(groups, columns), torch.zeros(groups, columns)
    locks = torch.zeros(groups, dtype=torch.int32)
    launch(
        module, "layer_norm_bwd_dx_partial_dwdb", (rows,), dx, dy, dw, db, x, weight, mean, rstd, locks, tile
    )  # fmt: skip
    whole_dw, whole_db = torch.empty_like(weight), torch.empty_like(bias)
    launch(module, "layer_norm_bwd_dwdb", (cdiv(columns, tile),), dw, db, whole_dw, whole_db, 2, tile)
    gradients = torch.autograd.grad(expected, wide, dy.double())
    for actual, gradient in zip((dx, whole_dw, whole_db), gradients, strict=True):
        close(actual, gradient, 2 * limit)


@samples
@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_mixture_of_experts(dtype: Any) -> None:
    module, tokens, top, experts, hidden, inner, tile = sample("MoE"), 12, 2, 4, 40, 24, 16
    limit = HALF if dtype is float16 else BRAIN
    x = normal(tokens, hidden, dtype=dtype)
    up, down = normal(experts, 2 * inner, hidden, dtype=dtype), normal(experts, hidden, inner, dtype=dtype)
    chosen = torch.stack([torch.randperm(experts)[:top] for _ in range(tokens)])
    weights = torch.rand(tokens * top).to(dtype)
    ids, owners = module.moe_align_tile_size_torch(chosen, tile, experts)
    of_row = chosen.reshape(-1)

    first = torch.empty(tokens * top, 2 * inner, dtype=dtype)
    grid = (len(ids) // tile * cdiv(2 * inner, tile),)
    launch(module, "fused_moe_kernel", grid, x, up, first, weights, ids, owners, top, False, tile, tile, tile)
    wide = torch.einsum("rk,rnk->rn", x.double().repeat_interleave(top, 0), up.double()[of_row])
    close(first, wide, limit)

    second = torch.empty(tokens * top, inner, dtype=dtype)
    gate, value = first.chunk(2, -1)
    launch(module, "silu_and_mul_kernel", (tokens * top,), gate, value, second, 32)
    close(second, torch.nn.functional.silu(gate.double()) * value.double(), limit)

    third = torch.empty(tokens * top, hidden, dtype=dtype)
    grid = (len(ids) // tile * cdiv(hidden, tile),)
    launch(module, "fused_moe_kernel", grid, second, down, third, weights, ids, owners, 1, True, tile, tile, tile)
    wide = torch.einsum("rk,rnk->rn", second.double(), down.double()[of_row]) * weights.double()[:, None]
    close(third, wide, limit)


BATCH, TOKENS, HEADS, GROUPS, CHUNK, PARTIALS = 2, 48, 4, 2, 16, 128
CHUNKS = TOKENS // CHUNK


@dataclass
class Mamba:
    """The operands of one scan in TileGym's names, and what its kernels made of them so far."""

    dtype: Any
    width: int
    state: int

    def __post_init__(self) -> None:
        self.x = normal(BATCH, TOKENS, HEADS, self.width, dtype=self.dtype)
        self.b, self.c = (normal(BATCH, TOKENS, GROUPS, self.state, dtype=self.dtype, scale=0.4) for _ in range(2))
        self.a, self.d = -torch.rand(HEADS) - 0.2, normal(HEADS)
        self.dt = torch.rand(BATCH, TOKENS, HEADS) * 0.3 + 0.02
        self.first = normal(BATCH, HEADS, self.width, self.state)

    def expected(self) -> tuple[Any, Any]:
        return reference.mamba_chunk_scan_combined(
            self.x, self.dt, self.a, self.b, self.c, D=self.d, initial_states=self.first
        )

    def cumsum(self, block: int = 4) -> None:
        self.decay_bth, self.decay = torch.empty_like(self.dt), torch.empty(BATCH, HEADS, TOKENS)
        self.dt_bht = torch.empty(BATCH, HEADS, TOKENS)
        launch(
            gym("mamba2"), "chunk_cumsum_kernel", (CHUNKS, cdiv(HEADS, block), BATCH),
            self.a, self.dt, self.decay_bth, self.decay, self.dt_bht, CHUNK, block,
        )  # fmt: skip

    def states(self, swap: bool, heads_first: bool, narrow: Any = None, kept: Any = None, same: bool = False) -> None:
        """`narrow` is a second type to keep chunk states in; `same` passes one array for both, as TileGym's host."""
        shape = (BATCH, HEADS, CHUNKS, self.width, self.state)
        self.hiddens = torch.empty(shape, dtype=kept or self.dtype)
        self.narrow = torch.empty(shape if narrow else (1,) * 5, dtype=narrow or self.dtype)
        self.last = torch.empty_like(self.first)
        decays = (self.dt_bht, self.decay) if heads_first else (self.dt, self.decay_bth)
        launch(
            gym("mamba2"), "fwd_pass_state_kernel", (self.width // 16, self.state // 16, BATCH * HEADS),
            self.x, self.b, *decays, self.first, self.hiddens, self.hiddens if same else self.narrow, self.last,
            CHUNK, 16, 16, HEADS // GROUPS, 4, 2, 2, swap, heads_first, narrow is not None,
        )  # fmt: skip

    def output(self, swap: bool, persistent: bool) -> None:
        self.out = torch.empty_like(self.x)
        latencies = (3, 4) if swap else (4,)
        launch(
            gym("mamba2"), "compute_out_swap_kernel" if swap else "compute_out_kernel",
            (5,) if persistent else (CHUNKS, self.width // 16, BATCH * HEADS),
            self.x, self.b, self.c, self.d, self.dt_bht, self.decay, self.hiddens, self.out,
            CHUNK, 16, 16, HEADS // GROUPS, self.state, *latencies, persistent,
        )  # fmt: skip


@tilegym
@pytest.mark.parametrize("block", [4, 8], ids=["whole", "over the end"])
def test_mamba_cumsum(block: int) -> None:
    scan = Mamba(float32, 16, 16)
    scan.cumsum(block)
    steps = (scan.dt * scan.a).double().reshape(BATCH, CHUNKS, CHUNK, HEADS)
    expected = steps.cumsum(2).reshape(BATCH, TOKENS, HEADS) / math.log(2)
    close(scan.decay_bth, expected, SINGLE)
    assert torch.equal(scan.decay, scan.decay_bth.transpose(1, 2))
    assert torch.equal(scan.dt_bht, scan.dt.transpose(1, 2))


@tilegym
@pytest.mark.parametrize("swap", [False, True], ids=["", "swap"])
@pytest.mark.parametrize("heads_first", [False, True], ids=["bth", "bht"])
@pytest.mark.parametrize(("dtype", "narrow"), [(float32, None), (bfloat16, None), (float32, bfloat16)])
def test_mamba_states(swap: bool, heads_first: bool, dtype: Any, narrow: Any) -> None:
    scan = Mamba(dtype, 32, 32)
    scan.cumsum()
    scan.states(swap, heads_first, narrow)
    error = reference.state_error(scan.last, scan.expected()[1])
    print(f"error {error:.2g}")
    assert error <= (2e-6 if dtype is float32 else BRAIN)
    if narrow:
        assert torch.equal(scan.narrow, scan.hiddens.to(narrow))


@tilegym
@pytest.mark.parametrize("persistent", [False, True], ids=["grid", "persistent"])
@pytest.mark.parametrize("swap", [False, True], ids=["", "swap"])
@pytest.mark.parametrize(("dtype", "limit"), [(float32, TENSOR_FLOAT), (bfloat16, BRAIN)])
def test_mamba_output(swap: bool, persistent: bool, dtype: Any, limit: float) -> None:
    scan = Mamba(dtype, 32, 32)
    scan.cumsum()
    scan.states(swap=swap, heads_first=True)
    scan.output(swap, persistent)
    error = reference.error(scan.out, scan.expected()[0], block=CHUNK)
    print(f"error {error:.2g}")
    assert error <= limit


@tilegym
def test_mamba_states_share_one_array_with_an_unused_one() -> None:
    """TileGym's host passes its chunk states twice where it wants no narrow copy; arrays may not alias."""
    scan = Mamba(bfloat16, 16, 16)
    scan.cumsum()
    with pytest.raises(SanitizerError) as caught:
        scan.states(swap=False, heads_first=True, same=True)
    assert caught.value.rule == "alias"


@tilegym
@pytest.mark.parametrize(("grouped", "persistent"), [(False, False), (True, True)], ids=["per head", "grouped"])
@pytest.mark.parametrize(
    ("dtype", "width", "block", "limit"),
    [(float32, 32, 16, 4e-6), (float32, 64, 64, 4e-6), (bfloat16, 32, 32, 2 * BRAIN)],
)
def test_mamba_backward(dtype: Any, width: int, block: int, limit: float, *, grouped: bool, persistent: bool) -> None:
    scan, kernels, state, tiles = Mamba(dtype, width, 32), gym("mamba2"), 32, (width // block, 2)
    scan.cumsum()
    scan.states(swap=False, heads_first=True, kept=float32, narrow=bfloat16 if dtype is bfloat16 else None)
    dout, dlast = normal(*scan.x.shape, dtype=dtype), normal(*scan.first.shape)
    sizes, spread = (CHUNK, 16, block, HEADS // GROUPS), (5,)

    dhiddens = torch.empty(BATCH, HEADS, CHUNKS, width, state, dtype=dtype)
    partials, dfirst = torch.empty(BATCH, HEADS, CHUNKS, *tiles, PARTIALS), torch.empty_like(scan.first)
    launch(
        kernels, "bwd_pass_state_kernel", (*tiles, BATCH * HEADS), scan.c, scan.decay_bth, dout, dlast,
        dhiddens, scan.hiddens, partials, dfirst, *sizes, 4, 1, 3, 3, True,
    )  # fmt: skip
    partials = partials.view(BATCH, HEADS, CHUNKS, -1)

    dx, dd = torch.empty_like(scan.x), torch.empty(BATCH, HEADS, CHUNKS)
    half_ddt, half_decay = torch.empty_like(scan.dt), torch.empty_like(scan.dt)
    dcb = torch.empty(BATCH, TOKENS, HEADS, CHUNK, dtype=dtype)
    launch(
        kernels, "compute_dd_dcb_dx_kernel", spread if persistent else (CHUNKS, HEADS, BATCH),
        scan.x, scan.b, scan.c, scan.d, scan.dt_bht, scan.decay, dout, dhiddens,
        dx, half_ddt, dd, half_decay, dcb, *sizes, state, width, 4, 1, 5, 5, persistent,
    )  # fmt: skip

    da, ddt = torch.empty(BATCH, HEADS, CHUNKS), torch.empty_like(scan.dt)
    if grouped:
        db, dc = (torch.zeros(BATCH, TOKENS, GROUPS, state) for _ in range(2))
    else:
        db, dc = (torch.empty(BATCH, TOKENS, HEADS, state, dtype=dtype) for _ in range(2))
    launch(
        kernels, "compute_da_db_dc_ddt_kernel", spread if persistent else (HEADS, CHUNKS, BATCH),
        scan.x, scan.a, scan.b, scan.c, scan.dt_bht, scan.decay, scan.narrow if dtype is bfloat16 else scan.hiddens,
        dout, dhiddens, dcb, half_decay, partials, da, db, dc, half_ddt, ddt,
        *sizes, state, width, partials.shape[-1], 3, 1, persistent, grouped,
    )  # fmt: skip
    if not grouped:
        db, dc = (t.double().reshape(BATCH, TOKENS, GROUPS, -1, state).sum(3) for t in (db, dc))

    leaves = [t.double().requires_grad_() for t in (scan.x, scan.a, scan.b, scan.c, scan.d, scan.dt, scan.first)]
    x, a, b, c, d, dt, first = leaves
    outputs = reference.mamba_chunk_scan_combined(x, dt, a, b, c, D=d, initial_states=first)
    expected = torch.autograd.grad(outputs, leaves, (dout.double(), dlast.double()))
    actual = (dx, da.sum((0, 2)), db, dc, dd.sum((0, 2)), ddt, dfirst)
    for one, other in zip(actual, expected, strict=True):
        close(one, other, limit)


def delta_rule(  # noqa: PLR0913
    q: Any, k: Any, v: Any, gate: Any, beta: Any, first: Any, *, normed: bool
) -> tuple[Any, Any]:
    """The gated delta rule, one token after another in fp64: output (B, T, H, V) and state (B, H, K, V)."""
    q, k, v, gate, beta, h = (t.double() for t in (q, k, v, gate, beta, first))
    if normed:
        q, k = (t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for t in (q, k))
    q, k = (t.repeat_interleave(v.shape[2] // t.shape[2], 2) for t in (q / math.sqrt(q.shape[-1]), k))
    rows = []
    for t in range(q.shape[1]):
        h = h * gate[:, t, :, None, None].exp()
        change = (v[:, t] - torch.einsum("bhkv,bhk->bhv", h, k[:, t])) * beta[:, t, :, None]
        h = h + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        rows.append(torch.einsum("bhkv,bhk->bhv", h, q[:, t]))
    return torch.stack(rows, 1), h


def delta_operands(tokens: int, key_heads: int, heads: int, dtype: Any) -> tuple[Any, ...]:
    q, k = (normal(BATCH, tokens, key_heads, 16, dtype=dtype) for _ in range(2))
    v = normal(BATCH, tokens, heads, 32, dtype=dtype)
    gate, beta = -torch.rand(BATCH, tokens, heads), torch.rand(BATCH, tokens, heads)
    return q, k, v, gate, beta, normal(BATCH, heads, 16, 32)


@tilegym
@pytest.mark.parametrize(
    ("dtype", "normed", "limit"), [(float32, False, SINGLE), (float32, True, SINGLE), (bfloat16, True, BRAIN)]
)
@pytest.mark.parametrize(
    ("kernel", "tokens", "grid", "last"),
    [("", 6, (BATCH * HEADS, 2), 6), ("_persistent", 6, (5,), 6), ("_decode_vstream", 1, (BATCH * HEADS, 2), 8)],
)  # fmt: skip
def test_recurrent_delta_rule(  # noqa: PLR0913
    kernel: str, tokens: int, grid: tuple[int, ...], last: int, *, dtype: Any, limit: float, normed: bool
) -> None:
    operands = delta_operands(tokens, 2, HEADS, dtype)
    out, state = torch.empty_like(operands[2]), torch.empty_like(operands[5])
    launch(
        gym("recurrent_gated_delta_rule"), f"_recurrent_gated_delta_rule_fwd_kernel{kernel}", grid, *operands[:5],
        out, operands[5], state, 1 / 4, True, True, normed, 16, 16, False, True, last,
    )  # fmt: skip
    for one, other in zip((out, state), delta_rule(*operands, normed=normed), strict=True):
        close(one, other, limit)


@tilegym
@pytest.mark.parametrize(
    ("scale", "normed"), [(0.02, False), (0.25, False), (1.0, True)], ids=["series", "rows", "normed"]
)
@pytest.mark.parametrize(
    ("tokens", "dtype", "limit"), [(32, bfloat16, 2 * BRAIN), (21, float32, 2 * TENSOR_FLOAT)], ids=["whole", "odd"]
)
def test_chunked_delta_rule(scale: float, normed: bool, tokens: int, dtype: Any, limit: float) -> None:
    """The triangular system solved as a series, row by row because its norm forbids that, and with keys of norm one."""
    q, k, v, gate, beta, first = delta_operands(tokens, HEADS, HEADS, dtype)
    beta, module, chunks = beta * scale, gym("chunk_gated_delta_rule"), cdiv(tokens, CHUNK)
    chunked = (BATCH, HEADS, chunks, CHUNK)
    keys, queries, decayed = (torch.empty(*chunked, 16, dtype=dtype) for _ in range(3))
    values, decay, out = torch.empty(*chunked, 32, dtype=dtype), torch.empty(chunked), torch.empty(*chunked, 32)
    launch(
        module, "_intra_chunk_prepare_kernel", (BATCH * HEADS, chunks), q, k, v, beta, gate,
        queries, keys, values, decayed, decay, tokens, 16, 32, 1 / 4, HEADS, normed, CHUNK, 16, 4, dtype is bfloat16,
    )  # fmt: skip
    state = torch.empty_like(first)
    launch(
        module, "_chunk_inter_recurrence_kernel", (BATCH * HEADS, 2), queries, keys, values, decayed, decay,
        out, first, state, chunks, 16, 32, HEADS, True, True, CHUNK, 16, 16,
    )  # fmt: skip
    out = out.reshape(BATCH, HEADS, -1, 32)[:, :, :tokens].transpose(1, 2)
    for one, other in zip((out, state), delta_rule(q, k, v, gate, beta, first, normed=normed), strict=True):
        close(one, other, limit)
