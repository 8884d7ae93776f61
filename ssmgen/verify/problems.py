"""A problem as one line of text: the model (drawn, or one of a spec) and the call.

    groups=2,heads_per_group=3,head_dim=20,state=24,chunk=32,tokens=65,regime=mixed_horizons

Fields at their default are left out; parsing what was printed gives the same problem. Each field's choices stand in
the order in which they are simpler, so that whoever shrinks a failure knows the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from random import Random
from typing import Any, TypeVar, get_type_hints

from pydantic import ValidationError

from ssmgen import plans
from ssmgen.errors import UsageError
from ssmgen.lock import Entry, Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.ops.base import Route
from ssmgen.plans import PLANS, Plan, PlanSchedule, RouteSchedule
from ssmgen.spec import Model, Operators, Spec
from ssmgen.stages.base import Problem as StageProblem
from ssmgen.stages.base import Stage
from ssmgen.targets import target
from ssmgen.verify.inputs import LAYOUTS, REGIMES

T = TypeVar("T", bound="Drawn | Call")
_NAME = "drawn"
# of a number in a problem
MOST = 2**31 - 1
CUTS = ("one", "two", "many", "empty", "tokens", "borders", "short")
"""Where sequences lie in a packed row: one; two; many of any length; empty ones first, between and last; one token
each; from border to border of every chunk size; with rows behind the last."""


def _choice(*options: Any) -> Any:
    return field(default=options[0], metadata={"options": options})


@dataclass(frozen=True)
class Chunks:
    """The shortest chunk of the routes for calls without packed sequences, and of those for calls with."""

    unpacked: int
    packed: int

    @classmethod
    def of(cls, operator: mamba2.Operator, schedules: Lock) -> Chunks:
        """Those of a model's schedules; without packed routes both are the same."""
        found: dict[bool, list[int]] = {False: [], True: []}
        for (_, _, route), entry in schedules.items():
            found[operator.routes[route].plan in mamba2.PACKED_PLANS].append(entry.schedule.plan.chunk)
        unpacked = min(found[False])
        return cls(unpacked, min(found[True], default=unpacked))


