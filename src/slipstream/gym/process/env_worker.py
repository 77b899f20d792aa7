"""A worker process that steps copies: its own side (`run`), and its parent's side (`Link`).

The parent writes an order into shared words; the worker does it and writes that it is done. Copies
write into the block between an order and its end only, so that nobody reads what is being written.
Jobs, questions, answers and faults travel through a pipe. A call that takes too long is ended by a
signal, and by killing the worker if that does not help.
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
"""Orders: step; begin the selected copies, or all where a lost worker's stood; replay the selected
ones; answer a message on the pipe; step single copies as they are asked for; close the copies and
wait for another job; end."""
DOWN, IDLE, STARTING, UP = range(4)
"""States of a worker: without a process, without a job, making its copies, ready for orders."""

HANG_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else signal.SIGTERM
DESCRIPTORS = 5  # pipe, words, last words, and two of the bell "go"
_SOON = 4  # times the usual, for which a worker looks for an order after one that came so fast
_OF_A_JOB = 3  # block, and two of the bell "done"
_FORGET = 0.9  # of a copy's measured cost that a new measurement leaves
_GRACE_SECONDS = 1.0  # after the signal that ends a hanging call, before the worker is killed
_WORDS_BYTES = 20_000  # of a worker's last words that are kept


def run(fds: Sequence[int], parent: int) -> None:
    """The whole life of a worker; does not return.

    Args:
        fds: pipe to the parent, shared words, file of last words, bell "go" (to hear, to ring).
        parent: the process that forked this one.
    """
    code = 0
    # A worker knows the main program's ids before it imports the module that registers them.
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
        # Before Python's own handler, so that code which never comes back is named, too.
        faulthandler.register(HANG_SIGNAL, file=fds[2], all_threads=True, chain=True)
        self._page = mmap.mmap(fds[1], mmap.PAGESIZE)
        self.words = memoryview(self._page)[: WORDS * 8].cast("Q")
        self._go = PipeEvent((fds[3], fds[4]))
        self._poller = select.poll()
        self._poller.register(self._go.fds[0], select.POLLIN)
        self._poller.register(self._pipe.fileno(), 0)  # tells only that the other end is gone
        self._last_hung_call = (
            0,
            0,
        )  # `BEAT` and `AT` of the newest call that was ended as hanging
        self._stack = ""
        self.group: Any = None

    def serve(self) -> bool:
        """Does one job, until the parent says REST (True) or LEAVE; raises where it is gone."""
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
            # It looks for long only where orders come fast: nobody is served by looking in vain.
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
                    gc.collect()  # what refers to itself may still have views of the block
                self._block.close()
                self.done.close()
                words[DONE] = last
                if command == PARK:
                    self._pipe.send(("resting", None))
                return bool(command == PARK)
            if command == STEP_REQUESTED:
                words[DONE] = last  # it goes on until something else is ordered
                self._step_requested(last)
                continue
            self._execute(command)
            leaving = self._finish(last)

    def _receive_fds(self) -> list[int]:
        """The open files that follow a message."""
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as line:
            data, fds, _, _ = socket.recv_fds(line, 1, _OF_A_JOB)
        if not data:
            raise EOFError
        return fds

    def _finish(self, order: int) -> bool:
        """Says that an order is done; whether the parent was woken, and is to have this core."""
        words = self.words
        words[DONE] = order
        fence()
        awaited = words[WAITING]
        if awaited != NOT_WAITING or not STORES_ORDERED:
            self.done.set()
        return bool(awaited == SAME_CORE)

    def sleep(self, ready: Callable[[], bool]) -> None:
        """Until the parent rings, if nothing is ready by then; raises where it is gone."""
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
            cost[i] = spent if cost[i] == 0.0 else _FORGET * cost[i] + (1.0 - _FORGET) * spent
            since.pop(i, None)
            row = sub_envs[i].number
            arrays["completed"][row] = arrays["requested"][row]
            self.done.set()

    def _send(self, answer: tuple[str, Any]) -> None:
        """An answer; where it cannot travel, an error that says so."""
        try:
            self._pipe.send(answer)
        except Exception as error:
            refusal = TypeError(f"what a copy returned cannot be handed over: {error!s:.300}")
            self._pipe.send(("answer", (False, refusal)))

    def _resize(self, call: Any, layout: Layout, *arguments: Any) -> None:
        """Moves to another block."""
        old, self._block = self._block, SharedBlock(layout, self._receive_fds()[0])
        call(self._block.arrays, *arguments)
        old.close()

    def _report(self, fault: Fault) -> None:
        error = fault.error
        assert error is not None
        if fault.kind == "hung":
            fault = fault._replace(text=f"the call took too long; it was here:\n{self._stack}")
        self.words[REPORTS] += 1
        self._pipe.send(("fault", fault._replace(error=_picklable_error(error.__cause__ or error))))

    def _on_hang_signal(self, _signal: int, frame: Any) -> None:
        words = self.words
        meant, call = (words[HANG_WARNING], words[HANG_WARNING + 1]), (words[BEAT], words[AT])
        # Else that call has come back, or is being left already.
        if words[BEAT] % 2 and meant == call != self._last_hung_call:
            self._last_hung_call = call
            self._stack = "".join(traceback.format_stack(frame)[-8:])
            raise HangError


def _complete_order(chosen: Any, waiting: list[int]) -> list[int]:
    """A scheduler's choice without strangers, and with those that it forgot at the end."""
    left = dict.fromkeys(waiting)
    known = [int(i) for i in chosen if left.pop(int(i), 0) is None]
    return [*known, *left]


