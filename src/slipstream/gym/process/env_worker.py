"""Worker processes: the worker itself (`run`) and the handle of its parent (`WorkerHandle`).

The parent writes a command into shared words, and the worker executes it and reports completion.
Sub-environments write to the block only while a command runs. Configurations, calls, answers and
faults are sent through a pipe. A call that takes too long is interrupted by a signal; if that does
not help, the worker is killed.
"""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import AT, BEAT, START_SECONDS, follow_parent
from slipstream.core.errors import SlipstreamError
from slipstream.gym.env_factory import HangError
from slipstream.gym.process.fault_log import Fault
from slipstream.gym.process.shared_memory import (
    ANY_CORE,
    ASLEEP,
    COMMAND,
    DONE,
    HANG_WARNING,
    NOT_WAITING,
    NUM_COMMANDS,
    REPORTS,
    REQUESTS,
    SAME_CORE,
    SPIN_SECONDS,
    STEP,
    STORES_ORDERED,
    WAITING,
    WORDS,
    Layout,
    PipeEvent,
    SharedBlock,
    anonymous_file,
    fence,
    spin_wait,
)
from slipstream.gym.sub_env_group import SubEnvGroup
from slipstream.gym.worker_config import LongestWaitingFirst, WorkerConfig

STEP_ALL, RESET_SELECTED, RESET_LOST, REPLAY, CALL, STEP_REQUESTED, PARK, EXIT = range(1, 9)
"""Commands: step; reset selected rows; reset after a loss; replay selected rows; answer a call on
the pipe; serve requests for single steps; close the environments and wait for a job; exit."""
DOWN, IDLE, STARTING, UP = range(4)
"""States of a worker: no process; no job; creating sub-environments; ready for commands."""

HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else signal.SIGTERM
DESCRIPTORS = 5  # pipe, words, crash output, and two of the event "go"
_SOON = 4  # factor of the spin time after a command that came quickly
_JOB_DESCRIPTORS = 3  # block, and two of the event "done"
_COST_DECAY = 0.9  # of the moving average of the cost of a step
_GRACE_SECONDS = 1.0  # between the hang signal and the kill
_WORDS_BYTES = 20_000  # of the crash output that are stored


def run(fds: Sequence[int], parent: int) -> None:
    """Run a worker until it exits; does not return.

    Args:
        fds: Pipe to the parent, shared words, file for crash output, read and write end of the
            event "go".
        parent: Process id of the process that forked this one.
    """
    code = 0
    # The main program's ids are registered before their module is imported.
    warnings.filterwarnings("ignore", message=".*Overriding environment")
    try:
        follow_parent(parent)
        worker = _Worker(fds)
        while worker.serve():
            pass
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except BaseException:
        with suppress(OSError):
            os.write(fds[2], traceback.format_exc().encode())
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


