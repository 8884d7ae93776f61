"""Compile processes: each takes one kernel at a time, may die or overrun its time alone, and none outlives its pool.

It knows no specs, caches or archives; `compile_worker` is the program that runs in a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ssmgen import compile_worker
from ssmgen.errors import CompilerError

WORKER = Path(compile_worker.__file__)
Request = dict[str, Any]
_OUT = "kernel.cubin"


@dataclass(frozen=True)
class Failed:
    """Why a kernel has no cubin, and the line of its source, 0 where none is to blame."""

    error: str
    line: int = 0


@dataclass(frozen=True)
class Outcome:
    """A cubin or a failure, and the seconds it took."""

    result: bytes | Failed
    seconds: float


class Pool:
    """At most `size` processes, made when first needed; a request that takes longer than `timeout` seconds fails."""

    def __init__(self, size: int, timeout: float) -> None:
        self._size = size
        self._timeout = timeout
        self._folder = tempfile.TemporaryDirectory(prefix="ssmgen-compile-", ignore_cleanup_errors=True)
        self._guard = threading.Lock()
        self._stopped = False
        self._processes: list[_Process] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            self._stopped = True
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        self._folder.cleanup()

    def run(self, requests: Sequence[tuple[str, Request]]) -> Iterator[tuple[str, Outcome]]:
        """(key, outcome) of each request as it comes; begun in the order given."""
        waiting = deque(requests)
        finished: queue.SimpleQueue[tuple[str, Outcome] | BaseException] = queue.SimpleQueue()
        for i in range(self._size):
            thread = threading.Thread(target=self._serve, args=(i, waiting, finished), daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in requests:
            outcome = finished.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    def _serve(
        self,
        number: int,
        waiting: deque[tuple[str, Request]],
        finished: queue.SimpleQueue[tuple[str, Outcome] | BaseException],
    ) -> None:
        process = None
        with contextlib.suppress(IndexError):
            while not self._stopped:
                key, request = waiting.popleft()
                try:
                    if process is None or process.dead:
                        process = self._start(number)
                    finished.put((key, process.compile(request, self._timeout)))
                except Exception as e:
                    finished.put(e)

    def _start(self, number: int) -> _Process:
        folder = Path(self._folder.name) / str(number)
        folder.mkdir(exist_ok=True)
        with self._guard:
            if self._stopped:
                raise CompilerError("stopped")
            process = _Process(folder)
            self._processes.append(process)
        return process


class _Process:
    """One compile process, in a folder and a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = folder / "stderr.txt"
        self._overran = False
        self._ended = False
        with self._said.open("wb") as stderr:
            self._process = subprocess.Popen(
                # -P: or ssmgen's own modules would stand before the standard library's
                [sys.executable, "-P", str(WORKER)],
                cwd=folder,
                env=_environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # Ctrl-C is for the parent, which then ends the whole group, tileiras included
                start_new_session=True,
            )

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process and all that it started; a second time there is nothing left to end."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def compile(self, request: Request, timeout: float) -> Outcome:
        """One request, start to end."""
        begun = time.monotonic()
        timer = threading.Timer(timeout, self._overrun)
        timer.start()
        try:
            answer = self._ask(request | {"out": _OUT})
        finally:
            timer.cancel()
        seconds = time.monotonic() - begun
        if answer is None:
            return Outcome(self._death(timeout), seconds)
        if "error" in answer:
            return Outcome(Failed(answer["error"], answer["line"]), seconds)
        return Outcome((self._folder / _OUT).read_bytes(), seconds)

    def _ask(self, request: Request) -> dict[str, Any] | None:
        stdin, stdout = _open(self._process.stdin), _open(self._process.stdout)
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def _overrun(self) -> None:
        self._overran = True
        self.kill()

    def _death(self, timeout: float) -> Failed:
        self.kill()
        if self._overran:
            return Failed(f"stopped after {timeout:g} s; smaller tiles or fewer heads a block compile faster")
        said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        status = self._process.returncode
        how = f"exit status {status}"
        if status < 0:
            how = signal.Signals(-status).name + (", perhaps for want of memory" if status == -signal.SIGKILL else "")
        return Failed(": ".join([f"the compile process died ({how})", *said]))


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _environment(folder: Path) -> dict[str, str]:
    """The caller's, without what would change the code or leave files about."""
    odd = ("CUDA_TILE_", "EXPERIMENTAL_CUDA_TILE_", "CUDA_HOME", "CUDA_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(odd)}
    # its own cache is keyed by less than ours; its temporary folder would outlive a killed process
    return kept | {"CUDA_TILE_CACHE_DIR": "off", "CUDA_TILE_TEMP_DIR": str(folder / "cutile")}
