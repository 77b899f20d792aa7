"""Starts worker processes through a small server process, and reports how they ended.

The server has imported what workers need and runs no threads, so a worker that it forks is there in
some milliseconds and begins clean, whatever threads the trainer runs. It does not import the main
program, which therefore needs no ``if __name__ == "__main__"``. The server ends with the process
that it serves, however that ends, and its workers end with it.

`Launcher` is the parent's side, `serve` the life of the server.
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
import weakref
from collections.abc import Sequence
from contextlib import suppress

import psutil

from slipstream.core.child_process import (
    TERMINATE_SECONDS,
    block_stop_signals,
    describe_exit,
    ignore_stop_signals,
    is_orphaned,
)
from slipstream.core.errors import ConfigError
from slipstream.gym.process import env_worker

_REQUEST = struct.Struct("=cq")  # FORK or SPAWN and 0, or END and a process
_ANSWER = struct.Struct("=q")  # a process, or how it ended as subprocess says it
_FORK, _SPAWN, _END = b"F", b"S", b"E"
_LOOK_SECONDS = 1.0  # between two looks at a parent or a server that says nothing
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}(*{arguments!r})"


def program(module: str, name: str, *arguments: object) -> list[str]:
    """Command line of a fresh interpreter that calls a function, with this one's search path."""
    path = [os.path.abspath(part) for part in sys.path]
    text = _PROGRAM.format(path=path, module=module, name=name, arguments=arguments)
    return [sys.executable, "-c", text]


def serve(fd: int, parent: int) -> None:
    """Answers requests on a socket until the other end or the parent is gone."""
    ignore_stop_signals()
    line = socket.socket(fileno=fd)
    children: set[int] = set()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    alive = _pidfd(parent)
    if alive is not None:
        poller.register(alive, select.POLLIN)
    try:
        while not is_orphaned(parent):
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
    data, fds, _, _ = socket.recv_fds(line, _REQUEST.size, env_worker.DESCRIPTORS)
    if len(data) < _REQUEST.size:
        return False
    what, pid = _REQUEST.unpack(data)
    if what == _END:
        line.sendall(_ANSWER.pack(_ending(pid)))
        children.discard(pid)
        return True
    own = [line.fileno(), *([] if alive is None else [alive])]
    try:
        pid = _fork(fds, own) if what == _FORK else _spawn(fds)
        children.add(pid)
    except OSError as error:
        pid = -(error.errno or 1)
    for fd in fds:
        os.close(fd)
    line.sendall(_ANSWER.pack(pid))
    return True


def _fork(fds: Sequence[int], own: Sequence[int]) -> int:
    """A worker forked from here, without the descriptors `own`; its process."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in own:
            with suppress(OSError):
                os.close(fd)
        env_worker.run(fds, parent)
    return pid


def _spawn(fds: Sequence[int]) -> int:
    command = program("slipstream.gym.process.env_worker", "run", tuple(fds), os.getpid())
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds) as process:
        pid = process.pid
        process.returncode = 0  # `_ending` waits for it
    return pid


def _ending(pid: int) -> int:
    """Waits for a worker's end, kills it after a while."""
    until = time.monotonic() + TERMINATE_SECONDS
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


_STOPPED_LOOKS = 2  # one after the other: with a group that is stopped it goes on, too
_ANSWER_SECONDS = 60.0  # of a request; the longest kills a worker that does not end for 10 s
METHODS = ("forkserver", "spawn")


class Launcher:
    """Starts workers.

    Args:
        method: "forkserver" (from a small clean process) or "spawn" (an interpreter for each).

    Raises:
        ConfigError: an unknown method, or a system without these means.
    """

    def __init__(self, method: str = "forkserver") -> None:
        check_method(method)
        self.method = method
        self._line: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        # Also when nobody closes this launcher.
        self._end_server: weakref.finalize[..., Launcher] | None = None

    def start(self, fds: Sequence[int]) -> int:
        """A worker with these descriptors; its process.

        Args:
            fds: what `worker.run` takes.

        Raises:
            OSError: the system allows no more processes, open files or memory.
        """
        what = _SPAWN if self.method == "spawn" else _FORK
        try:
            pid = self._ask(what, 0, fds)
        except ConnectionError:
            pid = self._ask(what, 0, fds)  # of a new server
        if pid <= 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def ending(self, pid: int) -> str:
        """How a worker ended that is gone or was killed: ``was killed by SIGKILL``."""
        try:
            return describe_exit(self._ask(_END, pid))
        except OSError:
            return "was lost with the process that had started it"

    def _ask(self, what: bytes, pid: int, fds: Sequence[int] = ()) -> int:
        if self._line is None:
            self._begin()
        assert self._line is not None
        try:
            socket.send_fds(self._line, [_REQUEST.pack(what, pid)], list(fds))
            answer = self._answer(self._line)
        except OSError:
            answer = b""
        if len(answer) < _ANSWER.size:  # the server was killed, and its workers with it
            self._forget()
            raise ConnectionError("the process that starts workers is gone")
        return int(_ANSWER.unpack(answer)[0])

    def _answer(self, line: socket.socket) -> bytes:
        """What the server answers; nothing where it is gone.

        One that somebody stopped, or that says nothing for long, is killed: another one follows.
        """
        assert self._server is not None
        until, stopped = time.monotonic() + _ANSWER_SECONDS, 0
        while stopped < _STOPPED_LOOKS and time.monotonic() < until:
            try:
                return line.recv(_ANSWER.size, socket.MSG_WAITALL)
            except TimeoutError:
                with suppress(psutil.Error):
                    still = psutil.Process(self._server.pid).status() == psutil.STATUS_STOPPED
                    stopped = stopped + 1 if still else 0
        self._server.kill()
        return b""

    def _begin(self) -> None:
        mine, theirs = socket.socketpair()
        command = program("slipstream.gym.process.launcher", "serve", theirs.fileno(), os.getpid())
        try:
            with block_stop_signals():  # it imports for a second before it ignores them
                self._server = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()
        mine.settimeout(_LOOK_SECONDS)
        self._line = mine
        self._end_server = weakref.finalize(self, _end, mine, self._server)

    def _forget(self) -> None:
        if self._end_server is not None:
            self._end_server()
        self._line = self._server = self._end_server = None

    def close(self) -> None:
        """Ends the server and every worker that still runs."""
        self._forget()


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """The server ends when its line does, and its workers with it."""
    line.close()
    try:
        process.wait(TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_method(method: str) -> None:
    """Raises where a method cannot be used here and now."""
    if method not in METHODS:
        raise ConfigError(
            f"Worker processes start by `forkserver` or `spawn`, got `{method}`. Use `forkserver`, "
            "the default: it forks workers from a small process that runs no threads."
        )
    if not hasattr(socket, "send_fds") or not hasattr(os, "fork"):
        raise ConfigError(
            "`backend: process` hands open files to its workers, which this system cannot do; "
            "use `backend: serial`, or a kernel."
        )