class _Worker:
    """The worker in its own process."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._pipe: Connection = Connection(fds[0])
        signal.signal(HANG_SIGNAL, self._on_hang_signal)
        # No `time_limit` here: the parent has its own. Programs started here inherit no handler.
        signal.signal(signal.SIGALRM, lambda *_: None)
        faulthandler.enable(file=fds[2])
        # Runs before Python's handler and therefore also shows blocked C code.
        faulthandler.register(HANG_SIGNAL, file=fds[2], all_threads=True, chain=True)
        self._page = mmap.mmap(fds[1], mmap.PAGESIZE)
        self.words = memoryview(self._page)[: WORDS * 8].cast("Q")
        self._go = PipeEvent((fds[3], fds[4]))
        self._poller = select.poll()
        self._poller.register(self._go.fds[0], select.POLLIN)
        self._poller.register(self._pipe.fileno(), 0)  # only reports a closed pipe
        self._last_hung_call = (0, 0)  # `BEAT` and `AT` of the last interrupted call
        self._stack = ""
        self.group: Any = None

    def serve(self) -> bool:
        """Run one job until PARK (returns true) or EXIT.

        Raises:
            EOFError: The parent has exited.
        """
        job: WorkerConfig = pickle.loads(self._pipe.recv_bytes())
        fds = self._receive_fds()
        self._job = job
        self._block, self.done = SharedBlock(job.layout, fds[0]), PipeEvent((fds[1], fds[2]))
        words = self.words
        last = words[COMMAND]
        try:
            self.group = SubEnvGroup(job, self._block.arrays, self._report, words)
            self.group.make()
        except Exception as error:
            self._pipe.send(("failed", _as_picklable(error)))
            return False
        self._pipe.send(("ready", None))
        self.done.set()
        leaving, soon = True, 0.0
        while True:
            ordered, began = partial(_ordered, words, last), time.perf_counter()
            if not spin_wait(ordered, 0.0 if leaving else soon):
                while words[COMMAND] == last:
                    self.sleep(ordered)
            # Spins longer only if commands come quickly.
            soon = (
                _SOON * job.spin_seconds
                if time.perf_counter() - began < _SOON * SPIN_SECONDS
                else 0.0
            )
            leaving = True
            last = words[COMMAND]
            command = last % NUM_COMMANDS
            if command in (EXIT, PARK):
                self.group.close()
                self.group = None
                if command == PARK:
                    gc.collect()  # reference cycles may hold views of the block
                self._block.close()
                self.done.close()
                words[DONE] = last
                if command == PARK:
                    self._pipe.send(("resting", None))
                return bool(command == PARK)
            if command == STEP_REQUESTED:
                words[DONE] = last  # it serves requests until the next command
                self._step_requested(last)
                continue
            self._execute(command)
            leaving = self._finish(last)

    def _receive_fds(self) -> list[int]:
        """Receive the descriptors that follow a message."""
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as line:
            data, fds, _, _ = socket.recv_fds(line, 1, _JOB_DESCRIPTORS)
        if not data:
            raise EOFError
        return fds

    def _finish(self, order: int) -> bool:
        """Report completion; return true if the parent was woken and should get this core."""
        words = self.words
        words[DONE] = order
        fence()
        awaited = words[WAITING]
        if awaited != NOT_WAITING or not STORES_ORDERED:
            self.done.set()
        return bool(awaited == SAME_CORE)

    def sleep(self, ready: Callable[[], bool]) -> None:
        """Sleep until the parent sets the event, unless `ready` returns true."""
        self.words[ASLEEP] = 1
        fence()
        try:
            if not ready():
                for fd, event in self._poller.poll():
                    if fd == self._pipe.fileno() and event & (select.POLLHUP | select.POLLERR):
                        raise EOFError
                self._go.clear()
        finally:
            self.words[ASLEEP] = 0

    def _execute(self, command: int) -> None:
        if command == CALL:
            method, arguments = self._pipe.recv()
            try:
                call = getattr(self.group, method)
                if method in ("grow", "shrink"):
                    call = partial(self._resize, call)
                value = call(*arguments)
                answer: tuple[str, Any] = ("answer", (True, value))
            except Exception as error:
                answer = ("answer", (False, _as_picklable(error)))
            self._send(answer)
            return
        if command == STEP_ALL:
            self.group.step(self.words[STEP])
        elif command == RESET_SELECTED:
            self.group.reset()
        elif command == RESET_LOST:
            self.group.reset_lost(self._job.holds_at_end)
        else:
            self.group.replay()

    def _step_requested(self, order: int) -> None:
        """Serve requests for single steps until the next command."""
        scheduler = self._job.scheduler or LongestWaitingFirst()
        words, sub_envs, arrays = self.words, self.group.sub_envs, self.group.arrays
        asked, queue = -1, list[int]()
        since: dict[int, float] = {}
        cost = [0.0] * len(sub_envs)
        while words[COMMAND] == order:
            if words[REQUESTS] != asked:
                asked = words[REQUESTS]
                now = time.monotonic()
                missing = (
                    arrays["requested"][self.group.index] != arrays["completed"][self.group.index]
                )
                waiting = np.flatnonzero(missing).tolist()
                since = {i: since.get(i, now) for i in waiting}
                waited = [now - since[i] for i in waiting]
                chosen = scheduler.order(waiting, waited, [cost[i] for i in waiting])
                queue = _complete_order(chosen, waiting)[::-1]
            if not queue:
                self.sleep(lambda seen=asked: words[REQUESTS] != seen or words[COMMAND] != order)  # type: ignore[misc]
                continue
            i = queue.pop()
            began = time.perf_counter()
            self.group.step_one(i)
            spent = time.perf_counter() - began
            cost[i] = (
                spent if cost[i] == 0.0 else _COST_DECAY * cost[i] + (1.0 - _COST_DECAY) * spent
            )
            since.pop(i, None)
            row = sub_envs[i].number
            arrays["completed"][row] = arrays["requested"][row]
            self.done.set()

    def _send(self, answer: tuple[str, Any]) -> None:
        """Send an answer, or an error if it cannot be pickled."""
        try:
            self._pipe.send(answer)
        except Exception as error:
            refusal = TypeError(f"the returned value cannot be pickled: {error!s:.300}")
            self._pipe.send(("answer", (False, refusal)))

    def _resize(self, call: Any, layout: Layout, *arguments: Any) -> None:
        """Move to another block."""
        old, self._block = self._block, SharedBlock(layout, self._receive_fds()[0])
        call(self._block.arrays, *arguments)
        old.close()

    def _report(self, fault: Fault) -> None:
        error = fault.error
        assert error is not None
        if fault.kind == "hung":
            fault = fault._replace(text=f"the call took too long. Stack:\n{self._stack}")
        self.words[REPORTS] += 1
        self._pipe.send(("fault", fault._replace(error=_picklable_error(error.__cause__ or error))))

    def _on_hang_signal(self, _signal: int, frame: Any) -> None:
        words = self.words
        meant, call = (words[HANG_WARNING], words[HANG_WARNING + 1]), (words[BEAT], words[AT])
        # Otherwise the call has returned or is already being interrupted.
        if words[BEAT] % 2 and meant == call != self._last_hung_call:
            self._last_hung_call = call
            self._stack = "".join(traceback.format_stack(frame)[-8:])
            raise HangError


def _complete_order(chosen: Any, waiting: list[int]) -> list[int]:
    """Remove unknown ids from the order of a scheduler and append missing ones."""
    left = dict.fromkeys(waiting)
    known = [int(i) for i in chosen if left.pop(int(i), 0) is None]
    return [*known, *left]


def _ordered(words: memoryview, last: int) -> bool:
    return bool(words[COMMAND] != last)


def _picklable_error(error: BaseException) -> BaseException | None:
    """Return an exception after a pickle round trip, or None if it cannot be pickled."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return again if isinstance(again, Exception) else None


