"""The candidate's process: takes places in memory, calls the candidate, says that it is done.

    python -P -m ssmgen.check.worker FD    imports torch, touches no GPU, and forks such a process when told to

It never holds an expected value, a seed, or the clock that decides: what it answers is believed of nothing but itself.
The protocol is JSON, each message behind its length; `process` is the other side.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("<I")
WORD = struct.Struct("<q")
# bytes of the page through which batches are started, and where in it the words are: a batch's number, once it is due
PAGE, WAKE, AWAKE, GO, DONE = 4096, 0, 64, 128, 192
_MOST_FDS = 4
# of what a candidate raises, characters
_SAID = 400


def send(channel: socket.socket, value: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """One message, with file descriptors."""
    data = json.dumps(value).encode()
    if fds:
        socket.send_fds(channel, [LENGTH.pack(len(data))], fds)
        channel.sendall(data)
    else:
        channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, most: int = 1 << 26) -> tuple[Any, list[int]]:
    """The next message and its file descriptors; EOFError where there is none, ValueError for what is none."""
    head, fds, _, _ = socket.recv_fds(channel, LENGTH.size, _MOST_FDS)
    if not head:
        raise EOFError
    head += _exactly(channel, LENGTH.size - len(head))
    (size,) = LENGTH.unpack(head)
    if size > most:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_exactly(channel, size)), fds


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def main() -> None:
    """Fork on demand, and wait for what was forked."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    from ssmgen.check import confinement

    confinement.adopt()
    # what every fork would import for itself; none of it asks for a GPU
    import ssmgen.check.runner
    import ssmgen.loading  # noqa: F401

    # one pool of threads less to fork in the midst of
    torch.set_num_threads(1)
    forked: set[int] = set()
    with contextlib.suppress(EOFError):
        while True:
            order, fds = receive(channel)
            if order["do"] == "fork":
                process = os.fork()
                if process == 0:
                    _candidate(order, fds)
                forked.add(process)
                for fd in fds:
                    os.close(fd)
                send(channel, {"process": process})
            else:
                status = os.waitpid(order["process"], 0)[1]
                forked.discard(order["process"])
                _forget_adopted(forked)
                send(channel, {"status": status})


def _forget_adopted(forked: set[int]) -> None:
    """Reap what has ended and was a candidate's child, not this process's."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in forked:
                return
            os.waitpid(ended.si_pid, 0)


def _candidate(order: Mapping[str, Any], fds: list[int]) -> None:
    """All of a forked process's life."""
    from ssmgen.check import confinement

    folder = Path(order["folder"])
    try:
        number, page, log, *shared = fds
        confinement.confine(folder, (number, page, *shared), log)
        channel = socket.socket(fileno=number)
        words = mmap.mmap(page, PAGE)
        from ssmgen.check.runner import Runner

        runner = Runner(order["device"], order["memory"], shared)
        send(channel, {"status": "ready"})
        while True:
            order, _ = receive(channel)
            send(channel, _obey(runner, order, channel, words))
    except EOFError:
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def _obey(runner: Any, order: Mapping[str, Any], channel: socket.socket, words: mmap.mmap) -> dict[str, Any]:
    try:
        if order["do"] == "batch":
            batch = runner.batch(order)
            send(channel, {"status": "armed"})
            for due, act, done in ((WAKE, batch.wake, AWAKE), (GO, batch.start, DONE)):
                while WORD.unpack_from(words, due)[0] != order["number"]:
                    pass
                act()
                WORD.pack_into(words, done, order["number"])
            return {"status": "done", **batch.reported()}
        return {"status": "done", **getattr(runner, order["do"])(order)}
    except BaseException as e:
        import traceback

        traceback.print_exc()
        return {"status": "failed", "what": f"{type(e).__name__}: {e}"[:_SAID]}


if __name__ == "__main__":
    main()
