"""No index that a kernel forms leaves 32 bits: proven from what the generated host refuses, with sympy.

Kernels count in int32: tile indices times tile sizes, gathered indices, items of a persistent grid. Offsets in memory
are 64-bit products of these and of int32 strides. What bounds them all are the rows and tokens that the host refuses to
exceed (`ssmgen.limits`). Every integer expression of every kernel stands in a table below, with its range in closed
form.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sympy as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssmgen import host_checks, limits, lock, plans, render, spec
from ssmgen.ops.base import Route
from ssmgen.ops.mamba_chunk_scan_combined import Dtypes, Operator, Options, Shape
from ssmgen.plans import PLANS, RouteSchedule
from ssmgen.stages.base import Array, Problem, Stage, round_up
from ssmgen.targets import target

MAX = 2**31 - 1
# what every backend takes: cuda-tile, the driver and the interpreter
MAX_GRID = (2**24 - 1, 65535, 65535)

# run-time sizes: rows, chunks of a row, and sequences of all rows together
B, C, N = sp.symbols("B C N", positive=True, integer=True)
Range = tuple[Any, Any]


@dataclass(frozen=True)
class Case:
    """A route of a model, and how its sequences are told: by row, or by offsets in a single row."""

    name: str
    problem: Problem
    schedule: RouteSchedule
    offsets: bool

    def __str__(self) -> str:
        told = "-cu_seqlens" if self.offsets else ""
        return f"{self.name}-{self.plan.name}{told}"

    @property
    def plan(self) -> plans.Plan:
        return next(
            p for p in PLANS.values() if (p.segmented, p.packed) == (self.problem.segmented, self.problem.packed)
        )

    @property
    def rows(self) -> Any:
        return sp.Integer(1) if self.offsets else B

    @property
    def sequences(self) -> Any:
        return N if self.offsets else B

    def axes(self) -> dict[str, Any]:
        """The lengths of arrays' axes; T is at most what its chunks hold."""
        s, this = self.problem.shape, self.problem
        sizes = {"H": s.heads, "G": s.groups, "P": s.head_dim, "S": s.state, "S8": round_up(s.state, 8)}
        tokens = C * this.chunk
        of_row = N if self.offsets else 1
        slots, met = C + of_row + (this.segments if this.segmented else 0), this.segments - 1 + of_row
        run_time = {"B": self.rows, "T": tokens, "N": self.sequences, "N1": self.sequences + 1, "chunks": C}
        return sizes | run_time | {"padded": tokens, "slots": slots, "met": met, "segments": this.segments}

    def arrays(self) -> Iterator[Array]:
        parameters = chain.from_iterable(stage.parameters(self.problem) for stage in self.plan.stages)
        yield from {p.name: p for p in parameters if isinstance(p, Array)}.values()

    def limits(self) -> Iterator[tuple[Any, int]]:
        """What the host refuses to exceed, in closed form, and the most that it can be."""
        counted = limits.of_routes([(self.plan, self.schedule, self.problem)])
        yield self.rows * C * self.problem.chunk, counted.tokens
        yield self.sequences, counted.rows


SHAPES = {
    "nemotron_h_8b": Shape(heads=128, groups=8, head_dim=64, state=128),
    "mamba2_130m": Shape(heads=24, groups=1, head_dim=64, state=128),
    "odd": Shape(heads=3, groups=1, head_dim=20, state=12),
    "widest": Shape(heads=65536, groups=1, head_dim=256, state=256),
    "smallest": Shape(heads=1, groups=1, head_dim=1, state=1),
}


def _cases() -> Iterator[Case]:
    for name, shape in SHAPES.items():
        operator = Operator(
            shape=shape,
            dtypes=Dtypes(x="bfloat16", dt="float32", chunk_state="bfloat16", state="float32"),
            options=Options(D="per_channel", z="silu", dt_bias=True, dt_softplus=True, dt_limit="runtime", packed=True),
            routes={plan: Route(when="B >= 1", plan=plan) for plan in PLANS},
        )
        for plan in PLANS.values():
            # sm_90 takes a chunk in halves, sm_80 keeps its loops
            for target_name in ("sm_90", "sm_80") if name == "nemotron_h_8b" else ("sm_90",):
                schedule = plans.derive("m", operator, plan.name, target(target_name))
                problem = plans.problem("m", operator, target(target_name), plan, schedule.plan)
                for offsets in (False, True) if plan.packed else (False,):
                    yield Case(f"{name}-{target_name}", problem, schedule, offsets)