def _as_picklable(error: Exception) -> Exception:
    if isinstance(error, SlipstreamError):
        return type(error)(str(error))
    known = _picklable_error(error)
    if isinstance(known, Exception):
        known.add_note("".join(traceback.format_exception(error)))
        return known
    return RuntimeError("".join(traceback.format_exception(error)))


class WorkerHandle:
    """The process of a worker, its pipe and the words it shares with this process.

    Attributes:
        number: Index among the workers of an environment.
        ranges: Rows of its sub-environments as ranges (lo, hi).
        state: DOWN (restarted after `due`), IDLE (no job), STARTING or UP.
        pid: Process id.
        num_received: Number of reports received.
        hung: It was killed because a call hung.
        lost: It exited, and its rows are not marked yet.
        episodes_started: Its sub-environments have been reset, if the others have.
    """

    def __init__(self) -> None:
        self.number, self.ranges = 0, [(0, 0)]
        self._file = anonymous_file(mmap.PAGESIZE, mmap.PAGESIZE)
        self._page = mmap.mmap(self._file, mmap.PAGESIZE)
        self.words = memoryview(self._page)[: WORDS * 8].cast("Q")
        self.go = PipeEvent()
        self.state, self.pid, self.due = DOWN, 0, 0.0
        self.pipe: Connection | None = None
        self.num_received = 0
        self.hung = self.lost = False
        self.episodes_started = True
        self._order = 0
        self._beat, self._since, self._warned = (-1, -1), 0.0, 0.0
        self._crash_file = -1

    @property
    def rows(self) -> slice | NDArray[np.int64]:
        """Rows of its sub-environments as an index."""
        return slice(*self.ranges[0]) if len(self.ranges) == 1 else self.numbers

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Rows of its sub-environments as an array."""
        return np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(*bounds) for bounds in self.ranges)]
        )

    @property
    def load(self) -> int:
        """Number of its sub-environments."""
        return sum(hi - lo for lo, hi in self.ranges)

    def start(self, launch: Callable[[Sequence[int]], int]) -> None:
        """Start a process that waits for a job; `launch` is `Launcher.start`."""
        words = anonymous_file(0)
        try:
            mine, theirs = Pipe()
        except OSError:
            os.close(words)
            raise
        self.words[COMMAND] = self.words[DONE] = self._order
        fds = [theirs.fileno(), self._file, words, *self.go.fds]
        try:
            self.pid = launch(fds)
        except BaseException:
            mine.close()
            os.close(words)
            raise
        finally:
            theirs.close()
        self.pipe = mine
        self._crash_file = words
        self.state, self.hung = IDLE, False

    def assign(self, job: bytes, fds: Sequence[int]) -> None:
        """Send a pickled configuration and its descriptors."""
        assert self.pipe is not None
        self.words[REPORTS], self.num_received = 0, 0
        self._since = self._warned = 0.0
        self._beat = (-1, -1)
        self.state = STARTING
        with suppress(OSError):  # it has exited, which is noticed later
            self.pipe.send_bytes(job)
            self.send_fds(fds)

    def send_fds(self, fds: Sequence[int]) -> None:
        """Send descriptors after the message they belong to."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line:
            socket.send_fds(line, [b"+"], list(fds))

    def order(self, command: int, awaited: int = ANY_CORE) -> None:
        """Send a command; `awaited` states where this process will sleep until completion."""
        self._order = (self._order // NUM_COMMANDS + 1) * NUM_COMMANDS + command
        self._since = self._warned = 0.0
        self.words[WAITING] = awaited
        self.words[COMMAND] = self._order
        self.wake()

    def wake(self) -> None:
        """Wake the worker if it sleeps."""
        fence()
        if self.words[ASLEEP] or not STORES_ORDERED:
            self.go.set()

    @property
    def done(self) -> bool:
        """True if its last command is complete."""
        return bool(self.words[DONE] == self._order)

    def watch(self, hang_seconds: float) -> None:
        """Check the duration of the current call: send a signal first, then kill the worker."""
        now, beat = time.monotonic(), (self.words[BEAT], self.words[AT])
        if beat != self._beat or not self._since:
            self._beat, self._since, self._warned = beat, now, 0.0
            return
        starting = self.state == STARTING
        limit = max(START_SECONDS, hang_seconds) if starting else hang_seconds
        if self._warned:
            if now - self._warned > _GRACE_SECONDS:
                self.hung = True
                self.kill(signal.SIGKILL)
                self._hang_up()
        elif now - self._since > limit:
            self._warned = now
            self.words[HANG_WARNING], self.words[HANG_WARNING + 1] = beat
            self.kill(HANG_SIGNAL)

    def _hang_up(self) -> None:
        """Make the end of the pipe visible even if a child of the worker holds it open."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line, suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    def reset_watch(self) -> None:
        """Restart the hang timer; idle time does not count."""
        self._since = self._warned = 0.0

    def kill(self, number: int) -> None:
        """Send a signal to its process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send(self, message: memoryview) -> None:
        """Send a pickled message. A lost worker is noticed when it should answer."""
        assert self.pipe is not None
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def crash_output(self) -> str:
        """Return the output of its process before it exited, including C tracebacks."""
        if self._crash_file < 0:
            return ""
        size = os.fstat(self._crash_file).st_size  # also has earlier calls that hung
        text = os.pread(self._crash_file, _WORDS_BYTES, max(0, size - _WORDS_BYTES))
        return text.decode(errors="replace").strip()

    def detach(self) -> None:
        """Close what belonged to the process that exited."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        if self._crash_file >= 0:
            os.close(self._crash_file)
            self._crash_file = -1
        self.state = DOWN

    def close(self) -> None:
        """Close all descriptors."""
        self.detach()
        self.go.close()
        self.words.release()
        self._page.close()
        os.close(self._file)
