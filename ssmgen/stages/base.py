"""What a stage is: its schedule, its refusals, its template's context, its parameters, its cost.

A stage knows the maths of one kernel and nothing of files, specs or GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ssmgen.ops.mamba_chunk_scan_combined import Dtypes, Options, Shape
from ssmgen.targets import Target

if TYPE_CHECKING:
    from sympy import Expr

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}


@dataclass(frozen=True)
class Array:
    """A kernel's array parameter: axes by name, and who owns it.

    A caller's array may be any strided view; a workspace or result is contiguous and 16-byte aligned.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    owner: Literal["caller", "workspace", "result"]


@dataclass(frozen=True)
class Scalar:
    """A kernel's scalar parameter."""

    name: str
    dtype: Literal["int32", "float32"]


Parameter = Array | Scalar

OFFSETS: tuple[Parameter, ...] = (Array("cu_seqlens", "int32", ("N1",), "caller"), Scalar("has_cu_seqlens", "int32"))
"""Of packed sequences: where each starts, and at last where the last one ends."""
BEGIN = Array("begin", "int32", ("B", "padded"), "workspace")
ENTRY = Array("entry", "int32", ("B", "padded"), "workspace")
"""By token: where in its chunk its sequence starts, and which sequence's initial state it starts from."""


@dataclass(frozen=True)
class Problem:
    """All that is fixed when a route's kernels are rendered for a target.

    `chunk` is Q, shared by a route's stages; `segments` is 1 where the sequence is not split; `packed` where several
    sequences may lie in a row.
    """

    model: str
    shape: Shape
    dtypes: Dtypes
    options: Options
    target: Target
    chunk: int
    segments: int
    packed: bool

    @property
    def heads_per_group(self) -> int:
        return self.shape.heads // self.shape.groups

    @property
    def segmented(self) -> bool:
        return self.segments > 1

    @property
    def title(self) -> str:
        """What a generated docstring calls the model: its name and the sizes that are baked in."""
        return title(self.model, self.shape, self.dtypes)


def title(model: str, shape: Shape, dtypes: Dtypes) -> str:
    """What generated docstrings call a model: its name and the sizes that are baked in."""
    return f"{model} (H={shape.heads}, G={shape.groups}, P={shape.head_dim}, S={shape.state}, {dtypes.x})"


@dataclass(frozen=True)
class Cost:
    """Closed forms in B and T: `bytes` moved through device memory if each array is read and written once,
    `flops` of the matrix products, `exponentials`.

    Of packed rows they hold where each is one sequence that starts from nothing, told so by seq_idx.
    """

    bytes: Expr
    flops: Expr
    exponentials: Expr


class Stage(ABC):
    """One kernel of a plan."""

    name: ClassVar[str]
    template: ClassVar[str]
    schedule: ClassVar[type]

    @abstractmethod
    def derive(self, problem: Problem) -> Any:
        """A schedule from the shape alone."""

    @abstractmethod
    def why_not(self, schedule: Any, problem: Problem) -> str | None:
        """Why the target cannot serve this schedule, or None."""

    @abstractmethod
    def context(self, schedule: Any, problem: Problem) -> Any:
        """The frozen dataclass whose fields are the template's free names."""

    @abstractmethod
    def parameters(self, problem: Problem) -> tuple[Parameter, ...]:
        """The kernel's parameters in order: what the host passes and what a compiled signature promises."""

    @abstractmethod
    def grid(self, schedule: Any, problem: Problem) -> tuple[str, ...]:
        """The grid as host expressions over batch, n_chunks and n_sms."""

    @abstractmethod
    def cost(self, schedule: Any, problem: Problem) -> Cost:
        """What one call costs."""


def first_served(stage: Stage, problem: Problem, wishes: Iterable[Any]) -> Any:
    """The first of `wishes` that the target serves; the last where it serves none, so that `why_not` can say why."""
    wish = None
    for wish in wishes:
        if stage.why_not(wish, problem) is None:
            return wish
    return wish


def power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << (n - 1).bit_length()


def dim_tile(head_dim: int, widest: int) -> int:
    """A head-dim tile: one that covers the axis where it can, the widest that wastes nothing where it cannot."""
    whole = power_of_two(head_dim)
    return whole if whole <= widest or head_dim % widest else widest


CLEARED = "-1e20"
"""What stands for a log2 decay over a change of sequence: its power of two is 0, and no sum of decays comes near it.

As the kernels spell it."""


