"""The checker's side of candidates' processes: start them, tell them what to do, watch them from outside, end them.

    Zygote (has imported torch, never touched a GPU) -> Worker, Worker, …   each a fork, one candidate each

It believes no answer; that there is one, in time, is all that it takes from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ssmgen.check import confinement
from ssmgen.check.memory import Memory
from ssmgen.check.placement import Placed
from ssmgen.check.verdict import Finding, Stage
from ssmgen.check.worker import AWAKE, DONE, GO, PAGE, WAKE, WORD, receive, send

# seconds: to be there, CUDA's context and torch's import included; to do one thing; to stop
START, CALL, STOP = 120.0, 60.0, 5.0
# looks at a batch's word between two at the clock
_SPINS = 20_000
# bytes of what a candidate printed that a finding shows
_SHOWN = 300


class Gone(RuntimeError):  # noqa: N818 - what became of a process
    """The process that forks candidates has ended."""


class Lost(Exception):  # noqa: N818 - no error of the program's: what became of a candidate
    """A candidate's process died, hung, answered nonsense, or did what it must not."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Tampered(Lost):
    """Files that were read and sealed have changed: whosever they are, a candidate did it."""


@dataclass(frozen=True)
class Package:
    """A candidate as a process opens it."""

    folder: Path
    archive: Path | None = None
    """Its cubins; None to interpret its kernels, on the CPU."""
    seal: str | None = None
    """Of all its bytes, since when none may change; see `sealed`."""

    def sealed(self) -> Package:
        """The same, which no process opens any more once a byte of it has changed."""
        return replace(self, seal=self._digest())

    def check_seal(self) -> None:
        """Tampered, where something has changed."""
        if self.seal is not None and self.seal != self._digest():
            raise Tampered(Finding(Stage.ISOLATION, f"files of {self.folder.name} changed after they were read"))

    def _digest(self) -> str:
        found = hashlib.sha256()
        for root in (self.folder, *([self.archive] if self.archive else [])):
            for path in sorted([root] if root.is_file() else root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    found.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                    found.update(path.read_bytes())
        return found.hexdigest()


class Zygote:
    """A process that has imported torch, and from which candidates' processes are forked: cheap, and fresh."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ssmgen-check-"))
        ours, theirs = socket.socketpair()
        with (self.folder / "zygote.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ssmgen.check.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the checker, which then ends them all
                start_new_session=True,
            )
        theirs.close()
        self._channel = ours
        self._count = 0
        self._workers: set[int] = set()
        self.left = 0
        """How many processes candidates left behind, which were then killed."""

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*confinement.descendants(self._process.pid), self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fork(self, memory: Memory, device: str) -> Worker:
        """A fresh process that maps `memory`; it is there once `Worker.ready` returns."""
        self._count += 1
        folder = self.folder / str(self._count)
        folder.mkdir()
        page = os.memfd_create("ssmgen-page")
        os.ftruncate(page, PAGE)
        ours, theirs = socket.socketpair()
        known, fds = memory.share()
        order = {"do": "fork", "folder": str(folder), "device": device, "memory": known}
        with (folder / "log.txt").open("wb") as log:
            answer = self._ask(order, (theirs.fileno(), page, log.fileno(), *fds))
        theirs.close()
        self._workers.add(answer["process"])
        return Worker(answer["process"], ours, mmap.mmap(page, PAGE), folder)

    def reap(self, process: int) -> int:
        """What waitpid says of a process that has ended; what it left behind ends as well."""
        status = int(self._ask({"do": "reap", "process": process})["status"])
        self._workers.discard(process)
        known = {each for worker in self._workers for each in (worker, *confinement.descendants(worker))}
        for stray in confinement.descendants(self._process.pid):
            if stray not in known and not confinement.ended(stray):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stray, signal.SIGKILL)
                deadline = time.monotonic() + STOP
                while not confinement.ended(stray) and time.monotonic() < deadline:
                    time.sleep(0.001)
                self.left += 1
        return status

    def _ask(self, order: Mapping[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        self._channel.settimeout(START)
        try:
            send(self._channel, order, fds)
            answer: dict[str, Any] = receive(self._channel)[0]
        except (OSError, EOFError, TimeoutError):
            said = (self.folder / "zygote.log").read_text(errors="replace")
            raise Gone(f"the process that forks candidates is gone: {said[-_SHOWN:]}") from None
        return answer


class Worker:
    """One candidate's process."""

    def __init__(self, process: int, channel: socket.socket, words: mmap.mmap, folder: Path) -> None:
        self.process = process
        self._channel = channel
        self._words = words
        self._folder = folder
        self._threads = 0
        self._batches = 0

    def ready(self) -> None:
        """Wait until it is confined and has its memory; its threads from now on are the candidate's doing."""
        self._answer(START, Stage.ISOLATION)
        self._threads = confinement.threads(self.process)

    def open(self, package: Package) -> None:
        """Import the candidate."""
        package.check_seal()
        # it has a folder of its own to be in
        archive = None if package.archive is None else str(package.archive.resolve())
        self._order({"do": "open", "package": str(package.folder.resolve()), "archive": archive}, Stage.BUILD)
        self.watch()

    def call(self, placed: Placed) -> None:
        """One call, which has returned and whose work on the current stream is done."""
        self._order({"do": "call", "call": placed.as_json()}, Stage.VERIFY)

    def arm(self, calls: list[Placed], graph: bool) -> None:
        """Have it make a batch ready, whose inputs need not be there yet."""
        self._batches += 1
        placed = [call.as_json() for call in calls]
        order = {"do": "batch", "calls": placed, "graph": graph, "number": self._batches}
        self._order(order, Stage.TIMING, "armed")

    def batch(self) -> tuple[float, float, dict[str, Any]]:
        """Microseconds of the batch by this process's clock, from then to the answer, and what that says."""
        self._until(WAKE, AWAKE)
        start = time.perf_counter_ns()
        self._until(GO, DONE)
        done = time.perf_counter_ns()
        answer = self._answer(CALL, Stage.TIMING)
        return (done - start) / 1e3, (time.perf_counter_ns() - done) / 1e3, answer

    def _until(self, due: int, done: int) -> None:
        """Write one word, and wait for the other, or for what means that it will not come."""
        words, number = self._words, self._batches
        deadline = time.monotonic() + CALL
        WORD.pack_into(words, due, number)
        spins = 0
        while WORD.unpack_from(words, done)[0] != number:
            spins += 1
            if spins % _SPINS == 0 and (time.monotonic() > deadline or self._has_answered()):
                return

    def profile(self, calls: list[Placed], graph: bool) -> dict[str, Any]:
        """What a profiler in the candidate's process says of a batch."""
        placed = [call.as_json() for call in calls]
        return self._order({"do": "profile", "calls": placed, "graph": graph}, Stage.TIMING)

    def watch(self) -> None:
        """Lost, if it has threads or processes that it had not when it was ready."""
        if started := confinement.descendants(self.process):
            raise Lost(Finding(Stage.ISOLATION, f"it started {len(started)} processes"))
        more = confinement.threads(self.process) - self._threads
        if more > 0:
            raise Lost(Finding(Stage.ISOLATION, f"it started {more} threads, which may work on after a call"))

    def end(self) -> None:
        """Kill it and whatever it started."""
        for process in (*confinement.descendants(self.process), self.process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._channel.close()

    def _order(self, order: Mapping[str, Any], stage: Stage, awaited: str = "done") -> dict[str, Any]:
        try:
            self._channel.settimeout(CALL)
            send(self._channel, order)
        except OSError:
            raise Lost(self._died()) from None
        return self._answer(CALL, stage, awaited)

    def _answer(self, seconds: float, stage: Stage, awaited: str = "done") -> dict[str, Any]:
        self._channel.settimeout(seconds)
        try:
            answer = receive(self._channel)[0]
        except TimeoutError:
            raise Lost(Finding(Stage.ISOLATION, f"no answer within {seconds:.0f} s: hung, and killed")) from None
        except (EOFError, ConnectionError):
            raise Lost(self._died()) from None
        except (ValueError, OSError, RecursionError):
            raise Lost(Finding(Stage.ISOLATION, "it wrote into the channel to the checker")) from None
        status = answer.get("status") if isinstance(answer, dict) else None
        if status == "failed":
            raise Lost(Finding(stage, str(answer.get("what"))))
        if status not in (awaited, "ready"):
            raise Lost(Finding(Stage.ISOLATION, "it wrote into the channel to the checker"))
        return dict(answer)

    def _has_answered(self) -> bool:
        """Whether something, or the end, waits in the channel."""
        self._channel.setblocking(False)
        try:
            return self._channel.recv(1, socket.MSG_PEEK) is not None
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _died(self) -> Finding:
        said = (self._folder / "log.txt").read_text(errors="replace").strip()
        return Finding(Stage.ISOLATION, f"its process ended{': …' + said[-_SHOWN:] if said else ''}")