CASES = list(_cases())


SIZES = {size: sp.Symbol(size.name, nonnegative=True) for size in (B, C, N)}
CONSTANT = (0,) * len(SIZES)


@functools.cache
def terms(form: Any) -> dict[tuple[int, ...], Any]:
    """Coefficients of a polynomial in sizes counted from their least, which is 1, by powers."""
    counted = {size: symbol + 1 for size, symbol in SIZES.items()}
    return dict(sp.Poly(sp.sympify(form).subs(counted), *SIZES.values()).terms())


def at_most(form: Any, case: Case) -> Any:
    """A proven upper bound of `form` for all run-time sizes that the host does not refuse: the sum of its terms'.

    A product of sizes is at most 1/f times a limited one that has it f times, less what else the limited one is.
    """
    bound = terms(form).get(CONSTANT, 0)
    for powers, k in terms(form).items():
        if powers != CONSTANT and k > 0:
            known = [
                k * (most - theirs[CONSTANT]) / theirs[powers]
                for theirs, most in ((terms(limit), most) for limit, most in case.limits())
                if powers in theirs
            ]
            assert known, f"nothing that the host refuses bounds {form}"
            bound += min(known)
    return bound


def cumsum(case: Case) -> dict[str, Range]:
    q, n = case.problem.chunk, case.sequences
    own = {"i_chunk * CHUNK": (0, C * q - q), "i_chunk * CHUNK + row": (0, C * q - 1)}
    of_tile = "i_tile * SEQUENCE_TILE"
    return own | {
        "cu_seqlens.shape[0] - 1": (0, n),
        of_tile: (0, n - 1),
        f"{of_tile} + ct.arange(SEQUENCE_TILE, dtype=ct.int32)": (0, n + 62),
        "offset - i_chunk * CHUNK": (-C * q, C * q),
        "token - 1": (-1, C * q - 2),
    }


def span(case: Case) -> dict[str, Range]:
    """Of a sequence's chunks and segments, in the stages that walk over them."""
    n = case.sequences
    return {
        "i_entry + 1": (1, n),
        "n_chunks + i_entry": (1, C + n - 1),
        "n_chunks - 1": (0, C - 1),
        "n_met - 1": (-1, C - 1),
        # of a single row's sequences, a place each
        "slot - n_chunks": (0, n - 1),
    }


def state(case: Case) -> dict[str, Range]:
    q, segments = case.problem.chunk, case.problem.segments
    # a segment has no more chunks than the row, and all together less than a chunk each more
    by_segment = {
        "i_segment + 1": (1, segments),
        "i_segment * n_segment": (0, C + segments - 1),
        "(i_segment + 1) * n_segment": (0, C + segments - 1),
    }
    in_chunk = "min(end - i_chunk * CHUNK, CHUNK) - 1"
    found = span(case) | by_segment
    return found | {
        "slot - n_chunks + i_segment": (0, case.sequences + segments - 2),
        "i_chunk * CHUNK": (0, C * q - q),
        "end - i_chunk * CHUNK": (1, C * q),
        in_chunk: (0, q - 1),
        "i_chunk * CHUNK + last": (0, C * q - 1),
        "CHUNK - 1": (0, q - 1),
        "STATE_TILES * HEAD_DIM_TILES": (1, 256 * 256),
    }


