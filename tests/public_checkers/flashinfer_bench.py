"""flashinfer-bench: its default evaluator, on inputs that a workload brings along."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.public_checkers.adapting import answer, without_gpu
from tests.public_checkers.schema import definition, solution, workloads
from tests.public_checkers.task import CALLS, inputs


def main(package: Path) -> None:
    """What its trials say, and its timing where there is a GPU."""
    device = without_gpu()
    sys.path.insert(0, str(package))
    from flashinfer_bench.bench import BenchmarkConfig
    from flashinfer_bench.bench.evaluators import default
    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.data import Definition, Solution, Workload
    from safetensors.torch import save_file

    task = Definition(**definition())
    settings = BenchmarkConfig(num_trials=3, profile_baseline=False)
    if device == "cpu":
        default.time_runnable = _calls
    said = []
    for listed in workloads({"type": "random"}):
        with tempfile.TemporaryDirectory() as folder:
            tokens = listed["axes"]["tokens"]
            file = Path(folder) / "inputs.safetensors"
            save_file(inputs(tokens), file)
            listed["inputs"] = {
                name: {"type": "safetensors", "path": str(file), "tensor_key": name} for name in listed["inputs"]
            }
            workload = Workload(**listed)
            baseline = default.DefaultEvaluator.build_baseline(task, workload, settings, device)
            submitted = Solution(**solution(language="python", target_hardware=["LOCAL"]))
            evaluation = default.DefaultEvaluator.evaluate(
                definition=task,
                sol_runnable=BuilderRegistry.get_instance().build(task, submitted),
                # its workers get copies
                inputs=[[value.clone() for value in each] for each in baseline.inputs],
                ref_outputs=baseline.outputs,
                ref_mean_latency_ms=1.0,
                cfg=settings,
                log_path="",
                device=device,
            )
            said += [] if evaluation.status.value == "PASSED" else [evaluation.status.value]
    answer(not said, "PASSED", said)


def _calls(function: Any, arguments: Any, *_: Any) -> float:
    with torch.no_grad():
        for _ in range(CALLS):
            function(*arguments)
    return 1.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
