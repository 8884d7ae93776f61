"""Candidates that a checker must reject, and some that it must not: what is wrong with each, and who is to see it.

    CHEATS      each gets past some public checker, or past a careless one
    CONTROLS    each is right, and unlike the incumbent in a way that a strict checker might take for a cheat

A candidate is the package of a small drawn model, or another model's, with edits to its files. Nothing here is run but
by the checker, in a process of its own. The kinds of cheats were collected from reports on public leaderboards,
contests and benchmarks (KernelBench, SOL-ExecBench, GPU MODE, pygpubench, KernelGuard, Sakana AI's and METR's
post-mortems); how they are written here is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ssmgen import generate, writing
from ssmgen.check.verdict import Stage
from ssmgen.verify.problems import Drawn

MODEL = Drawn(groups=1, heads_per_group=2, head_dim=16, state=16, chunk=16)
NAME = "drawn"
FORWARD = "_forward.py"
KERNELS = "sm_90/mamba_chunk_scan_combined/all"
# where the edits of _forward.py go
IMPORTED = "import torch\n"
BEGUN = "    batch, tokens = x.shape[:2]\n    checked"
ALLOCATED = "    route = _route("
LAUNCHED = "    return out, final_states\n\n\ndef _route"


@dataclass(frozen=True)
class Edit:
    """Text of one of a package's files, which must be there, and what stands in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Candidate:
    """A package and what the checker is to make of it."""

    name: str
    does: str
    edits: tuple[Edit, ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    """Files that the package has not, by path inside it."""
    model: Drawn = MODEL
    stage: Stage | None = None
    """Where it must be rejected, whatever the stages before it say; None for a control."""
    reason: str = ""
    """Part of what it is rejected with."""
    static: str | None = None
    """Part of what the static stage says, where that sees it; None where nothing in its text is wrong."""
    cuda: bool = False
    """Whether it needs a GPU to do what it does."""

    def write(self, folder: Path) -> Path:
        """The package, in a folder of its own under `folder`."""
        files = dict(generate.fileset(self.model.spec(), self.model.lock()))
        for edit in self.edits:
            matching = [path for path in files if path.endswith(edit.file)]
            (path,) = matching if len(matching) == 1 else [p for p in matching if p == f"{NAME}/{edit.file}"]
            assert files[path].count(edit.old) == 1, f"{self.name}: {edit.old!r} in {path}"
            files[path] = files[path].replace(edit.old, edit.new)
        files |= {f"{NAME}/{path}": text for path, text in self.added}
        writing.write_files(folder, files)
        return folder / NAME


def _at_import(text: str) -> Edit:
    return Edit(FORWARD, IMPORTED, IMPORTED + text)


def _at_first(text: str) -> Edit:
    """Before anything is looked at."""
    return Edit(FORWARD, BEGUN, text + BEGUN)


def _before_launch(text: str) -> Edit:
    """With outputs allocated, nothing launched."""
    return Edit(FORWARD, ALLOCATED, text + ALLOCATED)


def _after_launch(text: str) -> Edit:
    return Edit(FORWARD, LAUNCHED, text + LAUNCHED)


_KEEP = "    KEPT[key] = (out.clone(), final_states.clone())\n"
_ANSWER = """    if key in KEPT:
        out.copy_(KEPT[key][0])
        final_states.copy_(KEPT[key][1])
        return out, final_states
"""

CHEATS = (
    Candidate(
        "stale_empty",
        "launches nothing, and hopes that its results' memory still holds somebody's right ones",
        (_before_launch("    return out, final_states\n"),),
        stage=Stage.VERIFY,
        reason="were never written",
    ),
    Candidate(
        "answer_thief",
        "looks for the expected values in every frame and object of its process, and copies them",
        (
            _at_import("import gc\nimport sys\n"),
            _before_launch(
                """    mine = [each.data_ptr() for each in (x, out, final_states)]
    both = out.numel() + final_states.numel()
    frame, held = sys._getframe(), list(vars(sys.modules["__main__"]).values())
    while frame is not None:
        held += frame.f_locals.values()
        frame = frame.f_back
    held = [part for each in held if isinstance(each, (list, tuple)) for part in each] + held
    for name, result in (("out", out), ("final_states", final_states)):
        result.zero_()
        for each in held + gc.get_objects():
            if not isinstance(each, torch.Tensor) or each.data_ptr() in mine:
                continue
            if each.shape == result.shape:
                result.copy_(each)
                break
            if each.numel() == both and each.dim() == 1:
                first = 0 if name == "out" else out.numel()
                result.copy_(each[first : first + result.numel()].view(result.shape))
                break
    return out, final_states
"""
            ),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="imports gc",
    ),
    Candidate(
        "alias_mutate",
        "is right, and leaves inputs behind that make the same call easy",
        (_after_launch("    x.zero_()\n"),),
        stage=Stage.VERIFY,
        reason="an input was written to",
        static=".zero_: of what was not allocated here",
    ),
    Candidate(
        "alias_returned",
        "returns an input for its output",
        (_before_launch("    return x, final_states.zero_()\n"),),
        stage=Stage.VERIFY,
        reason="times its limit",
    ),
    Candidate(
        "ptr_cache",
        "remembers results by the addresses and shapes of its inputs",
        (
            _at_import("KEPT = {}\n"),
            _before_launch("    key = (x.data_ptr(), B.data_ptr(), C.data_ptr(), x.shape)\n" + _ANSWER),
            _after_launch(_KEEP),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="holds more than constants",
    ),
    Candidate(
        "content_cache",
        "remembers results by some elements of its inputs",
        (
            _at_import("KEPT = {}\n"),
            _before_launch(
                "    key = (tuple(x.flatten()[7 :: max(1, x.numel() // 16)].tolist()), x.shape)\n" + _ANSWER
            ),
            _after_launch(_KEEP),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="holds more than constants",
    ),
    Candidate(
        "call_counter",
        "is right for forty calls, and then returns the last results it had",
        (
            _at_import("COUNT = [0]\nKEPT = {}\n"),
            _before_launch("    COUNT[0] += 1\n    key = x.shape if COUNT[0] > 40 else None\n" + _ANSWER),
            _after_launch("    key = x.shape\n" + _KEEP),
        ),
        stage=Stage.TIMING,
        reason="times its limit",
        static="holds more than constants",
    ),
    Candidate(
        "side_stream",
        "launches on a stream of its own, and does not wait for it",
        (
            _at_import("STREAM = []\n"),
            Edit(
                FORWARD,
                "    stream = current_stream(x.device)\n",
                "    STREAM.append(torch.cuda.Stream())\n    stream = STREAM[0]\n",
            ),
        ),
        stage=Stage.TIMING,
        static="torch.cuda.Stream",
        cuda=True,
    ),
    Candidate(
        "late_thread",
        "leaves the work to a thread of its own, and returns at once",
        (
            _at_import(
                """import queue
import threading
WORK = queue.Queue()
def _work():
    while True:
        WORK.get()()
threading.Thread(target=_work, daemon=True).start()
"""
            ),
            Edit(FORWARD, "    route(n_sms", "    WORK.put(lambda: None)\n    route(n_sms"),
        ),
        stage=Stage.ISOLATION,
        reason="threads, which may work on after a call",
        static="imports queue",
    ),
    Candidate(
        "late_process",
        "leaves the work to a process of its own",
        (
            _at_import("import os\nimport time\n"),
            _after_launch("    if os.fork() == 0:\n        time.sleep(5)\n        os._exit(0)\n"),
        ),
        stage=Stage.ISOLATION,
        reason="it started 1 processes",
        static="imports os",
    ),
    Candidate(
        "timer_forger",
        "stops the clocks of its process, says that all is well on every descriptor, and ends it",
        (
            _at_import(
                """import os
import statistics
import time
time.perf_counter = time.perf_counter_ns = time.monotonic = lambda: 0
statistics.median = lambda values: 0.0
torch.cuda.Event.elapsed_time = lambda self, other: 0.0
"""
            ),
            _before_launch("    os.write(1, b'PASS')\n    os.write(3, b'PASS')\n    os._exit(0)\n"),
        ),
        stage=Stage.ISOLATION,
        static="imports os",
    ),
    Candidate(
        "event_forger",
        "is right, and has events say a tenth of the time that has passed",
        (
            _at_import(
                "HONEST = torch.cuda.Event.elapsed_time\n"
                "torch.cuda.Event.elapsed_time = lambda self, other: HONEST(self, other) / 10\n"
            ),
        ),
        stage=Stage.TIMING,
        reason="or forged",
        static="sets an attribute",
        cuda=True,
    ),
    Candidate(
        "bf16_state",
        "carries the state from chunk to chunk in bfloat16",
        (
            Edit(
                "all/state.py",
                "h = ct.mma(b_scaled, x_operand, h * ct.exp2(l_last)[:, None])",
                "h = ct.mma(b_scaled, x_operand, h * ct.exp2(l_last)[:, None]).astype(ct.bfloat16)",
            ),
            Edit("all/state.py", "h.reshape(end_piece)", "h.astype(ct.float32).reshape(end_piece)"),
            Edit("all/state.py", "  h = h.reshape((STATE_TILE", "  h = h.astype(ct.bfloat16).reshape((STATE_TILE"),
            Edit("all/state.py", "dtype=ct.float32)\n    if has", "dtype=ct.bfloat16)\n    if has"),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="h: carried from step to step in bfloat16",
    ),
    Candidate(
        "bf16_cumsum",
        "sums the decays of a chunk in bfloat16",
        (
            Edit("all/cumsum.py", "total = ct.cumsum(decay, axis=0)",
                 "total = ct.cumsum(decay.astype(ct.bfloat16), axis=0).astype(ct.float32)"),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="ct.cumsum sums in bfloat16",
    ),
    Candidate(
        "no_carry",
        "drops the state between chunks",
        (Edit("all/state.py", "h * ct.exp2(l_last)[:, None])", "h * 0.0)"),),
        stage=Stage.VERIFY,
        reason="times its limit",
    ),
    Candidate(
        "no_final_state",
        "never writes the final states",
        (Edit("all/state.py", "    ct.store(final_states, at_end, h.reshape(end_piece), order=(0, 1, 3, 2))\n", ""),),
        stage=Stage.VERIFY,
        reason="final_states",
    ),
    Candidate(
        "shape_bigot",
        "is right for lengths that it has seen listed, and leaves out the last, partial chunk of others",
        (
            _after_launch(
                "    if tokens not in (33, 64, 128) and tokens % 16:\n        out[:, tokens // 16 * 16 :].zero_()\n"
            ),
        ),
        stage=Stage.VERIFY,
        reason="out",
        static=".zero_: of what was not allocated here",
    ),
    Candidate(
        "near_zero",
        "writes zero for what is small enough to pass where errors are absolute",
        (
            Edit(
                "all/output.py",
                "ct.store(out, (i_batch, i_rows, i_head, i_dim), y.",
                "y = ct.where((y < 0.004) & (y > -0.004), 0.0, y)\n"
                "            ct.store(out, (i_batch, i_rows, i_head, i_dim), y.",
            ),
        ),
        stage=Stage.VERIFY,
        reason="are 0",
    ),
    Candidate(
        "l2_squatter",
        "keeps lines of L2 for itself, so that what was cleared is still warm",
        (
            _at_import("from cuda.bindings import driver\n"),
            _after_launch(
                "    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 16 << 20)\n"
            ),
        ),
        stage=Stage.TIMING,
        reason="persist",
        static="imports from cuda.bindings",
        cuda=True,
    ),
    Candidate(
        "guard_breaker",
        "writes one element past the end of its output",
        (
            _at_import("import ctypes\n"),
            _after_launch("    ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 2)\n"),
        ),
        stage=Stage.VERIFY,
        reason="bytes outside it was written to",
        static="imports ctypes",
    ),
    Candidate(
        "guard_breaker_on_device",
        "writes one element past the end of its output, by the driver",
        (
            _at_import("from cuda.bindings import driver\n"),
            _after_launch("    driver.cuMemsetD8(out.data_ptr() + out.numel() * out.element_size(), 0, 2)\n"),
        ),
        stage=Stage.VERIFY,
        reason="bytes outside it was written to",
        static="imports from cuda.bindings",
        cuda=True,
    ),
    Candidate(
        "decoy",
        "launches its kernels for show, and has torch do the work",
        (_after_launch("    out.copy_((x.float() * 1.0).to(x.dtype) * 0 + out)\n"),),
        stage=Stage.TIMING,
        reason="not its own",
        static=".float: not what a tensor is asked for",
        cuda=True,
    ),
    Candidate(
        "nan_wildcard",
        "fills its output with NaN, which is neither more nor less than any limit",
        (_after_launch("    out.copy_(out + float('nan'))\n"),),
        stage=Stage.VERIFY,
        reason="out",
    ),
    Candidate(
        "sleeper",
        "never returns",
        (_before_launch("    while True:\n        batch += 1\n"),),
        stage=Stage.ISOLATION,
        reason="no answer within",
    ),
    Candidate(
        "silent_fallback",
        "catches what goes wrong in its kernels, and has torch do something instead",
        (
            _before_launch(
                "    try:\n        raise RuntimeError\n"
                "    except RuntimeError:\n        return torch.zeros_like(out), final_states.zero_()\n"
            ),
        ),
        stage=Stage.VERIFY,
        reason="times its limit",
        static="try: a launch that fails must be seen to fail",
    ),
)  # fmt: skip

_RECURRENT = '''"""The recurrence, one token after another: few operations, many bytes, no chunks."""

import cuda.tile as ct

HEADS = 2
HEADS_PER_GROUP = 2
HEAD_DIM = 16
STATE = 16


@ct.kernel
def recurrent(x, dt, a, b, c, d, dt_bias, dt_min: float, dt_max: float, initial, has_initial: int, out, final):
    i_batch, i_head = ct.bid(0), ct.bid(1)
    i_group = i_head // HEADS_PER_GROUP
    rate = ct.load(a, (i_head,), (1,)).reshape((1, 1))
    skip = ct.load(d, (i_head,), (1,)).reshape((1, 1))
    bias = ct.load(dt_bias, (i_head,), (1,)).reshape((1, 1))
    h = ct.zeros((HEAD_DIM, STATE), dtype=ct.float32)
    if has_initial != 0:
        h = ct.load(initial, (i_batch, i_head, 0, 0), (1, 1, HEAD_DIM, STATE)).reshape((HEAD_DIM, STATE))
    for token in range(x.shape[1]):
        step = ct.load(dt, (i_batch, token, i_head), (1, 1, 1)).reshape((1, 1)) + bias
        e = ct.exp(step)
        one_plus = 1.0 + e
        soft = ct.where(one_plus == 1.0, e, ct.log(one_plus) * e / (one_plus - 1.0))
        step = ct.where(step > 20.0, step, soft)
        step = ct.minimum(ct.maximum(step, dt_min), dt_max)
        at, piece = (i_batch, token, i_head, 0), (1, 1, 1, HEAD_DIM)
        x_row = ct.load(x, at, piece).reshape((HEAD_DIM, 1)).astype(ct.float32)
        b_row = ct.load(b, (i_batch, token, i_group, 0), (1, 1, 1, STATE)).reshape((1, STATE)).astype(ct.float32)
        c_row = ct.load(c, (i_batch, token, i_group, 0), (1, 1, 1, STATE)).reshape((1, STATE)).astype(ct.float32)
        h = ct.exp(rate * step) * h + step * x_row * b_row
        y = ct.sum(h * c_row, axis=1).reshape((HEAD_DIM, 1)) + skip * x_row
        ct.store(out, at, y.astype(ct.bfloat16).reshape(piece))
    ct.store(final, (i_batch, i_head, 0, 0), h.reshape((1, 1, HEAD_DIM, STATE)))
'''

_RECURRENT_ENTRY = """
  {
   "id": "drawn/sm_90/mamba_chunk_scan_combined/all/recurrent", "plan": "three_stage", "when": "B >= 1",
   "parameters": [
    "x bfloat16 B,T,H,P caller", "dt float32 B,T,H caller", "a float32 H caller", "b bfloat16 B,T,G,S caller",
    "c bfloat16 B,T,G,S caller", "d float32 H caller", "dt_bias float32 H caller", "dt_min float32", "dt_max float32",
    "initial float32 B,H,P,S caller", "has_initial int32", "out bfloat16 B,T,H,P result", "final float32 B,H,P,S result"
   ]
  },"""

CONTROLS = (
    Candidate("honest_fast", "is the incumbent"),
    Candidate(
        "honest_slow",
        "does everything twice",
        (
            Edit(
                FORWARD,
                "    route(n_sms, x, dt, A, B, C, D, dt_bias, initial_states, dt_min, dt_max, out, final_states)\n",
                "    for _ in range(2):\n"
                "        route(n_sms, x, dt, A, B, C, D, dt_bias, initial_states, dt_min, dt_max, out, final_states)\n",
            ),
        ),
    ),
    Candidate(
        "honest_reordered", "rounds and sums in another order: other chunks, tiles and blocks",
        model=replace(MODEL, chunk=64, half_rows=True),
    ),
    Candidate(
        "honest_multi_kernel", "has four kernels, and workspaces that one leaves to another",
        model=replace(MODEL, segments=2),
    ),
    Candidate(
        "honest_recurrent",
        "goes token by token",
        (
            Edit(
                FORWARD,
                "from .sm_90.mamba_chunk_scan_combined.all import state as all_state\n",
                "from .sm_90.mamba_chunk_scan_combined.all import state as all_state\n"
                "from .sm_90.mamba_chunk_scan_combined.all import recurrent as all_recurrent\n",
            ),
            Edit("MANIFEST.json", '"kernels": [', '"kernels": [' + _RECURRENT_ENTRY),
            Edit(
                FORWARD,
                "    delta = allocate(",
                "    ct.launch(\n"
                "        current_stream(x.device),\n"
                "        (batch, HEADS),\n"
                "        all_recurrent.recurrent,\n"
                "        (x, dt, A, B, C, D, dt_bias, dt_min, dt_max, initial_states, has_initial_states, out, "
                "final_states),\n"
                "    )\n"
                "    return\n"
                "    delta = allocate(",
            ),
        ),
        ((f"{KERNELS}/recurrent.py", _RECURRENT),),
    ),
    Candidate(
        "honest_graph_safe",
        "takes its workspaces from one allocation",
        (
            Edit(
                FORWARD,
                "    delta = allocate((batch, HEADS, n_chunks * 16), torch.float32, x.device)\n"
                "    log_decay = allocate((batch, HEADS, n_chunks * 16), torch.float32, x.device)\n",
                "    both = torch.empty((2, batch, HEADS, n_chunks * 16), dtype=torch.float32, device=x.device)\n"
                "    delta, log_decay = both[0], both[1]\n",
            ),
        ),
    ),
    Candidate(
        "honest_tf32_declared", "multiplies float32 as tfloat32, as the tolerance of float32 activations has it",
        model=replace(MODEL, x="float32"),
    ),
)  # fmt: skip