def combine(case: Case) -> dict[str, Range]:
    q, segments = case.problem.chunk, case.problem.segments
    nth, i_chunk = C + 63, C + segments + 63
    lanes = "ct.arange(SEGMENTS, dtype=ct.int32)[:, None] * n_segment"
    of_segments: dict[str, Range] = {}
    for s in range(1, segments):
        of_segments |= {
            f"slot - n_chunks + max(min({s}, last_segment), first_segment)": (0, case.sequences + segments - 2),
            f"inputs + {s}": (C, C + case.sequences + segments),
        }
    found = span(case) | of_segments
    return found | {
        "slot - n_chunks + first_segment": (0, case.sequences + segments - 2),
        "i_entry + 2": (2, case.sequences + 1),
        "chunk_states.shape[2] - SEGMENTS": (C, C + case.sequences),
        "i_segment * n_segment": (0, i_chunk),
        "i_segment * n_segment + nth": (0, i_chunk),
        "ct.minimum(i_chunk * CHUNK + CHUNK, end) - 1": (0, C * q - 1),
        "STATE_TILES * HEAD_DIM_TILES": (1, 256 * 256),
        "i_decay * DECAY_TILE": (0, nth),
        "i_decay * DECAY_TILE + ct.arange(DECAY_TILE, dtype=ct.int32)": (0, nth),
        lanes: (0, i_chunk),
        f"{lanes} + nth": (0, i_chunk),
        # of lanes inside the row: the others may wrap around, and are masked by the chunk's number itself
        "i_chunk * CHUNK": (0, C * q - q),
        "i_chunk * CHUNK + CHUNK": (0, C * q),
        "i_chunk * CHUNK + CHUNK - 1": (0, C * q - 1),
        "i_chunk * CHUNK - 1": (-1, C * q - 1),
    }


def items(case: Case, rows: int) -> dict[str, Range]:
    """Of a persistent grid: `rows` tokens of heads that share a block."""
    s = case.problem.shape
    tokens = case.problem.chunk * C
    every = case.rows * tokens / rows
    return {
        "x.shape[0] * n_rows": (1, every),
        "x.shape[0] * n_rows * (HEADS // HEADS_PER_BLOCK)": (1, every * s.heads),
        "item % (HEADS // HEADS_PER_BLOCK) * HEADS_PER_BLOCK": (0, s.heads - 1),
        "min(HEADS_PER_BLOCK, x.shape[2]) * HEAD_DIM_TILES": (1, s.heads * 256),
        "first_head + i_step // HEAD_DIM_TILES": (0, s.heads - 1),
        # what ends the loop: there are no more blocks than items
        "item + ct.num_blocks(0)": (0, 2 * every * s.heads - 1),
    }


def output(case: Case) -> dict[str, Range]:
    rows = case.schedule.stage("output").rows
    tokens = case.problem.chunk * C
    return items(case, rows) | {
        "HEADS_PER_BLOCK * HEAD_DIM_TILES": (1, case.problem.shape.heads * 256),
        "i_chunk * 2": (0, 2 * C - 2),
        "i_rows * ROWS": (0, tokens - rows),
        "i_rows * ROWS - 1": (-1, tokens - rows - 1),
    }


def packed_output(case: Case) -> dict[str, Range]:
    n, q, rows = case.sequences, case.problem.chunk, case.schedule.stage("packed_output").rows
    half = "(i_rows - i_before) * ROWS"
    return items(case, rows) | {
        "ct.max(which) + 1": (0, n),
        "n_chunks + i_entry": (1, C + n - 1),
        "chunk_states.shape[2] - SEGMENTS": (C, C + n),
        "chunk_states.shape[2] - SEGMENTS + i_chunk // ct.cdiv(n_chunks, SEGMENTS)": (C, C + n + case.problem.segments),
        "i_chunk * 2": (0, 2 * C - 2),
        "i_rows - i_before": (0, 1),
        half: (0, rows),
        f"ct.load(begin, (i_batch, i_rows), (1, ROWS)).reshape((ROWS,)) - {half}": (-1 - rows, q),
        "i_rows * ROWS": (0, q * C - rows),
        "i_rows * ROWS - 1": (-1, q * C - rows - 1),
    }


TABLES: dict[str, Callable[[Case], dict[str, Range]]] = {
    "cumsum": cumsum,
    "state": state,
    "combine": combine,
    "output": output,
    "packed_output": packed_output,
}
# what no source spells: the last step of a loop
IMPLICIT = {"item + ct.num_blocks(0)"}
# values and masks: no index is made of them
VALUES = """
    first total next_first next_total step e one_plus rate decay soft raw changes inside valid reached own previous
    before since_start h end_ y cb cb_before weight pairs l_tile l_m l_before l_last dt_tile dt_before x_tile x_before
    b_tile c_tile b_scaled x_operand kept skip gate z_tile share entering blank none causal after told starts
"""
INDICES = """
    i_chunk i_heads i_batch i_tile i_sequence i_row i_rows i_state i_dim i_head i_group i_entry i_segment i_step
    i_before i_decay nth row token offset n_tokens n_sequences n_chunks n_segment n_rows n_items n_steps n_met item
    first_head first_entry end_entry which start end last at_last slot first_segment last_segment n_told inputs i_input
    begin at_m
"""


