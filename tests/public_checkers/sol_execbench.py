"""SOL-ExecBench: its driver, in a folder staged as its packager stages one."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.public_checkers.adapting import answer
from tests.public_checkers.schema import KERNEL, definition, solution, workloads
from tests.public_checkers.task import CALLS

DRIVER = "src/sol_execbench/driver/templates/eval_driver.py"


def main(checkout: Path) -> None:
    """Every trace that its driver prints must say PASSED."""
    sys.path.insert(0, str(checkout / "src"))
    if not torch.cuda.is_available():
        from sol_execbench.core.bench import timing

        timing.time_runnable = _calls
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder)
        shutil.copy(checkout / DRIVER, staged / "eval_driver.py")
        task = definition(custom_inputs_entrypoint="draw")
        listed = workloads({"type": "custom"})
        submitted = solution(languages=["cutile"], target_hardware=["LOCAL"])
        (staged / "definition.json").write_text(json.dumps(task))
        (staged / "workload.jsonl").write_text("".join(json.dumps(each) + "\n" for each in listed))
        (staged / "solution.json").write_text(json.dumps(submitted))
        (staged / "kernel.py").write_text(KERNEL)
        # it prints its traces where descriptor 1 leads when it starts
        kept, printed = os.dup(1), staged / "traces.jsonl"
        with printed.open("wb") as file:
            os.dup2(file.fileno(), 1)
        try:
            runpy.run_path(str(staged / "eval_driver.py"), run_name="__main__")
        finally:
            os.dup2(kept, 1)
            sys.stdout = sys.__stdout__
        traces = [json.loads(line) for line in printed.read_text().splitlines() if line.startswith("{")]
    against = [_reason(trace["evaluation"]) for trace in traces if trace["evaluation"]["status"] != "PASSED"]
    complete = len(traces) == len(listed)
    answer(complete and not against, "PASSED" if complete else "no verdict", against)


def _calls(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any], *_: Any, **__: Any) -> float:
    for _ in range(CALLS):
        function(*inputs, *outputs)
    return 1.0


def _reason(evaluation: dict[str, Any]) -> str:
    log = evaluation.get("log") or ""
    return f"{evaluation['status']} {log.strip().splitlines()[0][:120] if log.strip() else ''}".strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
