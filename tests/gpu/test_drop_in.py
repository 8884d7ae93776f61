"""Calls written for mamba_ssm, with only the import changed: every output beside the peer's own and beside fp64.

SSMGEN_GATED names the folder of a package generated from GATED below (and SSMGEN_GATED_ARCHIVE its cubins); without it
the calls with z and with D by channel are skipped. SSMGEN_REPORT names a file for the figures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mamba_ssm", reason="the peer is not installed")

from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as peer  # noqa: E402

import ssmgen  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.reference.honest import honest_evaluation  # noqa: E402

PLAIN = "mamba2_130m"
GATED = """\
schema: 1
model: {name: gated, source: table}
operators:
  mamba_chunk_scan_combined:
    shape: {heads: 24, groups: 2, head_dim: 64, state: 128}
    dtypes: {x: bfloat16, dt: float32, chunk_state: bfloat16, state: float32}
    options: {D: per_channel, z: silu, dt_bias: true, dt_softplus: true, dt_limit: runtime, packed: true}
    routes:
      all: {when: "B >= 1", plan: three_stage}
      packed: {when: "B >= 1", plan: packed}
targets: [sm_90]
"""
OFFSETS = [0, 37, 512, 513, 1000, 1700, 2048]
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def plain() -> Any:
    archive = os.environ.get("SSMGEN_ARCHIVE")
    return ssmgen.load(PLAIN, backend="cubin", archive=archive) if archive else ssmgen.load(PLAIN)


@pytest.fixture(scope="module")
def gated() -> Any:
    folder, archive = os.environ.get("SSMGEN_GATED"), os.environ.get("SSMGEN_GATED_ARCHIVE")
    if not folder:
        pytest.skip("SSMGEN_GATED names no package")
    return ssmgen.load(folder, backend="cubin", archive=archive) if archive else ssmgen.load(folder)


@pytest.fixture(scope="module", autouse=True)
def report() -> Any:
    yield
    if path := os.environ.get("SSMGEN_REPORT"):
        Path(path).write_text(json.dumps(RESULTS, indent=1) + "\n")


def _arguments(kernels: Any, batch: int, tokens: int, *, gate: bool) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(tokens)

    def normal(*size: int) -> Any:
        return torch.randn(*size, device="cuda", generator=generator)

    heads, groups, head_dim, state = kernels.HEADS, kernels.GROUPS, kernels.HEAD_DIM, kernels.STATE
    given = dict(
        x=normal(batch, tokens, heads, head_dim).bfloat16(),
        dt=normal(batch, tokens, heads) - 4,
        A=-torch.exp(torch.rand(heads, device="cuda", generator=generator) * 2.77),
        B=normal(batch, tokens, groups, state).bfloat16(),
        C=normal(batch, tokens, groups, state).bfloat16(),
        D=normal(heads, head_dim) if gate else normal(heads),
        dt_bias=normal(heads) * 0.5,
        dt_softplus=True,
    )
    return given | (dict(z=normal(batch, tokens, heads, head_dim).bfloat16()) if gate else {})


def _sequences(tokens: int) -> dict[str, Any]:
    offsets = torch.tensor(OFFSETS, device="cuda", dtype=torch.int32)
    lengths = offsets.diff().long()
    seq_idx = torch.arange(len(OFFSETS) - 1, device="cuda", dtype=torch.int32).repeat_interleave(lengths)
    assert len(seq_idx) == tokens
    return dict(seq_idx=seq_idx[None].contiguous(), cu_seqlens=offsets, return_varlen_states=True)


def _compare(name: str, kernels: Any, given: dict[str, Any], **more: Any) -> None:
    """Both functions by the same call, each output against the recurrence."""
    with torch.no_grad():
        # an empty output would be NaN
        torch.use_deterministic_algorithms(True, warn_only=True)
        ours, theirs = (
            function(**given, chunk_size=256, return_final_states=True, **more)
            for function in (kernels.mamba_chunk_scan_combined, peer)
        )
        torch.use_deterministic_algorithms(False)
    inputs = given | {n: v for n, v in more.items() if n in ("initial_states", "seq_idx", "cu_seqlens", "dt_limit")}
    out, states = reference.mamba_chunk_scan_combined(**inputs)
    honest = honest_evaluation(**inputs)
    assert [(t.shape, t.dtype) for t in ours] == [(t.shape, t.dtype) for t in theirs]
    last = states[-1:] if "cu_seqlens" in more else states
    row = RESULTS[name] = {}
    for label, results in (("ssmgen", ours), ("mamba_ssm", theirs)):
        row[label] = dict(
            out=reference.error(results[0], out),
            final=reference.state_error(results[1], last),
            out_of_limit=tolerance.out_excess(results[0], out, honest.out_sigma),
        )
        if len(results) == 3:
            row[label]["varlen"] = reference.state_error(results[2], states)
    row["apart"] = reference.error(ours[0], theirs[0].double())
    assert row["ssmgen"]["out_of_limit"] <= 1
    # two roundings of one value
    assert row["apart"] <= row["ssmgen"]["out"] + row["mamba_ssm"]["out"]
    for output in ("final", "varlen"):
        if output in row["ssmgen"]:
            assert row["ssmgen"][output] <= 1.25 * row["mamba_ssm"][output] + 1e-4


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.001, 0.05)])
def test_plain(plain: Any, states: bool, limit: tuple[float, float]) -> None:
    given = _arguments(plain, 2, 2048, gate=False)
    more: dict[str, Any] = dict(dt_limit=limit)
    if states:
        more["initial_states"] = torch.randn(2, plain.HEADS, plain.HEAD_DIM, plain.STATE, device="cuda")
    _compare(f"plain, states={states}, dt_limit={limit}", plain, given, **more)


def test_rows_of_several_sequences(plain: Any) -> None:
    seq_idx = (torch.arange(2048, device="cuda", dtype=torch.int32) // 300)[None].repeat(2, 1)
    _compare("seq_idx", plain, _arguments(plain, 2, 2048, gate=False), seq_idx=seq_idx)


def test_packed(plain: Any) -> None:
    _compare("packed", plain, _arguments(plain, 1, 2048, gate=False), **_sequences(2048))


def test_gated(gated: Any) -> None:
    _compare("z, D by channel", gated, _arguments(gated, 2, 1000, gate=True))


def test_gated_and_packed(gated: Any) -> None:
    given = _arguments(gated, 1, 2048, gate=True)
    _compare("z, D by channel, packed", gated, given, **_sequences(2048), dt_limit=(0.001, 0.1))