def _sources(case: Case) -> Iterator[tuple[Stage, ast.Module]]:
    for stage in case.plan.stages:
        context = stage.context(case.schedule.stage(stage.name), case.problem)
        yield stage, ast.parse(render.render(stage.template, context))


def _names(node: ast.AST) -> set[str]:
    """The variables of an expression; an array's shape is none."""
    if isinstance(node, ast.Attribute) and node.attr == "shape":
        return set()
    own = {node.id.rstrip("0123456789")} if isinstance(node, ast.Name) else set()
    return own.union(*(_names(child) for child in ast.iter_child_nodes(node)))


def integers(tree: ast.Module) -> set[str]:
    """Every sum, difference and product of indices, wherever it stands in a kernel."""
    found = set()
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        for node in ast.walk(function):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
                continue
            names = {name for name in _names(node) if not name.isupper()} - {"ct", "min", "max"}
            real = any(isinstance(n, ast.Constant) and isinstance(n.value, float) for n in ast.walk(node))
            if real or names & set(VALUES.split()) or "LOG2E" in ast.unparse(node):
                continue
            assert names <= set(INDICES.split()), f"{sorted(names)} in {ast.unparse(node)}: an index or a value?"
            found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_integer_of_a_kernel_is_listed_and_fits(case: Case) -> None:
    for stage, tree in _sources(case):
        table = TABLES[stage.name](case)
        used = integers(tree)
        assert used <= set(table), f"{stage.name}: {sorted(used - set(table))} have no range"
        for text in used | (IMPLICIT & set(table)):
            low, high = table[text]
            assert at_most(high, case) <= MAX, f"{stage.name}: {text}"
            assert at_most(-low, case) <= MAX + 1, f"{stage.name}: {text}"


def test_no_range_is_listed_for_what_no_kernel_has() -> None:
    used: dict[str, set[str]] = {}
    for case in CASES:
        for stage, tree in _sources(case):
            used.setdefault(stage.name, set()).update(integers(tree))
    assert set(used) == set(TABLES)
    for name, table in TABLES.items():
        case = next(c for c in CASES if name in [stage.name for stage in c.plan.stages])
        assert set(table(case)) - IMPLICIT <= used[name], name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tile_indices_times_tile_sizes_fit(case: Case) -> None:
    """A tile that reaches over an array's end still has a 32-bit index; so has a rounding division."""
    axes = case.axes()
    for array in case.arrays():
        for axis in array.axes:
            # a row's tokens are taken by chunks, whose number times their size `padded` is
            tile = 1 if axis in ("T", "padded") else 256
            assert at_most(axes[axis] + tile - 1, case) <= MAX, (array.name, axis)
    # (T + CHUNK - 1) // CHUNK, and likewise over sequences and chunks
    assert at_most(axes["T"] + case.problem.chunk - 1, case) <= MAX
    assert at_most(case.sequences + 63, case) <= MAX
    assert at_most(C + 63, case) <= MAX


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_array_is_addressed_by_its_own_strides(case: Case) -> None:
    """Lengths and strides are int32, but their products are unsigned 64-bit: these hold the last offset of any view."""
    for array in case.arrays():
        indices = sp.symbols(f"i:{len(array.axes)}")
        # a row's elements stand side by side
        strides = (*sp.symbols(f"s:{len(array.axes) - 1}"), sp.Integer(1))
        last = sum(index * stride for index, stride in zip(indices, strides, strict=True))
        largest = last.subs(dict.fromkeys(indices, MAX - 1)).subs(dict.fromkeys(strides[:-1], MAX))
        assert largest < 2**64, array.name


