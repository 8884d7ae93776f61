"""Drawn problems on the GPU: right against the fp64 recurrence, and equal to the interpreter within rounding.

SSMGEN_DRAWN names a folder that `python -m ssmgen.verify.drawn` wrote.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ssmgen.loading import interpreted, load  # noqa: E402
from ssmgen.reference import mamba_chunk_scan_combined as reference  # noqa: E402
from ssmgen.reference import tolerance  # noqa: E402
from ssmgen.verify import check, problems  # noqa: E402
from ssmgen.verify.check import Subject  # noqa: E402
from ssmgen.verify.drawn import ARCHIVE, PROBLEMS  # noqa: E402
from ssmgen.verify.inputs import arguments  # noqa: E402

FOLDER = Path(os.environ.get("SSMGEN_DRAWN", ""))
LISTED = json.loads((FOLDER / PROBLEMS).read_text()) if os.environ.get("SSMGEN_DRAWN") else {}


@cache
def subjects(model: str, text: str) -> tuple[Subject, Subject]:
    """The model on the GPU, from the archive where there is one, and in the interpreter."""
    drawn = problems.parse(text).drawn
    assert drawn is not None
    archive = FOLDER / ARCHIVE
    kernels = load(FOLDER / model, backend="cubin", archive=archive) if archive.exists() else load(FOLDER / model)
    on_cpu = interpreted(drawn.spec(name=model), drawn.lock(), FOLDER / model)
    return (
        Subject(kernels, drawn.operator, drawn.chunks, "cuda"),
        Subject(on_cpu, drawn.operator, drawn.chunks),
    )


@pytest.mark.parametrize(("model", "text"), [(m, text) for m, texts in LISTED.items() for text in texts])
def test_gpu_and_interpreter_agree(model: str, text: str, record_property: Any) -> None:
    gpu, cpu = subjects(model, LISTED[model][0])
    call = problems.parse(text).call
    on_gpu = [t.cpu() for t in check.results(gpu, arguments(gpu.operator, call, "cuda"))]
    given = arguments(cpu.operator, call)
    on_cpu = check.results(cpu, given)
    expected = reference.mamba_chunk_scan_combined(**given)
    honest = check.honest(cpu, given)
    excess = [
        (tolerance.out_excess(a[0], b[0], honest.out_sigma), tolerance.state_excess(a[1], b[1], honest.state_sigma))
        for a, b in ((on_gpu, expected), (on_cpu, expected))
    ]
    finite = torch.isfinite(on_gpu[0]) & torch.isfinite(on_cpu[0])
    assert torch.equal(torch.isfinite(on_gpu[0]), torch.isfinite(on_cpu[0]))
    apart = [
        tolerance.out_excess(
            torch.where(finite, on_gpu[0], 0.0), torch.where(finite, on_cpu[0], 0.0), honest.out_sigma
        ),
        tolerance.state_excess(on_gpu[1], on_cpu[1], honest.state_sigma),
    ]
    record_property("figures", {"gpu": excess[0], "interpreter": excess[1], "apart": apart})
    assert max(excess[0]) <= 1
    assert max(excess[1]) <= 1
    # each errs by its own roundings; the same inputs, order and types leave less between them than either may err
    assert max(apart) <= 1
