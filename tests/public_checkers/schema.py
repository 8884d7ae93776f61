"""The task as a Definition, its Workloads and a Solution: the schema that flashinfer-bench and SOL-ExecBench share."""

from __future__ import annotations

from typing import Any

from tests.adversarial import MODEL
from tests.public_checkers.task import TOKENS

NAME = "mamba_chunk_scan_combined"
_HEADS, _GROUPS = MODEL.groups * MODEL.heads_per_group, MODEL.groups
_SHAPES = {
    "x": (["batch", "tokens", "H", "P"], "bfloat16"),
    "dt": (["batch", "tokens", "H"], "float32"),
    "A": (["H"], "float32"),
    "B": (["batch", "tokens", "G", "S"], "bfloat16"),
    "C": (["batch", "tokens", "G", "S"], "bfloat16"),
    "D": (["H"], "float32"),
    "dt_bias": (["H"], "float32"),
}
_RESULTS = {"out": (["batch", "tokens", "H", "P"], "bfloat16"), "final_states": (["batch", "H", "P", "S"], "float32")}
_REFERENCE = """from tests.public_checkers.task import expected, inputs


def run(x, dt, A, B, C, D, dt_bias):
    return expected(x, dt, A, B, C, D, dt_bias)


def draw(axes, device):
    return inputs(axes["tokens"], device)
"""
KERNEL = """from tests.public_checkers.task import filling

fill = filling()


def run(*tensors):
    fill(*tensors)
"""


def definition(**more: Any) -> dict[str, Any]:
    """Of the operator, with every size but the tokens' constant."""
    sizes = {"H": _HEADS, "G": _GROUPS, "P": MODEL.head_dim, "S": MODEL.state}
    axes = {name: {"type": "const", "value": value} for name, value in sizes.items()}
    axes |= {name: {"type": "var"} for name in ("batch", "tokens")}
    tensors = {kind: {n: {"shape": s, "dtype": d} for n, (s, d) in each.items()}
               for kind, each in (("inputs", _SHAPES), ("outputs", _RESULTS))}  # fmt: skip
    return {"name": NAME, "op_type": "mamba", "axes": axes, **tensors, "reference": _REFERENCE, **more}


def workloads(kind: dict[str, Any]) -> list[dict[str, Any]]:
    """One of each listed length, whose inputs are all of a kind."""
    return [
        {"axes": {"batch": 2, "tokens": tokens}, "inputs": dict.fromkeys(_SHAPES, kind), "uuid": f"tokens-{tokens}"}
        for tokens in TOKENS
    ]


def solution(**spec: Any) -> dict[str, Any]:
    """The candidate, which fills what it is given."""
    spec = {"entry_point": "kernel.py::run", "destination_passing_style": True, "dependencies": [], **spec}
    sources = [{"path": "kernel.py", "content": KERNEL}]
    return {"name": "candidate", "definition": NAME, "author": "red team", "spec": spec, "sources": sources}
