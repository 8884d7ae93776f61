"""Scans in the place of a model's, under the library's way of calling them; as kernels to patch it with."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import torch

from ssmgen.reference import mamba_chunk_scan_combined as reference
from ssmgen.reference import tolerance
from ssmgen.reference.honest import honest_evaluation

TENSORS = ("x", "dt", "A", "B", "C")
NAMES = (
    *(*TENSORS, "chunk_size", "D", "dt_bias", "initial_states", "seq_idx"),
    *("dt_softplus", "dt_limit", "return_final_states"),
)


def operator(scan):
    """`scan(arguments) -> (out, final states)` as kernels; what a model passes beside `NAMES` is left out."""

    def mamba_chunk_scan_combined(*tensors, chunk_size, return_final_states, **more):
        given = dict(zip(TENSORS, tensors, strict=True))
        given |= {name: value for name, value in more.items() if value is not None and name in NAMES}
        out, state = scan(given)
        out = out.to(given["x"].dtype)
        return (out, state.float()) if return_final_states else out

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in NAMES]
    mamba_chunk_scan_combined.__signature__ = inspect.Signature(parameters)
    return SimpleNamespace(mamba_chunk_scan_combined=mamba_chunk_scan_combined)


def exact(arguments):
    return reference.mamba_chunk_scan_combined(**arguments)


def rounded(arguments):
    """The exact scan, and a draw of the errors that the roundings at these dtypes explain."""
    honest = honest_evaluation(**arguments)
    sigmas = honest.out_sigma, honest.state_sigma
    return tuple(v + s * torch.randn_like(s) for v, s in zip(exact(arguments), sigmas, strict=True))


def checked(kernels):
    """The kernels, each call of theirs held to the table of tolerances."""

    def scan(arguments):
        result = kernels.mamba_chunk_scan_combined(**arguments, chunk_size=8, return_final_states=True)
        assert result[1].dtype == torch.float32
        assert tolerance.excess(result, exact(arguments), honest_evaluation(**arguments)) <= 1
        return result

    return operator(scan)
