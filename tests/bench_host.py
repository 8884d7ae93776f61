"""What one eager forward call costs on the host, and how soon a fresh process has its first output; on a GPU.

    python tests/bench_host.py --generated generated --archive cubins.tar.xz --json host.json [PROBLEM ...]

Host time is the wall clock of calls that are enqueued while the GPU sleeps, so that nothing but the host is timed;
eager time is what events around one call say. Every backend that was asked for and can run is measured: `archive`
(cubins), `bundle`, and with --compiler `tile` (the package imported plainly, launched by cuda.tile itself) and
`compile` (ssmgen.load's default). Replayed calls are compared with calls that are not, to the bit; no figure without.
It times no kernels: ssmgen.bench.forward does.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

# name -> model, batch, tokens
PROBLEMS = {
    "nemotron_3_super_tp8_2k": ("nemotron_3_super_120b_a12b_tp8", 1, 2048),
    "nemotron_h_8b_512": ("nemotron_h_8b", 1, 512),
    "nemotron_h_8b": ("nemotron_h_8b", 1, 8192),
}
# few enough that the launch queue does not fill: at most 4 launches a call
CALLS = 100
REPEATS = 30
# what the GPU sleeps meanwhile, in clock cycles: some 100 ms
SLEEP = 200_000_000


def load(backend: str, model: str, options: argparse.Namespace) -> ModuleType:
    """The model's package as the backend serves it."""
    if backend == "bundle":
        sys.path.insert(0, str(options.bundle.resolve().parent))
        return importlib.import_module(f"{options.bundle.name}.{model}")
    if backend == "tile":
        name = f"plain_{model}"
        file = options.generated / model / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    import ssmgen

    folder = options.generated / model
    return (
        ssmgen.load(folder, backend="cubin", archive=options.archive) if backend == "archive" else ssmgen.load(folder)
    )


def draw(kernels: ModuleType, batch: int, tokens: int, seed: int = 0) -> dict[str, Any]:
    """Arguments of a call, on the GPU, in the types of a model that keeps its vectors in float32."""
    import torch

    sizes = kernels._forward
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator)

    heads = sizes.HEADS
    bias = normal(heads) * 0.5
    arguments = dict(
        x=normal(batch, tokens, heads, sizes.HEAD_DIM).bfloat16(),
        dt=normal(batch, tokens, heads) - 4.0 - bias,
        A=-torch.exp(normal(heads)),
        B=normal(batch, tokens, sizes.GROUPS, sizes.STATE).bfloat16(),
        C=normal(batch, tokens, sizes.GROUPS, sizes.STATE).bfloat16(),
        D=normal(heads),
        dt_bias=bias,
    )
    return arguments | dict(chunk_size=128, dt_softplus=True)


