"""What a candidate's process may do: nothing of its parent's, no privileges, a folder of its own, an empty environment.

It bounds accidents and scripts. Native code in a process can do to that process what it likes; that is why nothing that
decides is ever in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

# of prctl(2) and capget(2)
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 3, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
# bytes a candidate may leave in a file: kernels it compiles are smaller
_MOST_WRITTEN = 1 << 30
# what a Python process with CUDA needs to find its libraries; nothing that could tell it where or when it is run
_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LANG")


def confine(folder: Path, kept: Iterable[int], log: int) -> None:
    """Confine this process, which was just forked: `folder` is where it may write, `kept` its file descriptors."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setsid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # what it prints is kept for whoever looks into a rejection, and never read by the checker
    os.dup2(log, 1)
    os.dup2(log, 2)
    keep = {0, 1, 2, *kept}
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
    os.chdir(folder)
    known = {name: os.environ[name] for name in _KEPT if name in os.environ}
    os.environ.clear()
    os.environ.update(known, HOME=str(folder), TMPDIR=str(folder))
    # a new cache: what an earlier run compiled is not found again
    os.environ.update({name: str(folder / "cache") for name in ("CUDA_CACHE_PATH", "TRITON_CACHE_DIR")})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))
    _drop_capabilities(libc)


def adopt() -> None:
    """Have what is forked from this process stay below it, whoever ends in between, and none look into another."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    # fails only where there was nothing to drop
    libc.capset(header, none)


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Within it no process without privileges can read or write this one's memory, of the same user's neither."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_DUMPABLE, before, 0, 0, 0)


def threads(process: int) -> int:
    """How many threads a process has, itself included; 0 where it has ended."""
    try:
        return len(list(Path(f"/proc/{process}/task").iterdir()))
    except OSError:
        return 0


def descendants(process: int) -> list[int]:
    """Processes that a process started, and those that these did."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def ended(process: int) -> bool:
    """Whether it is gone, or waits for nothing but to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