@pytest.fixture(scope="module")
def arguments() -> dict[str, Any]:
    """The functions of a package's `_arguments.py`."""
    text = render.render("arguments.py.jinja", host_checks.ArgumentsContext("m", "('sm_90',)", True, 64, 1000, 5000))
    text = text.replace("from ._values import check_range\n", "")
    namespace: dict[str, Any] = {}
    exec(compile(text, "_arguments.py", "exec"), namespace)
    return namespace


@given(shape=st.lists(st.sampled_from([1, 2, 3, 64, 2**15, 2**16, 2**17, 2**30]), min_size=1, max_size=5))
@settings(max_examples=300, deadline=None)
def test_what_the_host_allocates_or_takes_has_strides_of_32_bits(arguments: dict[str, Any], shape: list[int]) -> None:
    assume(math.prod(shape) < 2**60)
    tensor = torch.empty(shape, dtype=torch.int8, device="meta")
    fits = all(stride <= MAX for stride, n in zip(tensor.stride(), shape, strict=True) if n > 1)
    calls = (
        lambda: arguments["allocate"](tuple(shape), torch.int8, "meta"),
        lambda: arguments["rows"]("z", tensor.half(), tuple(shape), (torch.float16,), tensor.device),
        lambda: arguments["laid_out"]("seq_idx", tensor),
    )
    for call, name in zip(calls, ("x", "z", "seq_idx"), strict=True):
        if fits:
            assert call().stride() == tensor.stride()
        else:
            with pytest.raises(ValueError, match=rf"^{name}: (needs|found strides).* 2147483647 .*; split the batch$"):
                call()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1000, 1000, 0), None),
        ((78, 1000, 5), None),
        ((1001, 1001, 1), "x: found a batch of 1001, expected at most 1000; split the call"),
        ((1, 1001, 1), "cu_seqlens: found 1001 sequences, expected at most 1000; split the call"),
        ((1, 1000, 4992), None),
        # 79 chunks of 64 are 5056
        ((1, 1, 4993), "x: found 1 x 4993 tokens, expected at most 5000 in all; split the call"),
        ((39, 39, 65), None),
        ((40, 40, 65), "x: found 40 x 65 tokens, expected at most 5000 in all; split the call"),
    ],
)
def test_sizes_beyond_what_kernels_count_are_refused(
    arguments: dict[str, Any], sizes: tuple[int, ...], message: str | None
) -> None:
    if message is None:
        arguments["check_sizes"](*sizes)
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            arguments["check_sizes"](*sizes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_grids_are_what_every_backend_takes(case: Case) -> None:
    sizes = {"n_chunks": C, "batch": case.rows, "entries": case.sequences, "n_sms": case.problem.target.sms}
    for stage in case.plan.stages:
        grid = stage.grid(case.schedule.stage(stage.name), case.problem)
        for text, most in zip(grid, MAX_GRID, strict=False):
            # a persistent grid is no larger than the GPU
            size = eval(text, {"min": lambda _, resident: resident} | sizes)
            assert at_most(size, case) <= most, (stage.name, text)


SPECS = [p for p in (Path(__file__).parents[2] / "specs").glob("*.yaml") if not p.name.endswith(".lock.yaml")]


@pytest.mark.parametrize("path", sorted(SPECS), ids=lambda p: p.stem)
def test_committed_models_take_rows_and_tokens_enough(path: Path) -> None:
    loaded = spec.load(path)
    counted = limits.limits(loaded, lock.load(path.with_suffix(".lock.yaml"), loaded))
    assert counted.rows >= 2**13
    assert counted.tokens >= 2**22


def test_the_proof_sees_what_does_not_fit() -> None:
    case = next(c for c in CASES if c.name == "smallest-sm_90" and c.plan.name == "three_stage")
    q = case.problem.chunk
    assert at_most(C * q - 1, case) <= MAX
    assert at_most(C * q + 2 * q, case) > MAX
    assert at_most(2 * C * q, case) > MAX
    with pytest.raises(AssertionError, match="nothing that the host refuses bounds"):
        at_most(C**2, case)
    found = integers(ast.parse("def f():\n    return ct.load(x, (i_chunk * CHUNK + row, 0)) * (y - x.shape[0])"))
    assert found == {"i_chunk * CHUNK", "i_chunk * CHUNK + row"}
    with pytest.raises(AssertionError, match="an index or a value"):
        integers(ast.parse("def f():\n    return i_new + 1"))
