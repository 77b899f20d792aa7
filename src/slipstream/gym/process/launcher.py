"""Starts worker processes by one of two methods, and hears how they ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

import psutil

from slipstream.core.errors import ConfigError
from slipstream.core.process import PATIENCE_SECONDS, ending, not_started, stops_held_back
from slipstream.gym.process import server

_LOOK_SECONDS = 1.0  # between two looks at a server that says nothing
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
            ResourceError: the system allows no more processes, open files or memory.
        """
        try:
            what = server.SPAWN if self.method == "spawn" else server.FORK
            try:
                pid = self._ask(what, 0, fds)
            except ConnectionError:
                pid = self._ask(what, 0, fds)  # of a new server
            if pid > 0:
                return pid
            raise OSError(-pid, os.strerror(-pid))
        except OSError as error:
            raise not_started(error, "give fewer workers") from error

    def ending(self, pid: int) -> str:
        """How a worker ended that is gone or was killed: ``was killed by SIGKILL``."""
        try:
            return ending(self._ask(server.END, pid))
        except OSError:
            return "was lost with the process that had started it"

    def _ask(self, what: bytes, pid: int, fds: Sequence[int] = ()) -> int:
        if self._line is None:
            self._begin()
        assert self._line is not None
        try:
            socket.send_fds(self._line, [server.REQUEST.pack(what, pid)], list(fds))
            answer = self._answer(self._line)
        except OSError:
            answer = b""
        if len(answer) < server.ANSWER.size:  # the server was killed, and its workers with it
            self._forget()
            raise ConnectionError("the process that starts workers is gone")
        return int(server.ANSWER.unpack(answer)[0])

    def _answer(self, line: socket.socket) -> bytes:
        """What the server answers; nothing where it is gone.

        One that somebody stopped, or that says nothing for long, is killed: another one follows.
        """
        assert self._server is not None
        until, stopped = time.monotonic() + _ANSWER_SECONDS, 0
        while stopped < _STOPPED_LOOKS and time.monotonic() < until:
            try:
                return line.recv(server.ANSWER.size, socket.MSG_WAITALL)
            except TimeoutError:
                with suppress(psutil.Error):
                    still = psutil.Process(self._server.pid).status() == psutil.STATUS_STOPPED
                    stopped = stopped + 1 if still else 0
        self._server.kill()
        return b""

    def _begin(self) -> None:
        mine, theirs = socket.socketpair()
        command = server.program(
            "slipstream.gym.process.server", "serve", theirs.fileno(), os.getpid()
        )
        try:
            with stops_held_back():  # it imports for a second before it ignores them
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
        process.wait(PATIENCE_SECONDS)
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
