"""Child: a process forked from this one that works for it over a pipe, and never outlives it.

Shards of a run and workers of a study are such children. A child may have children of its own:
those that are made here end with it, whoever kills it. What is started otherwise (a fork server's
workers, another program) must look for its parent's end itself.
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

_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for its children
_children: WeakSet[ChildProcess] = WeakSet()

THREADED = frozenset({"jax", "ray", "tensorflow"})
"""Libraries whose threads do not outlive a fork, nor bear one."""


class ChildProcess:
    """A forked process; it shares what was loaded before.

    Args:
        serve: runs in the child with its end of the pipe, until it returns or the pipe ends; what
            it raises otherwise ends the child with exit code 1.
        name: of the process, for tracebacks.
        remedy: what a user may do where no more processes can be started: ``give fewer --workers``.

    Attributes:
        pipe: this process's end.

    Raises:
        ResourceError: the system allows no more processes, open files or memory.
    """

    def __init__(self, serve: Callable[[Connection], None], name: str, remedy: str) -> None:
        context = multiprocessing.get_context("fork")
        ends: tuple[Connection, ...] = ()
        try:
            self.pipe, theirs = ends = context.Pipe()
            _children.add(self)
            # No daemon: multiprocessing forbids those to have children, and ends them by a signal
            # that they ignore. `Finalize` does it.
            self._process = context.Process(
                target=_run, args=(serve, theirs, os.getpid()), name=name, daemon=False
            )
            self._process.start()
        except OSError as error:
            for end in ends:
                end.close()
            raise worker_start_error(error, remedy) from error
        theirs.close()
        # If `terminate` is never called: at exit Python waits for children that wait for a message.
        self._abandoned = Finalize(
            self, _abandon, (self.pipe, self._process), exitpriority=_BEFORE_WAITING
        )

    @property
    def pid(self) -> int:
        """Number of the process, for the system."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> bool:
        """Hands it a message; False where it is gone."""
        try:
            self.pipe.send(message)
        except OSError:  # broken, or closed by `terminate`
            return False
        return True

    def receive(self) -> Any:
        """Its next message, which is never None; None where it is gone."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def request_stop(self) -> None:
        """Sends it None: `serve` returns after what is under way."""
        with suppress(OSError, ValueError):  # it is gone, or was cut off in a message
            self.pipe.send(None)

    def terminate(self, timeout: float) -> str:
        """Waits for its end, kills it after `timeout` seconds.

        Returns:
            How it ended: ``was killed by SIGKILL (out of memory?)``, ``ended with exit code 1``.
        """
        try:
            self.pipe.close()  # it may be waiting to be heard
            self._process.join(timeout)
        finally:  # also when interrupted
            self._abandoned()
        return describe_exit(self._process.exitcode)


def _run(serve: Callable[[Connection], None], pipe: Connection, parent: int) -> None:
    """The child."""
    for child in list(_children):  # their ends would keep them alive when the parent is gone
        child.pipe.close()
    _children.clear()
    follow_parent(parent)
    set_torch_threads(1)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        serve(pipe)
    with suppress(Exception):
        sys.stdout.flush()  # what an environment printed
    os._exit(0)  # nothing of the parent's may be flushed or closed twice


def _abandon(pipe: Connection, process: Any) -> None:
    pipe.close()
    if process.is_alive():
        process.kill()
        process.join()


def picklable_error(error: Exception) -> Exception:
    """What a parent is sent of an error: users' mistakes as they are, others with their trace.

    A pipe loses what an error was raised from, so the trace of that goes along as a note.
    """
    if isinstance(error, SlipstreamError):
        if error.__cause__ is not None:
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        return error
    name = multiprocessing.current_process().name
    return RuntimeError(f"{name} (process {os.getpid()}):\n{traceback.format_exc()}")


def call_safely(do: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Call a function in a child; return what its parent is sent, for `result_of`."""
    try:
        return True, do(*arguments)
    except Exception as error:
        return False, picklable_error(error)


def unwrap_result(answer: tuple[bool, Any]) -> Any:
    """Return what a function returned in a child, or raise what it raised there."""
    if not answer[0]:
        raise answer[1]
    return answer[1]


def set_torch_threads(wanted: int) -> int:
    """Gives PyTorch so many threads, where it is loaded; how many it had.

    One before a fork: a child must not inherit a pool of threads that it cannot use.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return wanted
    before: int = torch.get_num_threads()
    torch.set_num_threads(wanted)
    return before