@dataclass(frozen=True)
class Drawn:
    """A model that no spec has: sizes, dtypes, options, and how its schedules differ from the derived ones."""

    groups: int = _choice(1, 2, 3)
    heads_per_group: int = _choice(1, 2, 3, 7)
    head_dim: int = _choice(16, 8, 32, 1, 9, 20, 24, 48, 80)
    state: int = _choice(16, 32, 1, 17, 24, 40, 64, 96)
    x: str = _choice("bfloat16", "float16", "float32")
    dt: str = _choice("float32", "x")
    chunk_state: str = _choice("x", "float32", "bfloat16")
    D: str = _choice("per_head", "none", "per_channel")
    z: str = _choice("none", "silu")
    dt_bias: bool = _choice(True, False)
    dt_softplus: bool = _choice(True, False)
    dt_limit: str = _choice("runtime", "none")
    packed: bool = _choice(False, True)
    chunk: int = _choice(32, 16, 64, 128)
    segments: int = _choice(1, 2, 4)
    half_rows: bool = _choice(False, True)
    """Output in blocks of half a chunk."""
    small_tiles: bool = _choice(False, True)
    """Tiles of half the derived size, one head a block."""

    @property
    def operator(self) -> mamba2.Operator:
        """The operator of the model's spec."""
        kept = {"x": "bfloat16" if self.x == "bfloat16" else "float32"}.get(self.chunk_state, self.chunk_state)
        return mamba2.Operator(
            shape=mamba2.Shape(
                heads=self.groups * self.heads_per_group, groups=self.groups, head_dim=self.head_dim, state=self.state
            ),
            dtypes=mamba2.Dtypes.model_validate(
                {"x": self.x, "dt": self.x if self.dt == "x" else self.dt, "chunk_state": kept, "state": "float32"}
            ),
            options=mamba2.Options.model_validate(
                {name: getattr(self, name) for name in ("D", "z", "dt_bias", "dt_softplus", "dt_limit", "packed")}
            ),
            routes={name: Route(when="B >= 1", plan=plan) for name, plan in self._plans.items()},
        )

    @property
    def chunks(self) -> Chunks:
        """Of both kinds of calls."""
        return Chunks(self.chunk, self.chunk)

    @property
    def _plans(self) -> dict[str, str]:
        split = self.segments > 1
        plans = {"all": "segmented" if split else "three_stage"}
        return plans | ({"packed": "packed_segmented" if split else "packed"} if self.packed else {})

    def spec(self, target_name: str = "sm_90", name: str = _NAME) -> Spec:
        """A spec of the model, for one target."""
        return Spec.model_validate(
            {
                "schema": 1,
                "model": Model(name=name, source="table"),
                "operators": Operators(mamba_chunk_scan_combined=self.operator),
                "targets": [target_name],
            }
        )

    def lock(self, target_name: str = "sm_90") -> Lock:
        """Its schedules: the derived ones, changed as the fields say wherever the target serves that."""
        return {
            (target_name, mamba2.NAME, route): Entry(self._route(PLANS[plan], target_name), "derived")
            for route, plan in self._plans.items()
        }

    def _route(self, plan: Plan, target_name: str) -> RouteSchedule:
        shared = PlanSchedule(self.chunk, self.segments if plan.segmented else 1)
        problem = plans.problem(_NAME, self.operator, target(target_name), plan, shared)
        return RouteSchedule(shared, tuple((stage.name, self._schedule(stage, problem)) for stage in plan.stages))

    def _schedule(self, stage: Stage, problem: StageProblem) -> Any:
        schedule = stage.derive(problem)
        wishes: dict[str, int] = {}
        if hasattr(schedule, "rows"):
            wishes["rows"] = self.chunk // 2 if self.half_rows else self.chunk
        if self.small_tiles:
            for name in ("state_tile", "head_dim_tile", "head_tile"):
                if hasattr(schedule, name):
                    wishes[name] = max(1, getattr(schedule, name) // 2)
            wishes |= {"heads_per_block": 1} if hasattr(schedule, "heads_per_block") else {}
        for name, value in wishes.items():
            wish = replace(schedule, **{name: value})
            schedule = wish if stage.why_not(wish, problem) is None else schedule
        return schedule


@dataclass(frozen=True)
class Call:
    """What one call of a model's operator is given."""

    batch: int = _choice(1, 2)
    tokens: int = _choice(1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 150)
    initial_states: bool = _choice(False, True)
    sequences: str = _choice("no", "cu_seqlens", "seq_idx", "both")
    """What says where sequences lie in a row; cu_seqlens leaves room for one row, whatever `batch` says."""
    cuts: str = _choice(*CUTS)
    regime: str = _choice(*REGIMES)
    layout: str = _choice(*LAYOUTS)
    seed: int = _choice(0, 1, 2, 3)

    @property
    def offsets(self) -> bool:
        """Whether the call has cu_seqlens."""
        return self.sequences in ("cu_seqlens", "both")

    @property
    def rows(self) -> int:
        """The batch that the call really has."""
        return 1 if self.offsets else self.batch

    def for_model(self, operator: mamba2.Operator) -> Call:
        """The call as the operator takes it: unpacked where it knows no packed sequences."""
        return self if operator.options.packed else replace(self, sequences="no", cuts=CUTS[0])


@dataclass(frozen=True)
class Problem:
    """A call of a drawn model, or with `drawn` None of a model that the reader of it knows."""

    drawn: Drawn | None
    call: Call

    def __str__(self) -> str:
        # a drawn model is never left out as a whole: without one, the text means somebody else's
        drawn = _changed(self.drawn) or [f"groups={self.drawn.groups}"] if self.drawn else []
        return ",".join([*drawn, *_changed(self.call)]) or "tokens=1"


def parse(text: str) -> Problem:
    """The problem in `text`; UsageError names a field or value that is not known."""
    given: dict[str, str] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals or name.strip() in given:
            raise UsageError(f"problem: {part!r} in {text!r}", expected="NAME=VALUE,…, each name once")
        given[name.strip()] = value.strip()
    known = {f.name for kind in (Drawn, Call) for f in fields(kind)}
    for name in given:
        if name not in known:
            raise UsageError(f"problem: no field {name!r}", expected="one of " + ", ".join(sorted(known)))
    drawn = _parsed(Drawn, given) if any(f.name in given for f in fields(Drawn)) else None
    call = _parsed(Call, given)
    if drawn is not None:
        _check(drawn, call)
    return Problem(drawn, call)


def _check(drawn: Drawn, call: Call) -> None:
    """Refuse a model that no spec could have, and a call that the model cannot take."""
    try:
        assert drawn.operator
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the model"
        raise UsageError(f"problem: {name}: {first['msg']}", found=first.get("input")) from None
    if call != call.for_model(drawn.operator):
        raise UsageError(
            f"problem: sequences={call.sequences}, cuts={call.cuts} beside packed=False",
            expected="packed=True, or a problem without sequences and cuts",
        )


def options(of: Field[Any]) -> tuple[Any, ...]:
    """What a field of Drawn or Call may be, the simpler first."""
    choices: tuple[Any, ...] = of.metadata["options"]
    return choices


def sample(kind: type[T], random: Random) -> T:
    """One of `kind`, each field on its own."""
    return kind(**{f.name: random.choice(options(f)) for f in fields(kind)})


def samples(count: int, seed: int) -> Iterator[Problem]:
    """`count` problems of drawn models, the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        drawn = sample(Drawn, random)
        yield Problem(drawn, sample(Call, random).for_model(drawn.operator))


def _changed(value: Drawn | Call) -> list[str]:
    return [f"{f.name}={getattr(value, f.name)}" for f in fields(value) if getattr(value, f.name) != f.default]


def _parsed(kind: type[T], given: Mapping[str, str]) -> T:
    hints = get_type_hints(kind)
    return kind(**{f.name: _value(hints[f.name], f, given[f.name]) for f in fields(kind) if f.name in given})


def _value(kind: type, of: Field[Any], text: str) -> Any:
    if kind is int:
        # any size will do: the choices are only what is drawn
        least = int(of.name not in ("tokens", "batch", "seed"))
        if not text.isdecimal() or len(text) > len(str(MOST)) or not least <= int(text) <= MOST:
            raise UsageError(f"problem: {of.name}={text:.40}", expected=f"a whole number from {least} to {MOST}")
        return int(text)
    choices = {str(option): option for option in options(of)}
    if text not in choices:
        raise UsageError(f"problem: {of.name}={text}", expected="one of " + ", ".join(choices))
    return choices[text]