def _ordered(words: memoryview, last: int) -> bool:
    return bool(words[COMMAND] != last)


def _picklable_error(error: BaseException) -> BaseException | None:
    """An exception as the parent can raise it; None where it cannot travel."""
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
    """A worker's process, its pipe and the words that it shares with this process.

    Attributes:
        number: among the workers of an environment; ranges: its copies, (lo, hi) of each.
        state: DOWN (to be started when `due`), IDLE (without a job), STARTING or UP.
        pid: of its process.
        heard: reports taken so far.
        hung: it was killed because it had hung.
        lost: it ended, and its copies' rows do not say so yet.
        begun: its copies stand at a beginning, as far as they were ever reset.
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
        """Its copies as an index."""
        return slice(*self.ranges[0]) if len(self.ranges) == 1 else self.numbers

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Its copies one by one."""
        return np.concatenate([np.zeros(0, np.int64), *(np.arange(*own) for own in self.ranges)])

    @property
    def load(self) -> int:
        """How many copies it has."""
        return sum(hi - lo for lo, hi in self.ranges)

    def start(self, launch: Callable[[Sequence[int]], int]) -> None:
        """Start a process for it, which waits for a job; `launch` is `Launcher.start`."""
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
        """Gives it a job and the descriptors for it; `hear` says when it is ready."""
        assert self.pipe is not None
        self.words[REPORTS], self.num_received = 0, 0
        self._since = self._warned = 0.0
        self._beat = (-1, -1)
        self.state = STARTING
        with suppress(OSError):  # gone already: its end will be heard
            self.pipe.send_bytes(job)
            self.send_fds(fds)

    def send_fds(self, fds: Sequence[int]) -> None:
        """Hands it open files, after the message that says what for."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line:
            socket.send_fds(line, [b"+"], list(fds))

    def order(self, command: int, awaited: int = ANY_CORE) -> None:
        """Tells it what to do; whether this process will sleep until it is done."""
        self._order = (self._order // NUM_COMMANDS + 1) * NUM_COMMANDS + command
        self._since = self._warned = 0.0
        self.words[WAITING] = awaited
        self.words[COMMAND] = self._order
        self.wake()

    def wake(self) -> None:
        """It shall look what is wanted of it."""
        fence()
        if self.words[ASLEEP] or not STORES_ORDERED:
            self.go.set()

    @property
    def done(self) -> bool:
        """Return true if it has done its last order."""
        return bool(self.words[DONE] == self._order)

    def watch(self, hang_seconds: float) -> None:
        """Looks whether the call at hand takes too long: a signal first, then the end."""
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
        """Its end is to be heard here even while a process that it forked has the pipe open."""
        assert self.pipe is not None
        line = socket.socket(fileno=os.dup(self.pipe.fileno()))
        with line, suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    def reset_watch(self) -> None:
        """Nothing is asked of it: the time until the next order does not count as hanging."""
        self._since = self._warned = 0.0

    def kill(self, number: int) -> None:
        """Sends its process a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send(self, message: memoryview) -> None:
        """Pickled, on the slow path; a worker that is gone is noticed when it is to answer."""
        assert self.pipe is not None
        with suppress(OSError):
            self.pipe.send_bytes(message)

    def crash_output(self) -> str:
        """What its process wrote before it ended: a traceback, even of a crash in C."""
        if self._crash_file < 0:
            return ""
        size = os.fstat(self._crash_file).st_size  # calls that hung and came back are in it, too
        text = os.pread(self._crash_file, _WORDS_BYTES, max(0, size - _WORDS_BYTES))
        return text.decode(errors="replace").strip()

    def detach(self) -> None:
        """Lets go of what belonged to the process that is gone."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        if self._crash_file >= 0:
            os.close(self._crash_file)
            self._crash_file = -1
        self.state = DOWN

    def close(self) -> None:
        """Lets go of everything."""
        self.detach()
        self.go.close()
        self.words.release()
        self._page.close()
        os.close(self._file)
