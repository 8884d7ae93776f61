"""Forward: every problem checked against the fp64 recurrence, then timed beside the peers that can be imported.

    python -m ssmgen.bench.forward --archive kernels.tar.xz --json forward.json [PROBLEM ...]

A speed is printed only beside a passed check. It tunes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssmgen.bench.problems import FORWARD, Forward, inputs, sequences

# device-to-device copy on an H200, bytes a second, both directions counted
COPY_BANDWIDTH = 4.3e12


def conditions() -> dict[str, Any]:
    """GPU, driver, versions, timer: what every figure travels with."""
    import torch
    import triton

    return dict(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
        cuda=torch.version.cuda,
        timer="triton do_bench: events, L2 flushed before every call, median; graph replays a CUDA graph of one call",
        date=time.strftime("%Y-%m-%d"),
    )


def measure(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of one call: `eager` as a user makes it, `graph` as a replayed CUDA graph."""
    import torch
    from triton.testing import do_bench

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    eager = do_bench(call, warmup=25, rep=150, return_mode="median") * 1e3
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
    torch.cuda.synchronize()
    replay = do_bench(graph.replay, warmup=25, rep=150, return_mode="median") * 1e3
    return dict(eager_us=eager, graph_us=replay)


def first_call(call: Callable[[], object]) -> float:
    """Seconds until the first result is there."""
    import torch

    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def run(problem: Forward, kernels: Any, peers: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Check and time one problem: ours, then each peer on the same inputs."""
    import torch

    from ssmgen.reference import mamba_chunk_scan_combined as reference
    from ssmgen.reference import tolerance
    from ssmgen.reference.honest import honest_evaluation

    arguments = inputs(kernels, problem.batch, problem.tokens)
    if problem.sequences:
        arguments |= sequences(problem.tokens, problem.sequences)
    expected, expected_state = reference.mamba_chunk_scan_combined(**arguments)
    honest = honest_evaluation(**arguments)
    # of packed sequences the final states are the last one's
    last = slice(-1, None) if problem.sequences else slice(None)
    floor = sum(t.numel() * t.element_size() for k, t in arguments.items() if k in ("x", "dt", "B", "C"))
    floor += arguments["x"].numel() * arguments["x"].element_size()
    row: dict[str, Any] = dict(
        model=problem.model,
        batch=problem.batch,
        tokens=problem.tokens,
        sequences=problem.sequences,
        floor_us=floor / COPY_BANDWIDTH * 1e6,
    )
    for name, function in {"ssmgen": kernels.mamba_chunk_scan_combined, **peers}.items():
        call = _call(function, arguments, problem.chunk, return_varlen_states=problem.sequences > 0)
        seconds = first_call(call)
        # deterministic mode fills every torch.empty with NaN: what a kernel leaves unwritten shows
        torch.use_deterministic_algorithms(True)
        out, state, *of_all = call(return_final_states=True)
        torch.use_deterministic_algorithms(False)
        result = dict(
            out_error=reference.error(out, expected),
            state_error=reference.state_error(state, expected_state[last]),
            excess=max(
                tolerance.out_excess(out, expected, honest.out_sigma),
                tolerance.state_excess(state, expected_state[last], honest.state_sigma[last]),
            ),
            first_s=seconds,
        )
        if of_all:
            result["varlen_error"] = reference.state_error(of_all[0], expected_state)
        del out, state, of_all
        # no speed without a passed check
        if result["excess"] <= 1:
            result |= measure(call)
        row[name] = result
        torch.cuda.empty_cache()
    return row


def _call(function: Callable[..., Any], arguments: dict[str, Any], chunk: int, **always: Any) -> Callable[..., Any]:
    import torch

    def call(**more: Any) -> Any:
        with torch.no_grad():
            return function(**arguments, chunk_size=chunk, **always, **more)

    return call


def find_peers() -> dict[str, Callable[..., Any]]:
    """The peers that can be imported here, by name."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    except ImportError:
        return {}
    return {"mamba_ssm": mamba_chunk_scan_combined}


def main() -> None:
    """The command line in the module's docstring."""
    import ssmgen

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", choices=[*FORWARD, []], metavar="PROBLEM")
    parser.add_argument("--archive", type=Path, help="cubins of ssmgen compile; without it they are compiled here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    peers = find_peers()
    rows = {}
    for name in args.problems or FORWARD:
        problem = FORWARD[name]
        options = dict(backend="cubin", archive=args.archive) if args.archive else {}
        rows[name] = row = run(problem, ssmgen.load(problem.model, **options), peers)
        ours, theirs = row["ssmgen"], row.get("mamba_ssm", {})
        print(
            f"{name:24} floor {row['floor_us']:6.1f}  ours {ours.get('graph_us', math.nan):7.1f} graph "
            f"{ours.get('eager_us', math.nan):7.1f} eager  error {ours['out_error']:.1e} {ours['state_error']:.1e}  "
            f"first {ours['first_s']:.2f} s   mamba_ssm {theirs.get('graph_us', math.nan):7.1f} "
            f"{theirs.get('eager_us', math.nan):7.1f}  error {theirs.get('out_error', math.nan):.1e}",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(dict(conditions=conditions(), rows=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
