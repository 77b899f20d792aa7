"""Start worker processes through a small server process and report how they exited.

The server has imported the modules that workers need and runs no threads. A forked worker is ready
within milliseconds and inherits no threads of the trainer. The server does not import the main
program, which therefore needs no ``if __name__ == "__main__"``. The server and its workers exit
with the process they serve, however it ends.

`Launcher` is the parent's side, `serve` the server.
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
_ANSWER = struct.Struct("=q")  # a pid, or an exit code as in subprocess
_FORK, _SPAWN, _END = b"F", b"S", b"E"
_LOOK_SECONDS = 1.0  # between checks of a silent parent or server
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import {name}; {name}(*{arguments!r})"


def program(module: str, name: str, *arguments: object) -> list[str]:
    """Return the command line of an interpreter that calls a function with the same `sys.path`."""
    path = [os.path.abspath(part) for part in sys.path]
    text = _PROGRAM.format(path=path, module=module, name=name, arguments=arguments)
    return [sys.executable, "-c", text]


def serve(fd: int, parent: int) -> None:
    """Answer requests on a socket until the other end or the parent has exited."""
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
    except (AttributeError, OSError):  # another system, or the parent has exited
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
    own_fds = [line.fileno(), *([] if alive is None else [alive])]
    try:
        pid = _fork(fds, own_fds) if what == _FORK else _spawn(fds)
        children.add(pid)
    except OSError as error:
        pid = -(error.errno or 1)
    for fd in fds:
        os.close(fd)
    line.sendall(_ANSWER.pack(pid))
    return True


def _fork(fds: Sequence[int], own_fds: Sequence[int]) -> int:
    """Fork a worker without the descriptors `own` and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in own_fds:
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
    """Wait for the exit of a worker; kill it after a while."""
    until = time.monotonic() + TERMINATE_SECONDS
    while True:
        try:
            exited_pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if exited_pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


_STOPPED_LOOKS = 2  # consecutive; a stopped process group continues together
_ANSWER_SECONDS = 60.0  # per request; the longest one waits 10 s before it kills a worker
METHODS = ("forkserver", "spawn")


class Launcher:
    """Starts workers.

    Args:
        method: "forkserver" forks from a small clean process; "spawn" starts an interpreter each.

    Raises:
        ConfigError: The method is unknown or not supported by this system.
    """

    def __init__(self, method: str = "forkserver") -> None:
        check_method(method)
        self.method = method
        self._line: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        # Runs even if the launcher is never closed.
        self._end_server: weakref.finalize[..., Launcher] | None = None

    def start(self, fds: Sequence[int]) -> int:
        """Start a worker and return its process id.

        Args:
            fds: Descriptors for `env_worker.run`.

        Raises:
            OSError: The system is out of processes, open files or memory.
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
        """Describe the exit of a worker, for example ``was killed by SIGKILL``."""
        try:
            return describe_exit(self._ask(_END, pid))
        except OSError:
            return "was lost with the process that started it"

    def _ask(self, what: bytes, pid: int, fds: Sequence[int] = ()) -> int:
        if self._line is None:
            self._begin()
        assert self._line is not None
        try:
            socket.send_fds(self._line, [_REQUEST.pack(what, pid)], list(fds))
            answer = self._answer(self._line)
        except OSError:
            answer = b""
        if len(answer) < _ANSWER.size:  # the server was killed, with its workers
            self._forget()
            raise ConnectionError("the process that starts workers has exited")
        return int(_ANSWER.unpack(answer)[0])

    def _answer(self, line: socket.socket) -> bytes:
        """Return the answer of the server, or nothing if it has exited.

        A stopped or silent server is killed; the next request starts another one.
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
            with block_stop_signals():  # it ignores them after its imports, about a second
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
        """Terminate the server and all of its workers."""
        self._forget()


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the socket, which ends the server and its workers."""
    line.close()
    try:
        process.wait(TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_method(method: str) -> None:
    """Raise ConfigError if a start method is not available."""
    if method not in METHODS:
        raise ConfigError(
            f"Worker processes start by `forkserver` or `spawn`, got `{method}`. Use `forkserver`, "
            "the default: it forks workers from a small process that runs no threads."
        )
    if not hasattr(socket, "send_fds") or not hasattr(os, "fork"):
        raise ConfigError(
            "`backend: process` sends open files to its workers, which this system does not "
            "support. Use `backend: serial`, or a kernel."
        )
