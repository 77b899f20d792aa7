"""Child process: forked from this one, served over a pipe, and terminated with its parent.

Shards of a run and workers of a study are child processes. A child may have children of its own.
Children created here end with their parent, however it is killed. Processes started in other ways
(workers of a fork server, other programs) must watch for the end of their parent themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet

from slipstream.core.child_process import describe_exit, follow_parent, worker_start_error
from slipstream.core.errors import SlipstreamError

_BEFORE_WAITING = 100  # exit priority: before multiprocessing waits for its children
_children: WeakSet[ChildProcess] = WeakSet()

THREADED = frozenset({"jax", "ray", "tensorflow"})
"""Libraries whose threads do not survive a fork and do not allow one."""


class ChildProcess:
    """A forked process that shares everything loaded before the fork.

    Args:
        serve: runs in the child with its end of the pipe, until it returns or the pipe is closed.
            Any other exception ends the child with exit code 1.
        name: name of the process, for tracebacks.
        remedy: suggestion if no more processes can be started, such as ``give fewer --workers``.

    Attributes:
        pipe: the parent's end of the pipe.

    Raises:
        ResourceError: the system allows no more processes, open files or memory.
    """

    def __init__(self, serve: Callable[[Connection], None], name: str, remedy: str) -> None:
        context = multiprocessing.get_context("fork")
        ends: tuple[Connection, ...] = ()
        try:
            self.pipe, theirs = ends = context.Pipe()
            _children.add(self)
            # Not a daemon: multiprocessing forbids children of daemons and stops them by a signal
            # that they ignore. `Finalize` stops this process instead.
            self._process = context.Process(
                target=_run, args=(serve, theirs, os.getpid()), name=name, daemon=False
            )
            self._process.start()
        except OSError as error:
            for end in ends:
                end.close()
            raise worker_start_error(error, remedy) from error
        theirs.close()
        # If `terminate` is never called, Python waits at exit for children that wait for a message.
        self._abandoned = Finalize(
            self, _abandon, (self.pipe, self._process), exitpriority=_BEFORE_WAITING
        )

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> bool:
        """Send a message; return False if the process has ended."""
        try:
            self.pipe.send(message)
        except OSError:  # broken, or closed by `terminate`
            return False
        return True

    def receive(self) -> Any:
        """Return the next message, which is never None; None if the process has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def request_stop(self) -> None:
        """Send None: `serve` returns after its current work."""
        with suppress(OSError, ValueError):  # the process has ended, or a message was cut off
            self.pipe.send(None)

    def terminate(self, timeout: float) -> str:
        """Wait for the process to end; kill it after `timeout` seconds.

        Returns:
            Description of the exit: ``was killed by SIGKILL (out of memory?)``, ``ended with exit
            code 1``.
        """
        try:
            self.pipe.close()  # the child may be blocked in a write
            self._process.join(timeout)
        finally:  # runs on an interrupt as well
            self._abandoned()
        return describe_exit(self._process.exitcode)


def _run(serve: Callable[[Connection], None], pipe: Connection, parent: int) -> None:
    """Run `serve` in the child process."""
    for child in list(
        _children
    ):  # inherited pipe ends would keep them alive after the parent's end
        child.pipe.close()
    _children.clear()
    follow_parent(parent)
    set_torch_threads(1)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        serve(pipe)
    with suppress(Exception):
        sys.stdout.flush()  # output of an environment
    os._exit(0)  # skips flushing and closing the parent's files a second time


def _abandon(pipe: Connection, process: Any) -> None:
    pipe.close()
    if process.is_alive():
        process.kill()
        process.join()


def picklable_error(error: Exception) -> Exception:
    """Return an error that can be sent to the parent: user errors unchanged, others with traceback.

    A pipe loses the cause of an error, so its traceback is added as a note.
    """
    if isinstance(error, SlipstreamError):
        if error.__cause__ is not None:
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        return error
    name = multiprocessing.current_process().name
    return RuntimeError(f"{name} (process {os.getpid()}):\n{traceback.format_exc()}")


def call_safely(do: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Call a function in a child; return its result or error in a form for `unwrap_result`."""
    try:
        return True, do(*arguments)
    except Exception as error:
        return False, picklable_error(error)


def unwrap_result(answer: tuple[bool, Any]) -> Any:
    """Return the result of a function called in a child, or raise its error."""
    if not answer[0]:
        raise answer[1]
    return answer[1]


def set_torch_threads(wanted: int) -> int:
    """Set the number of PyTorch threads if torch is loaded; return the previous number.

    Use one thread before a fork: a child must not inherit a thread pool that it cannot use.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return wanted
    before: int = torch.get_num_threads()
    torch.set_num_threads(wanted)
    return before