def host_us(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of host time a call, while the GPU sleeps: the median and the least of several hundred calls."""
    import torch

    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        asleep = torch.cuda.Event()
        asleep.record()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        taken.append((time.perf_counter() - start) / CALLS * 1e6)
        # a GPU that woke up too early would have been waited for
        assert not asleep.query(), "the GPU woke up: raise SLEEP"
    torch.cuda.synchronize()
    return dict(median=statistics.median(taken), least=min(taken), p90=statistics.quantiles(taken, n=10)[-1])


def eager_us(call: Callable[[], object]) -> float:
    """Microseconds between events around one call, the GPU idle before it: the median."""
    import torch

    taken = []
    for _ in range(300):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return statistics.median(taken)


def parts(kernels: ModuleType, call: Callable[[], Any]) -> dict[str, float]:
    """Host microseconds of the parts of a replayed call, each on its own; empty where calls are not replayed."""
    import torch

    replay = getattr(kernels.forward, "__self__", None)
    latest = replay and replay._threads.latest
    if latest is None:
        return {}
    program = latest.program
    launches, stream = program.launches, replay._stream(program.launches.device.ordinal)
    result = dict(
        allocations=host_us(program.allocate)["median"],
        one_graph=host_us(lambda: replay._driver.launch_together(launches, stream))["median"],
        one_by_one=host_us(lambda: replay._driver.launch(launches.device, launches.launches, stream))["median"],
    )
    own, answer = kernels.forward, call()
    vars(kernels)["forward"] = lambda *given: (answer, answer)
    try:
        result["public_function"] = host_us(call)["median"]
    finally:
        vars(kernels)["forward"] = own
    vars(kernels)["forward"] = replay._forward
    try:
        result["not_replayed"] = host_us(call)["median"]
    finally:
        vars(kernels)["forward"] = own
    torch.cuda.synchronize()
    return result


def check(kernels: ModuleType, batch: int) -> int:
    """How many calls, replayed with other tensors than recorded, gave the bits of calls that are not; all must."""
    import torch

    replay = getattr(kernels.forward, "__self__", None)
    if replay is None:
        return 0
    count = 0
    for tokens in (1, 64, 300, 1111):
        for states in (False, True):
            for seed in (0, 1, 2):
                arguments = draw(kernels, batch, tokens, seed)
                if states:
                    sizes = kernels._forward
                    shape = (batch, sizes.HEADS, sizes.HEAD_DIM, sizes.STATE)
                    arguments["initial_states"] = torch.randn(shape, device="cuda")
                if seed == 2:
                    # conversions are replayed too
                    arguments |= {name: arguments[name].bfloat16() for name in ("A", "D")}
                for _ in range(2):
                    got = kernels.mamba_chunk_scan_combined(**arguments, return_final_states=True)
                vars(kernels)["forward"], own = replay._forward, kernels.forward
                expected = kernels.mamba_chunk_scan_combined(**arguments, return_final_states=True)
                vars(kernels)["forward"] = own
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), (tokens, states, seed)
                count += 1
    assert not replay.why_not(), replay.why_not()
    return count


def steady(backend: str, problem: str, options: argparse.Namespace) -> dict[str, Any]:
    """Host and eager time of a problem."""
    import torch

    model, batch, tokens = PROBLEMS[problem]
    kernels = load(backend, model, options)
    arguments = draw(kernels, batch, tokens)

    def call() -> Any:
        return kernels.mamba_chunk_scan_combined(**arguments)

    with torch.no_grad():
        replayed = check(kernels, batch)
        for _ in range(20):
            call()
        return dict(
            replayed_to_the_bit=replayed, host_us=host_us(call), eager_us=eager_us(call), parts_us=parts(kernels, call)
        )


def first(backend: str, problem: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a fresh process, by what they went to; `first_output` is what the backend is to blame for."""
    model, batch, tokens = PROBLEMS[problem]
    marks = [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    import torch

    mark()
    torch.cuda.init()
    torch.zeros(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    mark()
    kernels = load(backend, model, options)
    mark()
    arguments = draw(kernels, batch, tokens)
    torch.cuda.synchronize()
    mark()
    for _ in range(2):
        with torch.no_grad():
            kernels.mamba_chunk_scan_combined(**arguments)
        torch.cuda.synchronize()
        mark()
    steps = [b - a for a, b in itertools.pairwise(marks)]
    names = ("import_torch", "cuda_context", "load", "draw_inputs", "first_call", "second_call")
    seconds = dict(zip(names, steps, strict=True))
    return seconds | {"first_output": seconds["load"] + seconds["first_call"]}


def conditions() -> dict[str, Any]:
    """What every figure travels with."""
    import platform
    from importlib import metadata

    import torch

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    shown = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return dict(
        gpu=torch.cuda.get_device_name(),
        driver=subprocess.run(shown, capture_output=True, text=True, check=False).stdout.split("\n")[0],
        cpu=next((t.split(":")[1].strip() for t in Path("/proc/cpuinfo").open() if t.startswith("model name")), "?"),
        python=platform.python_version(),
        torch=torch.__version__,
        versions={name: version(name) for name in ("cuda-bindings", "cuda-tile", "nvidia-cuda-tileiras")},
        command=shlex.join(["python", *sys.argv]),
        calls=f"median of {REPEATS} times {CALLS} calls, GPU asleep",
        date=time.strftime("%Y-%m-%d"),
    )


def in_process(job: str, backend: str, problem: str) -> dict[str, Any]:
    """One measurement in a process of its own; what went wrong, in its place."""
    command = [sys.executable, *sys.argv, "--job", job, backend, problem]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        return dict(failed=done.stderr.strip().splitlines()[-3:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="of " + ", ".join(PROBLEMS))
    parser.add_argument("--generated", type=Path, default=Path("generated"), help="the folder of generated packages")
    parser.add_argument("--archive", type=Path, help="what `ssmgen compile -o` made of them")
    parser.add_argument("--bundle", type=Path, help="the folder that `ssmgen bundle -o` made")
    parser.add_argument("--compiler", action="store_true", help="also measure what compiles here")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job, backend, problem = options.job
        print(json.dumps((steady if job == "steady" else first)(backend, problem, options)))
        return
    backends = ["archive"] * bool(options.archive) + ["bundle"] * bool(options.bundle)
    backends += ["tile", "compile"] * options.compiler
    report: dict[str, Any] = dict(conditions=conditions(), problems={})
    for problem in options.problems or PROBLEMS:
        rows = report["problems"][problem] = {}
        for backend in backends:
            rows[backend] = row = in_process("steady", backend, problem)
            # the second of two finds what the system keeps of files
            row["first"] = [in_process("first", backend, problem) for _ in range(2)]
            print(problem, backend, json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
