"""Sub-environments in worker processes, which are replaced if they are lost.

`ProcessDriver` commands steps of all sub-environments. `AsyncSteps` handles steps of single ones.
`LostWorkers` tracks sub-environments whose worker was lost and the losses to report.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.capacity import usable_cores
from slipstream.core.child_process import AT, FaultPolicy, worker_start_error
from slipstream.core.errors import KernelError, ResourceError
from slipstream.gym.process.env_worker import (
    CALL,
    DOWN,
    REPLAY,
    RESET_LOST,
    RESET_SELECTED,
    STARTING,
    STEP_ALL,
    STEP_REQUESTED,
    UP,
    WorkerHandle,
)
from slipstream.gym.process.fault_log import Fault
from slipstream.gym.process.process_pool import ProcessPool
from slipstream.gym.process.shared_memory import (
    ANY_CORE,
    NOT_WAITING,
    POLL_MS,
    REPORTS,
    REQUESTS,
    SAME_CORE,
    STEP,
    WAITING,
    Layout,
    PipeEvent,
    SharedBlock,
    fence,
    poll_ms,
    spin_seconds,
    spin_wait,
)
from slipstream.gym.serial_driver import Answers, Arguments, Arrays, BaseDriver
from slipstream.gym.sub_env_group import STEP_FLAGS
from slipstream.gym.worker_config import WorkerConfig, pickle_config

_RUNS = {"reset": RESET_SELECTED, "replay": REPLAY}
_PAUSE_MS = 5  # between attempts to replace lost workers
_BEFORE_WAITING = 100  # exit priority: before multiprocessing joins children

Calls = Sequence[tuple[WorkerHandle, tuple[Any, ...]]]
"""Workers and the arguments of the method to call there."""


class ProcessDriver(BaseDriver):
    """Worker processes that share one block of memory.

    `SerialDriver` documents the methods without a docstring.

    Args:
        layout: Layout of the block, including `state_arrays`.
        job: makes an `Assignment` of `layout`, `ranges` and `spin_wait`.
        num_envs: Number of sub-environments, E.
        name: Name of the environment, for messages.
        on_lost, repeat_lost: See `LostWorkers`.
        workers: Number of workers. None uses one per available core.
        method: "forkserver" or "spawn".
        policy: Fault policy.
        process_pool: Source of the workers. None starts a private pool.

    Attributes:
        block: Shared arrays. `resize` replaces them.
        handles: The workers.
        async_steps: Steps of single sub-environments.
        lost_workers: State of sub-environments whose worker was lost.
    """

    backend = "process"
    has_events = True

    def __init__(
        self,
        layout: Layout,
        job: Callable[..., WorkerConfig],
        *,
        num_envs: int,
        name: str,
        on_lost: Callable[[NDArray[np.int64]], None] = lambda rows: None,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        process_pool: ProcessPool | None = None,
        repeat_lost: bool = False,
    ) -> None:
        if workers is not None:
            workers = check_count("workers", workers)
        super().__init__(num_envs, name, policy)
        self.policy, self._job = policy, job
        self.lost_workers, self.async_steps = (
            LostWorkers(self, on_lost, repeat_lost),
            AsyncSteps(self),
        )
        self._cores = usable_cores()
        self._max_workers = workers or self._cores
        w = max(1, min(self._max_workers, num_envs))
        self.spin_seconds = spin_seconds(w - 1, self._cores)
        self.handles: list[WorkerHandle] = []
        self._poller = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._answers: dict[int, Any] = {}
        self._error: Exception | None = None
        self._pending: list[WorkerHandle] = []
        self._resetting_handles: list[WorkerHandle] = []  # restarted, in the current step
        self._called: list[WorkerHandle] = []  # by the newest `_send_calls`
        self._owns_pool = process_pool is None
        self._process_pool = process_pool = (
            ProcessPool(method) if process_pool is None else process_pool
        )
        process_pool.reserve(num_envs, name)
        try:
            self._done = PipeEvent()
            self._poller.register(self._done.fds[0], select.POLLIN)
            # Runs if `close` is never called: at exit or at garbage collection.
            self._end = Finalize(
                self, _end, (self.handles, process_pool, self._done), exitpriority=_BEFORE_WAITING
            )
            try:
                self._add_workers(_split_rows(0, num_envs, w))
                self.block = SharedBlock(layout)
            except BaseException:
                self._end()
                raise
        except BaseException as error:
            process_pool.release(num_envs)
            if isinstance(error, OSError):
                raise worker_start_error(error, "give fewer workers") from error
            raise

    # Start and replacement of workers.

    def start(self) -> None:
        """Start the workers and wait until all sub-environments are created.

        Raises:
            ConfigError, ResourceError, KernelError: One could not be created. All are closed.
        """
        try:
            self._wait_until_started(self.handles)
        except BaseException:
            self.close()
            raise
        pids = [handle.pid for handle in self.handles]
        self._process_pool.started(self.num_envs, self.fault_log.name, pids)

    def _add_workers(self, ranges: Sequence[tuple[int, int]]) -> list[WorkerHandle]:
        """Add workers for these rows."""
        before = len(self.handles)
        first = 1 + max((handle.number for handle in self.handles), default=-1)
        for number, worker_ranges in enumerate(ranges, first):
            handle = self._process_pool.acquire()
            handle.number, handle.ranges = number, [worker_ranges]
            self.handles.append(handle)
        return self.handles[before:]

    def _start(self, handle: WorkerHandle) -> None:
        if handle.state == DOWN:
            self._process_pool.start(handle)
        assert handle.pipe is not None
        self._by_fd[handle.pipe.fileno()] = handle
        self._poller.register(handle.pipe.fileno(), select.POLLIN)
        part = self._job(
            layout=self.block.layout, ranges=tuple(handle.ranges), spin_seconds=self.spin_seconds
        )
        handle.assign(pickle_config(part), [self.block.fd, *self._done.fds])

    def _unregister(self, handle: WorkerHandle) -> None:
        """Stop polling the pipe of a worker."""
        if handle.pipe is not None:
            self._poller.unregister(handle.pipe.fileno())
            del self._by_fd[handle.pipe.fileno()]

    def _wait_until_started(self, handles: Sequence[WorkerHandle]) -> None:
        for handle in handles:
            self._start(handle)
        waiting = list(handles)
        while waiting:
            self.sleep(POLL_MS)
            for handle in waiting:
                if handle.state != DOWN:
                    handle.watch(self.policy.hang_seconds)
                elif time.monotonic() >= handle.due:
                    self._start(handle)
            self.raise_error()
            self.fault_log.check_startup()
            waiting = [handle for handle in waiting if handle.state != UP]
        for handle in handles:
            handle.lost, handle.episodes_started = False, True  # no sub-environment was reset yet

    def _restart_lost(self) -> list[WorkerHandle]:
        """Mark lost workers, start replacements, and return workers that are ready to reset."""
        self.lost_workers.mark_lost()  # before a replacement writes there
        for handle in self.handles:
            if handle.state == DOWN and time.monotonic() >= handle.due:
                handle.episodes_started = False
                try:
                    self._start(handle)
                except ResourceError as error:
                    self._record_lost(handle, str(error))
            elif handle.state == STARTING:
                assert handle.pipe is not None
                if handle.pipe.poll(0):
                    self._receive(handle)
                else:
                    handle.watch(self.policy.hang_seconds)
        return [
            handle for handle in self.handles if handle.state == UP and not handle.episodes_started
        ]

    def respawn(self) -> None:
        """Replace lost workers after their delay and reset the sub-environments of new ones."""
        fresh = self._restart_lost()
        if fresh:
            if self.begun:
                self._send_command(RESET_LOST, fresh)
                self._wait()
            self.async_steps.request_steps(self._finish_resets(fresh))

    def _finish_resets(self, fresh: Sequence[WorkerHandle]) -> list[WorkerHandle]:
        """Return the workers whose reset is complete."""
        for handle in fresh:
            self.receive_faults(handle)
            handle.episodes_started = handle.state == UP
        return [handle for handle in fresh if handle.episodes_started]

    @property
    def complete(self) -> bool:
        """True if all workers are up and have reset their sub-environments."""
        for handle in self.handles:
            if handle.state != UP or not handle.episodes_started:
                return False
        return True

    def ready(self) -> None:
        self.check_open()
        while not self.complete:
            self.respawn()
            self.fault_log.check()
            time.sleep(0.002)

    def _record_lost(self, handle: WorkerHandle, why: str = "") -> None:
        """Record the loss of a worker and schedule its replacement."""
        output, hung, at = handle.crash_output(), handle.hung, int(handle.words[AT])
        if not any(lo <= at < hi for lo, hi in handle.ranges):
            at = handle.ranges[0][0]
        if handle.pipe is not None:
            self._unregister(handle)
            handle.detach()
            why = self._process_pool.ending(handle)
            if hung:
                seconds = self.policy.hang_seconds
                why = f"hung for more than {seconds:g} s and did not react to the signal"
        arrays, episode, step = self.block.arrays, 0, 0
        arrays["failed_attempts"][at] += 1
        action = np.ravel(arrays["actions"][at]).tolist() if "actions" in arrays else []
        if "episode" in arrays:
            episode, step = max(0, int(arrays["episode"][at]) - 1), int(arrays["length"][at])
        text = f"the process {why}" + (f"\n{output}" if output else "")
        self.fault_log.add(
            Fault("lost", at, handle.number, handle.pid, episode, step, action, text)
        )
        handle.due, handle.lost = time.monotonic() + self.fault_log.delay(handle.number), True

    # Commands, messages from workers, waiting.

    @property
    def arrays(self) -> Arrays:
        if not self.block.arrays:
            self.check_open()
        return self.block.arrays

    def _send_command(
        self, command: int, handles: Sequence[WorkerHandle], extra: Sequence[WorkerHandle] = ()
    ) -> None:
        """Send a command to workers; `_wait` also waits for those in `extra`."""
        for handle in handles:
            handle.order(command, NOT_WAITING)
        self._pending = [*extra, *handles]

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait for the commands sent and return true if they are complete in time."""
        pending = self._pending

        def ready() -> bool:
            while pending and pending[-1].done:
                pending.pop()
            return not pending

        hang = self.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            # Spinning costs nothing while the working workers leave a core idle.
            if spin_wait(ready, spin_seconds(len(pending), self._cores)):
                return True
            # One worker wakes this process and yields its core; the others spin.
            pending[-1].words[WAITING] = SAME_CORE if len(self.handles) >= self._cores else ANY_CORE
            fence()
            pending = [handle for handle in pending if handle.state == UP and not handle.done]
            self._pending = pending
            if not pending:
                return True
            if pending[-1].words[WAITING] == NOT_WAITING:
                continue
            look = poll_ms(hang)
            if until is not None:
                look = min(look, max(0, int(1000 * (until - time.monotonic()) + 1)))
            self.sleep(look)
            for handle in pending:
                if handle.state == UP and not handle.done:
                    handle.watch(hang)
            if until is not None and time.monotonic() >= until:
                return not any(handle.state == UP and not handle.done for handle in pending)

    def _collect_reports(self, handles: Iterable[WorkerHandle]) -> None:
        """Process the reports of workers after `_wait`."""
        for handle in handles:
            if handle.words[REPORTS] != handle.num_received:
                self.receive_faults(handle)
            if handle.state == UP:
                self.fault_log.record_response(handle.number)
        self.raise_error()

    def sleep(self, milliseconds: int) -> None:
        """Sleep until a worker completes a command, sends a message or exits, or until timeout."""
        for fd, _ in self._poller.poll(milliseconds):
            if fd == self._done.fds[0]:
                self._done.clear()
            elif fd in self._by_fd:
                self._receive(self._by_fd[fd])

    def receive_faults(self, handle: WorkerHandle) -> None:
        """Receive the faults that a worker has reported."""
        while handle.state == UP and handle.words[REPORTS] != handle.num_received:
            self._receive(handle)

    def _receive(self, handle: WorkerHandle) -> None:
        """Receive one message of a worker, or record its exit."""
        assert handle.pipe is not None
        try:
            what, value = handle.pipe.recv()
        except (EOFError, OSError):
            self._record_lost(handle)
            return
        if what == "ready":
            handle.state = UP
        elif what == "fault":
            handle.num_received += 1
            self.fault_log.add(value._replace(worker=handle.number, pid=handle.pid))
        elif what == "answer":
            self._answers[handle.number] = value
        else:  # its sub-environments could not be created
            self._error = self._error or value

    def raise_error(self) -> None:
        """Raise the error of a worker that could not start."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # Remote calls of `SubEnvGroup` methods by message: slow.

    def call(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        allow_lost: bool = False,
    ) -> Answers:
        return self._call(method, self._make_calls(arguments, selected), allow_lost)

    def call_with_retry(self, method: str, arguments: Arguments) -> Answers:
        answers: dict[int, tuple[NDArray[np.int64], Any]] = {}
        calls = self._make_calls(arguments)
        while left := [call for call in calls if call[0].number not in answers]:
            self.ready()
            for (handle, _), answer in zip(left, self._call(method, left, True), strict=True):
                if handle.state == UP:
                    answers[handle.number] = answer
        return [answers[handle.number] for handle, _ in calls]

    def handles_with(self, selected: NDArray[np.bool_]) -> list[WorkerHandle]:
        """Return workers with selected sub-environments."""
        return [handle for handle in self.handles if selected[handle.rows].any()]

    def _make_calls(self, arguments: Arguments, selected: NDArray[np.bool_] | None = None) -> Calls:
        handles = self.handles if selected is None else self.handles_with(selected)
        return [(handle, arguments(handle.numbers.tolist())) for handle in handles]

    def _call(self, method: str, calls: Calls, allow_lost: bool) -> Answers:
        try:
            self._send_calls(method, calls)
            self._wait()
            values = self._receive_answers(method, calls, allow_lost)
        finally:
            self.lost_workers.mark_lost()
            self.async_steps.request_steps([handle for handle, _ in calls])
        return [(handle.numbers, value) for (handle, _), value in zip(calls, values, strict=True)]

    def _send_calls(self, method: str, calls: Calls) -> None:
        """Send calls to all workers that are up; `_receive_answers` returns the results.

        No call is sent if any of them cannot be pickled.
        """
        here = [(handle, arguments) for handle, arguments in calls if handle.state == UP]
        messages = [ForkingPickler.dumps((method, arguments)) for _, arguments in here]
        self._called = [handle for handle, _ in here]
        for handle, _ in calls:
            self._answers.pop(handle.number, None)
        self._send_command(CALL, self._called)
        # They read by now: an unread pipe only holds about 200 KB.
        for handle, message in zip(self._called, messages, strict=True):
            handle.send(message)

    def _receive_answers(self, method: str, calls: Calls, allow_lost: bool = False) -> list[Any]:
        """Return the answers in the order of the workers.

        With `allow_lost`, the answer of a lost worker is None unless the policy stops the run.
        """
        handles = [handle for handle, _ in calls]
        for handle in self._called:  # all of them, so that no answer is left for the next call
            while handle.number not in self._answers and handle.state == UP:
                self._receive(handle)
        self._collect_reports(handles)
        values, failed = list[Any](), list[BaseException]()
        for handle in handles:
            if handle.number not in self._answers:
                self.fault_log.check()
                if not allow_lost:
                    name = self.fault_log.name
                    raise KernelError(f"{name}: worker {handle.number} was lost during `{method}`.")
            worked, value = self._answers.pop(handle.number, (True, None))
            (values if worked else failed).append(value)
        if failed:
            raise failed[0]
        return values

    # Resets and steps of all sub-environments.

    def settle(self) -> None:
        self.check_open()
        self.async_steps.stop()

    def run(self, what: str) -> None:
        self.async_steps.stop()
        selected = self.block["selected"]
        self.lost_workers.shown(selected)
        handles = self.handles_with(selected)
        self._send_command(_RUNS[what], handles)
        self._wait()
        self._collect_reports(handles)
        self.lost_workers.mark_lost()
        self.lost_workers.shown(selected & self.lost_workers.dirty, here=False)

    def begin_reset(self, arguments: Arguments) -> None:
        self.async_steps.stop()
        self.ready()
        arrays = self.block.arrays
        arrays["valid"][:], arrays["reward"][:] = True, 0.0
        for name in STEP_FLAGS:  # here, because workers without selected rows are not called
            arrays[name][:] = False
        self.lost_workers.shown(arrays["selected"])
        self._resetting = self._make_calls(arguments, arrays["selected"])
        self._send_calls("reset", self._resetting)

    def end_reset(self, timeout: float | None = None) -> bool:
        """Wait for the reset, and repeat it for replaced workers."""
        calls = self._resetting
        if not self._wait(timeout):
            return False
        while True:
            self._receive_answers("reset", calls, allow_lost=True)
            calls = [call for call in calls if call[0].state != UP]
            if not calls:
                self.begun = True
                return True
            self.ready()
            self.lost_workers.shown(self.block["selected"])
            self._send_calls("reset", calls)
            self._wait()

    def begin_step(self, t: int) -> None:
        self.async_steps.stop()
        handles, self._resetting_handles = self.handles, []
        if self.lost_workers.any or not self.complete:
            self._resetting_handles = self._restart_lost()
            for handle in self._resetting_handles:
                handle.order(RESET_LOST, NOT_WAITING)
            handles = [
                handle for handle in handles if not self.lost_workers.dirty[handle.rows].any()
            ]
        for handle in handles:
            handle.words[STEP] = t
        self._stepping = handles
        self._send_command(STEP_ALL, handles, self._resetting_handles)

    def end_step(self, timeout: float | None = None) -> bool:
        if not self._wait(timeout):
            return False
        self._finish_resets(self._resetting_handles)
        self._collect_reports(self._stepping)
        self.lost_workers.mark_lost()
        self._shown = False
        if self.lost_workers.any:
            for handle in self.handles:
                self._shown |= self.lost_workers.skip_step(handle)
        return True

    @property
    def stepped(self) -> bool:
        if self._shown:
            return True
        down, held = self.block["down"], self.block["held"]
        faulty = self.fault_log.total and np.count_nonzero(down)  # without a fault none is down
        if self._stepping and not faulty and not np.count_nonzero(held):
            return True
        idle = down | held
        return any(not idle[handle.rows].all() for handle in self._stepping if handle.state == UP)

    def send(self, rows: NDArray[np.int64]) -> None:
        self.async_steps.send(rows)

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        return self.async_steps.receive(self._count(count), timeout)

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        return self.async_steps.in_flight

    @property
    def dirty(self) -> NDArray[np.bool_]:
        return self.lost_workers.dirty

    # Resizing and closing.

    def resize(
        self,
        num_envs: int,
        layout: Callable[[int], Layout],
        fill: Callable[[Arrays], None] = lambda arrays: None,
    ) -> None:
        num_envs = check_count("num_envs", num_envs)
        self.settle()
        self.ready()
        old, before = self.block, self.num_envs
        self._process_pool.reserve(max(0, num_envs - before), self.fault_log.name)
        try:
            self.block = SharedBlock(layout(num_envs))
        except BaseException:
            self._process_pool.release(max(0, num_envs - before))
            raise
        self._process_pool.release(max(0, before - num_envs))
        self._move(old.arrays, self.block.arrays, num_envs, fill)
        self.lost_workers.resize(num_envs)
        self.async_steps.resize(num_envs)
        try:
            if num_envs < before:
                self._shrink()
            else:
                self._grow(before)
        except BaseException:  # only some have moved
            self.close()
            raise
        finally:
            old.close()
        self.fault_log.check()

    def _shrink(self) -> None:
        """Close the highest rows and return workers without sub-environments to the pool."""
        size = self.num_envs
        for handle in self.handles:
            handle.ranges = [(lo, min(hi, size)) for lo, hi in handle.ranges if lo < size]
        self._move_to_block("shrink", [(handle, (size,)) for handle in self.handles if handle.load])
        empty = [handle for handle in self.handles if not handle.load]
        for handle in empty:
            self.handles.remove(handle)
            self._unregister(handle)
        self._process_pool.give_back(empty)

    def _grow(self, before: int) -> None:
        """Distribute new rows to the workers with the fewest rows and to new workers."""
        w = min(self._max_workers, self.num_envs)
        share = -(-self.num_envs // max(w, len(self.handles)))
        calls, lo = [], before
        for handle in self.handles:
            hi = min(self.num_envs, lo + max(0, share - handle.load))
            calls.append((handle, (lo, hi, self.begun)))
            if hi > lo:
                handle.ranges = [*handle.ranges, (lo, hi)]
            lo = hi
        self._move_to_block("grow", calls)
        if lo < self.num_envs:
            parts = _split_rows(lo, self.num_envs, -(-(self.num_envs - lo) // share))
            self.spin_seconds = spin_seconds(len(self.handles) + len(parts) - 1, self._cores)
            more = self._add_workers(parts)
            self._wait_until_started(more)
            if self.begun:
                self._call("reset_all", [(handle, ()) for handle in more], allow_lost=True)

    def _move_to_block(self, method: str, calls: Calls) -> None:
        """Call a `SubEnvGroup` method that moves to the new block."""
        layout = self.block.layout
        calls = [(handle, (layout, *rest)) for handle, rest in calls]
        self._send_calls(method, calls)
        for handle in self._called:
            with suppress(OSError):
                handle.send_fds([self.block.fd])
        self._wait()
        self._receive_answers(method, calls, allow_lost=True)

    def close(self) -> None:
        """Return the workers to the pool and release the block. Safe to call again."""
        if self.closed:
            return
        self.closed = True
        self._end()
        self.block.close()
        self._process_pool.release(self.num_envs)
        if self._owns_pool:
            self._process_pool.close()


def _end(handles: list[WorkerHandle], process_pool: ProcessPool, done: PipeEvent) -> None:
    try:
        process_pool.give_back(handles)
    finally:
        done.close()


def _split_rows(lo: int, hi: int, workers: int) -> list[tuple[int, int]]:
    """Split rows lo..hi-1 into nearly equal ranges."""
    edges = np.linspace(lo, hi, workers + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


class AsyncSteps:
    """Steps of single sub-environments: sent, taken by workers in their own order, received.

    Attributes:
        in_flight: Mask of sub-environments with a step sent but not received, bool [E].
    """

    def __init__(self, driver: ProcessDriver) -> None:
        self._driver = driver
        self.in_flight = np.zeros(driver.num_envs, np.bool_)
        self._ready: list[int] = []  # finished, not received
        self._serving = False  # workers serve requests without commands

    def resize(self, num_envs: int) -> None:
        """Change the number of sub-environments; nothing is in flight."""
        self.in_flight = np.zeros(num_envs, np.bool_)

    def stop(self) -> None:
        """Leave request mode before any other command.

        Raises:
            ConfigError: Steps are in flight.
        """
        if self._serving and self.in_flight.any():
            raise self._driver.not_received()
        self._serving = False

    def request_steps(self, handles: Sequence[WorkerHandle]) -> None:
        """Switch workers to request mode if it is active."""
        if self._serving:
            for handle in handles:
                if handle.state == UP and handle.episodes_started:
                    handle.order(STEP_REQUESTED)

    def send(self, env_ids: NDArray[np.int64]) -> None:
        """Request a step of idle sub-environments whose actions are in the block."""
        driver = self._driver
        if not self._serving:
            driver.ready()
            self._serving = True
            self.request_steps(driver.handles)
        self.in_flight[env_ids] = True
        chosen = np.zeros(len(self.in_flight), np.bool_)
        chosen[env_ids] = True
        # Actions of dirty rows are for lost episodes, see `_complete_lost`.
        chosen &= ~driver.lost_workers.dirty
        driver.block["requested"][chosen] += np.uint64(1)
        for handle in driver.handles_with(chosen):
            handle.reset_watch()
            handle.words[REQUESTS] += 1
            handle.wake()

    def receive(self, count: int, timeout: float | None) -> NDArray[np.int64]:
        """Return the first `count` finished rows; see `SerialDriver.receive`."""
        driver = self._driver
        hang = driver.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        needed = 0
        while True:
            complete = driver.complete
            if not complete:
                driver.respawn()
                driver.fault_log.check()
            self._collect_ready()
            self._complete_lost(needed)
            if len(self._ready) >= count:
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"`recv`: {len(self._ready)} of {count} steps are ready.")
            driver.sleep(poll_ms(hang) if complete else _PAUSE_MS)
            needed = count
            for handle in driver.handles:
                if handle.state == UP:
                    self._watch(handle, hang)
        ready = np.array(self._ready[:count], np.int64)
        del self._ready[:count]
        self.in_flight[ready] = False
        for handle in driver.handles:
            driver.receive_faults(handle)
        driver.raise_error()
        return ready

    def _collect_ready(self) -> None:
        block = self._driver.block
        fresh = (
            self.in_flight
            & (block["requested"] == block["completed"])
            & ~self._driver.lost_workers.dirty
        )
        fresh[self._ready] = False
        self._ready += np.flatnonzero(fresh).tolist()

    def _complete_lost(self, needed: int) -> None:
        """Complete requested steps of lost workers without stepping.

        A lost episode is reported immediately. The next state is reported when the worker is
        back, or earlier if fewer than `needed` rows would be ready without it.
        """
        driver, lost_workers = self._driver, self._driver.lost_workers
        if not lost_workers.any:
            return
        waiting = self.in_flight & lost_workers.dirty
        waiting[self._ready] = False
        for handle in driver.handles_with(waiting):
            rows = handle.numbers[waiting[handle.rows]]
            here = handle.state == UP and handle.episodes_started
            if not here:
                in_flight = int((self.in_flight & ~waiting).sum())  # ready or expected
                without_pending_loss = lost_workers.without_pending_loss(rows)
                rows = np.setdiff1d(rows, without_pending_loss[max(0, needed - in_flight) :])
            lost_workers.write_skipped_step(rows)
            lost_workers.shown(rows, here)
            waiting[rows] = False
            self._ready += rows.tolist()

    def lost(self, rows: NDArray[np.int64]) -> None:
        """Drop the requests and finished steps of a lost worker."""
        block, gone = self._driver.block, set(rows.tolist())
        block["completed"][rows] = block["requested"][rows]
        self._ready = [row for row in self._ready if row not in gone]

    def _watch(self, handle: WorkerHandle, hang: float) -> None:
        block, at = self._driver.block, handle.rows
        if (self.in_flight[at] & (block["requested"][at] != block["completed"][at])).any():
            handle.watch(hang)
        else:
            handle.reset_watch()


class LostWorkers:
    """Separate the outputs of sub-environments before and after the loss of their worker.

    An action chosen before a loss does not apply to the new state. The next step therefore skips
    such a sub-environment, reports its lost episode and returns its new state.

    Args:
        driver: Driver of the sub-environments.
        on_lost: Called with the rows of a lost worker, before its replacement writes there.
        repeat_lost: Repeat lost episodes. Otherwise they end truncated and marked as lost.

    Attributes:
        dirty: Mask of sub-environments whose state changed after their last output, bool [E].
        any: True if there are any.
    """

    def __init__(
        self, driver: ProcessDriver, on_lost: Callable[[NDArray[np.int64]], None], repeat_lost: bool
    ) -> None:
        self._driver, self._on_lost, self._repeat_lost = driver, on_lost, repeat_lost
        self.dirty, self._unreported = np.zeros((2, driver.num_envs), np.bool_)
        self.any = False

    def mark_lost(self) -> None:
        """Mark the rows of newly lost workers."""
        for handle in self._driver.handles:
            if not handle.lost:
                continue
            handle.lost = False
            block, rows = self._driver.block, handle.numbers
            self._on_lost(rows)
            block["info_code"][rows] = False
            running = ~(block["held"][rows] | block["down"][rows] | self.dirty[rows])
            self._unreported[rows[running]] = self._driver.begun and not self._repeat_lost
            self.dirty[rows] = self.any = True
            block["down"][rows] = False
            self._driver.async_steps.lost(rows)

    def shown(self, rows: Any, here: bool = True) -> None:
        """Mark rows as output; they stay dirty unless their worker is up."""
        if self.any:
            self._unreported[rows] = False
            self.dirty[rows] = not here
            self.any = bool(self.dirty.any())

    def skip_step(self, handle: WorkerHandle) -> bool:
        """Write the result of a skipped step if any row of a worker is dirty.

        Returns true if the new states are output.
        """
        if not self.dirty[handle.rows].any():
            return False
        rows, here = handle.numbers, handle.state == UP and handle.episodes_started
        if here:  # the other rows have no info at this step
            self._driver.block["info_code"][rows[~self.dirty[rows]]] = False
        self.write_skipped_step(rows)
        self.shown(rows, here)
        return here

    def write_skipped_step(self, rows: NDArray[np.int64]) -> None:
        """Write the result of a skipped step."""
        block = self._driver.block
        block["valid"][rows] = block["held"][rows]
        block["reward"][rows] = 0.0
        for name in ("terminated", "ended", "has_final"):
            block[name][rows] = False
        block["truncated"][rows] = block["lost"][rows] = self._unreported[rows]

    def without_pending_loss(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows without an unreported loss."""
        return rows[~self._unreported[rows]]

    def resize(self, num_envs: int) -> None:
        """Change the number of sub-environments."""
        old = self.dirty, self._unreported
        common = min(num_envs, len(self.dirty))
        self.dirty, self._unreported = fresh = np.zeros((2, num_envs), np.bool_)
        fresh[0, :common], fresh[1, :common] = old[0][:common], old[1][:common]
        self.any = bool(self.dirty.any())