def slots(problem: Problem) -> str:
    """The states that a row of packed sequences has: of its chunks, its sequences, and what enters its segments."""
    return "chunks + N + SEGMENTS" if problem.segmented else "chunks + N"


def chunk_states(problem: Problem) -> Array:
    """States at the start of every chunk; in a row of packed sequences others stand behind, see `slots`."""
    slots = "slots" if problem.packed else "chunks"
    return Array("chunk_states", problem.dtypes.chunk_state, ("B", "H", slots, "P", "S8"), "workspace")


def segment_states(problem: Problem) -> Array:
    """What every segment makes of a zero state; of packed sequences, what each makes of each segment that it meets."""
    # one sequence after another: two neighbours share a segment at most, so all together meet so many
    of = "met" if problem.packed else "segments"
    return Array("segment_states", "float32", ("B", "H", of, "P", "S8"), "workspace")


def entered(problem: Problem) -> Expr:
    """Segments with a chunk, of a row of T tokens: a short one leaves the last without."""
    import sympy

    chunks = sympy.ceiling(sympy.Symbol("T", positive=True, integer=True) / problem.chunk)
    return sympy.ceiling(chunks / sympy.ceiling(chunks / problem.segments))


def step_formula(options: Options, limit: str) -> str:
    """dt' of the operator in words of its arguments; `limit` names the two ends where they are given at run time."""
    formula = "dt + dt_bias" if options.dt_bias else "dt"
    formula = f"softplus({formula})" if options.dt_softplus else formula
    if options.dt_limit != "none":
        return f"clamp({formula}, {limit})"
    return f"max({formula}, 0)" if at_least_zero(options) else formula


def at_least_zero(options: Options) -> bool:
    """Whether the default dt_limit of (0, inf) has something to do: softplus is never below 0."""
    return options.dt_limit == "none" and not options.dt_softplus


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple >= n."""
    return -(-n // multiple) * multiple


def not_power_of_two(schedule: Any, names: tuple[str, ...]) -> str | None:
    """The refusal of the first named field that is no power of two, with the nearest that is."""
    for name in names:
        value: int = getattr(schedule, name)
        if value & (value - 1):
            above = power_of_two(value)
            nearest = above if above - value <= value - above // 2 else above // 2
            return f"{name} = {value} must be a power of two (cuTile's tiles are); nearest: {nearest}"
    return None


def not_positive(schedule: Any) -> str | None:
    """The refusal of the first field that is not a positive whole number."""
    for field in fields(schedule):
        value = getattr(schedule, field.name)
        if type(value) is not int or value < 1:
            return f"{field.name} = {value!r} must be a whole number of at least 1"
    return None


def tile_refusal(schedule: Any, lengths: dict[str, int]) -> str | None:
    """The refusal of the first named tile that is no power of two, or wider than the power of two its axis needs."""
    refusal = not_power_of_two(schedule, tuple(lengths))
    if refusal:
        return refusal
    for name, length in lengths.items():
        value: int = getattr(schedule, name)
        if value > power_of_two(length):
            return f"{name} = {value} is wider than its axis of {length}; at most {power_of_two(length)}"
    return None


def row_refusal(state_tile: int, state: int) -> str | None:
    """The refusal of a state tile that leaves part of a workspace's row unwritten: rows are whole 8 elements."""
    least = min(8, power_of_two(state))
    if state_tile < least:
        return f"state_tile = {state_tile} would leave elements of a row of 8 unwritten; at least {least}"
    return None


def hint_refusal(schedule: Any) -> str | None:
    """The refusal of a compiler hint outside what cuTile takes: occupancy 1 to 32, latencies 1 to 10."""
    for field in fields(schedule):
        value: int = getattr(schedule, field.name)
        top = 32 if field.name == "occupancy" else 10 if field.name.endswith("latency") else None
        if top is not None and value > top:
            return f"{field.name} = {value} is outside cuTile's range, 1 to {top}"
    return None


def tile_dtype(name: str) -> str:
    """`bfloat16` -> `ct.bfloat16`."""
    return f"ct.{name}"


def scaled_dtype(x: str) -> str:
    """The operand dtype of products whose factor was scaled by a decay and a time step.

    Such a factor spans many binades: bfloat16 and tfloat32 have fp32's exponent, float16 does not (a time step of
    1e-6 would leave it two digits), so float16 activations use tfloat32, which holds them exactly.
    """
    return "ct.bfloat16" if x == "bfloat16" else "ct.tfloat32"
