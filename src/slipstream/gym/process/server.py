"""A small process that starts workers: they begin clean, whatever threads the trainer runs.

Forked from a process that has imported what they need and nothing else, a worker is there in some
milliseconds. It does not import the main program, so that needs no ``if __name__ == "__main__"``.
The server ends with the process that it serves, however that ends, and its workers with it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from slipstream.core.process import PATIENCE_SECONDS, ignore_stops, orphaned
from slipstream.gym.process import worker

REQUEST = struct.Struct("=cq")  # FORK or SPAWN and 0, or END and a process
ANSWER = struct.Struct("=q")  # a process, or how it ended as subprocess says it
FORK, SPAWN, END = b"F", b"S", b"E"
_LOOK_SECONDS = 1.0  # between two looks at whether the parent lives, where it cannot be waited for
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}(*{arguments!r})"


def program(module: str, name: str, *arguments: object) -> list[str]:
    """Command line of a fresh interpreter that calls a function, with this one's search path."""
    path = [os.path.abspath(part) for part in sys.path]
    text = _PROGRAM.format(path=path, module=module, name=name, arguments=arguments)
    return [sys.executable, "-c", text]


def serve(fd: int, parent: int) -> None:
    """Answers requests on a socket until the other end or the parent is gone."""
    ignore_stops()
    line = socket.socket(fileno=fd)
    children: set[int] = set()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    alive = _pidfd(parent)
    if alive is not None:
        poller.register(alive, select.POLLIN)
    try:
        while not orphaned(parent):
            ready = dict(poller.poll(_LOOK_SECONDS * 1000))
            if alive in ready:
                break
            if fd in ready and not _answer(line, children, alive):
                break
    finally:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system; the parent is gone
        return None


def _answer(line: socket.socket, children: set[int], alive: int | None) -> bool:
    data, fds, _, _ = socket.recv_fds(line, REQUEST.size, worker.DESCRIPTORS)
    if len(data) < REQUEST.size:
        return False
    what, pid = REQUEST.unpack(data)
    if what == END:
        line.sendall(ANSWER.pack(_ending(pid)))
        children.discard(pid)
        return True
    own = [line.fileno(), *([] if alive is None else [alive])]
    try:
        pid = _fork(fds, own) if what == FORK else _spawn(fds)
        children.add(pid)
    except OSError as error:
        pid = -(error.errno or 1)
    for fd in fds:
        os.close(fd)
    line.sendall(ANSWER.pack(pid))
    return True


def _fork(fds: Sequence[int], own: Sequence[int]) -> int:
    """A worker forked from here, without the descriptors `own`; its process."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in own:
            with suppress(OSError):
                os.close(fd)
        worker.run(fds, parent)
    return pid


def _spawn(fds: Sequence[int]) -> int:
    command = program("slipstream.gym.process.worker", "run", tuple(fds), os.getpid())
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds) as process:
        pid = process.pid
        process.returncode = 0  # `_ending` waits for it
    return pid


def _ending(pid: int) -> int:
    """Waits for a worker's end, kills it after a while."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
