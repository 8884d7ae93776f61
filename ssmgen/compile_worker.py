"""A process that compiles one kernel after another: a line of JSON in, a line of JSON out. Run by `build`, as a file.

It imports cuda.tile and nothing of ssmgen; it keeps no cache, and leaves time limits to whoever started it. Kernels are
written below the working directory and imported under that relative path, so that no message names the host.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

# tileiras says: loc("file":line:column): error: text, or wraps the place in fused<...>[...]
_PLACE = re.compile(r'loc\([^"]*"([^"]+)":(\d+):\d+[^)]*\):\s*error:\s*(.*)')


def main() -> None:
    # what a library prints must not end up among the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    """{} and a cubin in job["out"], or {"error": text, "line": 1-based or 0}."""
    from cuda.tile import TileError

    try:
        bytecode = _bytecode(job)
    except TileError as e:
        return {"error": e.message, "line": _line(e.loc, job["path"])}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}", "line": 0}
    return _assemble(job, bytecode)


def _line(place: Any, path: str) -> int:
    """The line in the generated file, also of an error inside a function of cuda.tile that it calls; 0 if unknown."""
    while place is not None:
        if place.filename == path:
            return int(place.line or 0)
        place = place.call_site
    return 0


def _bytecode(job: dict[str, Any]) -> bytes:
    from cuda.tile import compilation

    path = Path(job["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(job["text"], encoding="utf-8")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    # cuTile reads the source back from the file, and an earlier job may have had one of this name
    linecache.clearcache()
    # importlib would make the path absolute
    exec(compile(job["text"], str(path), "exec"), module.__dict__)
    signatures = [
        compilation.KernelSignature(
            [_constraint(promise) for promise in signature["promises"]],
            calling_convention=compilation.CallingConvention.cutile_python_v2(),
            symbol=signature["symbol"],
        )
        for signature in job["signatures"]
    ]
    out = io.BytesIO()
    compilation.export_kernel(
        getattr(module, job["kernel"]), signatures, out, gpu_code=job["target"], output_format="tileir_bytecode"
    )
    return out.getvalue()


def _constraint(promise: dict[str, Any]) -> Any:
    import cuda.tile as ct
    from cuda.tile import compilation

    dtype = getattr(ct, promise.pop("dtype"))
    if not promise:
        return compilation.ScalarConstraint(dtype)
    return compilation.ArrayConstraint(
        dtype,
        promise.pop("ndim"),
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        # an expanded tensor overlaps itself; for arrays that are only read it costs nothing to allow
        may_alias_internally=promise.pop("may_overlap_itself"),
        base_addr_divisible_by=promise.pop("base_divisible_by"),
        **promise,
    )


def _assemble(job: dict[str, Any], bytecode: bytes) -> dict[str, Any]:
    source = Path(job["out"]).with_suffix(".tileirbc")
    source.write_bytes(bytecode)
    # no --lineinfo, which cuda-tile would add: it puts host paths and the PTX text into the cubin
    command = [job["tileiras"], str(source), "-o", job["out"], "--gpu-name", job["target"], *job["options"]]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if run.returncode == 0:
        return {}
    if match := _PLACE.search(run.stderr):
        return {"error": f"tileiras: {match[3]}", "line": int(match[2])}
    said = run.stderr.strip() or f"exit status {run.returncode} and no message"
    return {"error": f"tileiras: {said[-2000:]}", "line": 0}


if __name__ == "__main__":
    main()
