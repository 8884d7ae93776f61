"""Arrays of more elements than 32 bits count, on a GPU: the bits that two calls of half as many tokens give."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.conftest import load  # noqa: E402
from tests.gpu.test_forward import draw  # noqa: E402

# x and the chunks' states have over 2**31 elements each
MODEL, TOKENS = "nemotron_h_8b", 300_032
HALF = 149_888
ROOM = 40 * 2**30


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_of_more_elements_than_32_bits_count(packed: bool) -> None:
    if torch.cuda.mem_get_info()[0] < ROOM:
        pytest.skip(f"needs {ROOM // 2**30} GiB of the GPU's memory")
    kernels = load(MODEL)
    arguments = draw(kernels, 1, TOKENS)
    assert arguments["x"].numel() > 2**31

    def run(begin: int, end: int, **more):
        part = {name: v[:, begin:end] if name in ("x", "dt", "B", "C") else v for name, v in arguments.items()}
        if packed:
            more["seq_idx"] = torch.zeros(1, end - begin, dtype=torch.int32, device="cuda")
        with torch.no_grad():
            return kernels.mamba_chunk_scan_combined(**part | more, chunk_size=64, return_final_states=True)

    out, states = run(0, TOKENS)
    first, between = run(0, HALF)
    assert torch.equal(out[:, :HALF], first)
    del first
    second, end = run(HALF, TOKENS, initial_states=between)
    assert torch.equal(out[:, HALF:], second)
    assert torch.equal(states, end)
    assert bool(second.isfinite().all())
