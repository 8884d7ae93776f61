"""The host side of a generated package: what the templates of its modules print, but for the routes (`routing`).

It writes nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from ssmgen import conditions, host_checks, render, routing
from ssmgen.breaking import call, tuple_of
from ssmgen.lock import Lock
from ssmgen.ops import mamba_chunk_scan_combined as mamba2
from ssmgen.spec import Spec
from ssmgen.stages.base import step_formula, title

# the optional tensors of the function, in its order
_OPTIONAL = ("D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens")


@dataclass(frozen=True)
class Context:
    """Free names of host.py.jinja: the public function and its torch.library operator."""

    title: str
    heads: int
    groups: int
    head_dim: int
    state: int
    x_dtype: str
    dt_dtype: str
    packed: bool
    dt_softplus: bool
    dt_limit: bool
    out_formula: str
    dt_formula: str
    vectors: str
    converted: str
    checked: str
    left_out: str
    call: str
    fake: str
    entries: str
    optional_schema: str


@dataclass(frozen=True)
class ForwardContext:
    """Free names of forward.py.jinja: checks, routes and launches."""

    heads: int
    groups: int
    head_dim: int
    state: int
    x_dtype: str
    dt_dtype: str
    packed: bool
    gate: bool
    each_entry: str
    imports: str
    value_imports: str
    definition: str
    call: str
    vector_rows: tuple[tuple[str, str], ...]
    pass_packed: str
    take_packed: str
    refusal: str
    routes: tuple[routing.Text, ...]


def files(spec: Spec, lock: Lock) -> tuple[tuple[str, str, Any], ...]:
    """The package's files beside the kernels: (path in generated/<model>/, template, context).

    The spec must have mamba_chunk_scan_combined.
    """
    operator = spec.operators.mamba_chunk_scan_combined
    if operator is None:
        raise ValueError(f"{spec.model.name} has no {mamba2.NAME}")
    name = spec.model.name
    return (
        ("__init__.py", "host.py.jinja", _context(name, operator)),
        ("_forward.py", "forward.py.jinja", _forward(spec, operator, lock)),
        *host_checks.files(spec, operator, lock),
    )


def dispatcher(spec: Spec, lock: Lock) -> str:
    """The generated function that chooses a call's route, on the targets that `lock` holds; "" for none."""
    operator = spec.operators.mamba_chunk_scan_combined
    locked = [name for name in spec.targets if any(key[0] == name for key in lock)]
    if operator is None or not locked:
        return ""
    text = render.render("forward.py.jinja", _forward(spec.model_copy(update={"targets": locked}), operator, lock))
    (function,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "_route")
    return ast.get_source_segment(text, function) or ""


def _context(name: str, operator: mamba2.Operator) -> Context:
    shape, options, packed = operator.shape, operator.options, operator.options.packed
    own, given = _optional(operator), _given(operator)
    left_out = [n for n in _OPTIONAL if n not in own] + ([] if packed else ["state_dtype"])
    y = f"h_t C_t{' + D x_t' if options.D != 'none' else ''}"
    return Context(
        title=title(name, shape, operator.dtypes),
        heads=shape.heads,
        groups=shape.groups,
        head_dim=shape.head_dim,
        state=shape.state,
        x_dtype=operator.dtypes.x,
        dt_dtype=operator.dtypes.dt,
        packed=packed,
        dt_softplus=options.dt_softplus,
        dt_limit=options.dt_limit != "none",
        out_formula=f"y_t = ({y}) silu(z_t)" if options.z != "none" else f"y_t = {y}",
        dt_formula=step_formula(options, "*dt_limit"),
        vectors="".join(
            f"; {vector} {tuple_of(str(getattr(shape, axis)) for axis in axes)}"
            for vector, axes in _vectors(operator).items()
        )
        + ("; z like x" if options.z != "none" else ""),
        converted="".join(f", {vector}" for vector in _vectors(operator)),
        checked="A, seq_idx and cu_seqlens" if packed else "A",
        left_out=", ".join(f"{n}={n}" for n in left_out),
        call=call("out, states = (_operator if is_traced(x) else forward)(", [*given, "validate"], indent=4),
        fake=call("def _fake(", [*given, "validate"], "):"),
        entries="x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1" if packed else "x.shape[0]",
        optional_schema="".join(f"Tensor? {n}, " for n in own),
    )


def _forward(spec: Spec, operator: mamba2.Operator, lock: Lock) -> ForwardContext:
    shape, options, packed = operator.shape, operator.options, operator.options.packed
    given = _given(operator)
    # beside B and T: what only packed calls have, and what only some routes ask for
    counted = any("N" in conditions.names(route.when) for route in operator.routes.values())
    asked = {"batch": "batch", "tokens": "tokens"} | ({"N": "entries"} if counted else {})
    asked |= {"packed": "packed"} if packed else {}
    found = ", ".join(f"{name} = {{{value}}}" for name, value in asked.items())
    used = ["allocate", "check_sizes", "current_stream", "device", "floats", "rows"]
    return ForwardContext(
        heads=shape.heads,
        groups=shape.groups,
        head_dim=shape.head_dim,
        state=shape.state,
        x_dtype=operator.dtypes.x,
        dt_dtype=operator.dtypes.dt,
        packed=packed,
        gate=options.z != "none",
        each_entry="row, or with cu_seqlens of every sequence" if packed else "row",
        imports=", ".join(sorted([*used, *(("integers",) if packed else ())])),
        value_imports="check_decay, check_sequences" if packed else "check_decay",
        definition=call("def forward(", [*given, "validate"], "):"),
        call=call("route(", ["n_sms", *given, "out", "final_states"], indent=4),
        vector_rows=tuple((n, tuple_of(axis.upper() for axis in axes)) for n, axes in _vectors(operator).items()),
        pass_packed=", entries" * counted + ", seq_idx is not None or cu_seqlens is not None" * packed,
        take_packed=", entries" * counted + ", packed" * packed,
        refusal=call("raise ValueError(", [f'f"no route of {{target}} serves {found}"'], indent=4),
        routes=tuple(
            routing.text(spec, name, route, lock[name, mamba2.NAME, route].schedule, given)
            for name in spec.targets
            for route in operator.routes
        ),
    )


def _optional(operator: mamba2.Operator) -> list[str]:
    """The optional tensors that the model's kernels take, in the function's order."""
    o = operator.options
    taken = {"D": o.D != "none", "z": o.z != "none", "dt_bias": o.dt_bias, "initial_states": o.initial_states}
    return [name for name in _OPTIONAL if taken.get(name, o.packed)]


def _vectors(operator: mamba2.Operator) -> dict[str, tuple[str, ...]]:
    """D and dt_bias, where the kernels take them, with the names of their axes."""
    axes = {"D": ("heads", "head_dim") if operator.options.D == "per_channel" else ("heads",), "dt_bias": ("heads",)}
    return {name: axes[name] for name in _optional(operator) if name in axes}


def _given(operator: mamba2.Operator) -> list[str]:
    """What `forward` is given of a call, but for `validate`."""
    return ["x", "dt", "A", "B", "C", *_optional(operator), "dt_min", "dt_max"]
