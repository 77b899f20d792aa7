"""All copies of an environment in worker processes, which are replaced when they are lost.

`ProcessDriver` orders steps of all copies at once. `AsyncSteps` keeps which copies were sent an
action of their own, `Losses` which copies' worker was lost and what is still to be reported of
them.
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
_PAUSE_MS = 5  # between two tries to replace lost workers
_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for children

Calls = Sequence[tuple[WorkerHandle, tuple[Any, ...]]]
"""Workers with the arguments of the method that each is asked for."""


class ProcessDriver(BaseDriver):
    """W workers over one block; methods without a description are those of `SerialDriver`.

    Args:
        layout: of the block, with `state_arrays`.
        job: makes an `Assignment` of `layout`, `ranges` and `spin_wait`.
        num_envs: E.
        name: of the environment, for messages.
        leave, repeats: see `Losses`.
        workers: W; the machine's cores unless given.
        method: "forkserver" or "spawn".
        policy: what a fault leads to.
        crowd: where workers come from; processes of its own unless given.

    Attributes:
        block: arrays that all share; replaced by `resize`.
        links: the workers.
        singles: steps of single copies.
        losses: copies whose worker was lost.
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
        self._resetting_handles: list[WorkerHandle] = []  # beside those that step
        self._called: list[WorkerHandle] = []  # in the newest talk
        self._owns_pool = process_pool is None
        self._process_pool = process_pool = (
            ProcessPool(method) if process_pool is None else process_pool
        )
        process_pool.reserve(num_envs, name)
        try:
            self._done = PipeEvent()
            self._poller.register(self._done.fds[0], select.POLLIN)
            # Should `close` never be called: at exit, or when nobody refers to it any more.
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

    # Workers started and replaced.

    def start(self) -> None:
        """Starts the workers and waits until the copies are made.

        Raises:
            ConfigError, ResourceError, KernelError: one could not be made; nothing is left.
        """
        try:
            self._wait_until_started(self.handles)
        except BaseException:
            self.close()
            raise
        pids = [handle.pid for handle in self.handles]
        self._process_pool.started(self.num_envs, self.fault_log.name, pids)

    def _add_workers(self, ranges: Sequence[tuple[int, int]]) -> list[WorkerHandle]:
        """Further workers, with these copies."""
        before = len(self.handles)
        first = 1 + max((handle.number for handle in self.handles), default=-1)
        for number, own in enumerate(ranges, first):
            handle = self._process_pool.acquire()
            handle.number, handle.ranges = number, [own]
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
        """Its pipe is not listened to any more."""
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
            handle.lost, handle.episodes_started = False, True  # nobody has begun

    def _restart_lost(self) -> list[WorkerHandle]:
        """Marks what was lost, starts who shall follow; those that are ready to begin."""
        self.lost_workers.mark_lost()  # before another one writes there
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
        """Replaces workers when it is time, and has new ones begin their copies."""
        fresh = self._restart_lost()
        if fresh:
            if self.begun:
                self._send_command(RESET_LOST, fresh)
                self._wait()
            self.async_steps.request_steps(self._finish_resets(fresh))

    def _finish_resets(self, fresh: Sequence[WorkerHandle]) -> list[WorkerHandle]:
        """Those that have begun, after they were ordered to."""
        for handle in fresh:
            self.receive_faults(handle)
            handle.episodes_started = handle.state == UP
        return [handle for handle in fresh if handle.episodes_started]

    @property
    def complete(self) -> bool:
        """Return true if all workers are there, and their copies have begun."""
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
        """Counts the loss of a worker; another one is started when it is time."""
        said, hung, at = handle.crash_output(), handle.hung, int(handle.words[AT])
        if not any(lo <= at < hi for lo, hi in handle.ranges):
            at = handle.ranges[0][0]
        if handle.pipe is not None:
            self._unregister(handle)
            handle.detach()
            why = self._process_pool.ending(handle)
            if hung:
                seconds = self.policy.hang_seconds
                why = f"hung for more than {seconds:g} s, and did not come back when it was asked"
        arrays, episode, step = self.block.arrays, 0, 0
        arrays["failed_attempts"][at] += 1
        action = np.ravel(arrays["actions"][at]).tolist() if "actions" in arrays else []
        if "episode" in arrays:
            episode, step = max(0, int(arrays["episode"][at]) - 1), int(arrays["length"][at])
        text = f"the process {why}" + (f"\n{said}" if said else "")
        self.fault_log.add(
            Fault("lost", at, handle.number, handle.pid, episode, step, action, text)
        )
        handle.due, handle.lost = time.monotonic() + self.fault_log.delay(handle.number), True

    # Orders, what workers send back, and how they are waited for.

    @property
    def arrays(self) -> Arrays:
        if not self.block.arrays:
            self.check_open()
        return self.block.arrays

    def _send_command(
        self, command: int, handles: Sequence[WorkerHandle], uncounted: Sequence[WorkerHandle] = ()
    ) -> None:
        """Has workers do something; `_wait` waits for those, too, that were `uncounted` ordered."""
        for handle in handles:
            handle.order(command, NOT_WAITING)
        self._pending = [*uncounted, *handles]

    def _wait(self, timeout: float | None = None) -> bool:
        """Waits until what was ordered is done, or for so many seconds; whether it is done."""
        pending = self._pending

        def ready() -> bool:
            while pending and pending[-1].done:
                pending.pop()
            return not pending

        hang = self.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            # Looking is for free where those that still work leave a core to spare.
            if spin_wait(ready, spin_seconds(len(pending), self._cores)):
                return True
            # One wakes this process and leaves it a core; the others look for their next order.
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
        """After `_wait`: takes what workers have to report."""
        for handle in handles:
            if handle.words[REPORTS] != handle.num_received:
                self.receive_faults(handle)
            if handle.state == UP:
                self.fault_log.record_response(handle.number)
        self.raise_error()

    def sleep(self, milliseconds: int) -> None:
        """Until a worker is done, says something or is gone, or the time is over."""
        for fd, _ in self._poller.poll(milliseconds):
            if fd == self._done.fds[0]:
                self._done.clear()
            elif fd in self._by_fd:
                self._receive(self._by_fd[fd])

    def receive_faults(self, handle: WorkerHandle) -> None:
        """Takes the faults that a worker has reported."""
        while handle.state == UP and handle.words[REPORTS] != handle.num_received:
            self._receive(handle)

    def _receive(self, handle: WorkerHandle) -> None:
        """Takes one message of a worker; its end is one, too."""
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
        else:  # it could not make its copies
            self._error = self._error or value

    def raise_error(self) -> None:
        """Raises why a worker could not begin its job."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # Methods of the copies, called by messages: slow.

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
        """Workers that have any of the selected copies."""
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
        """Asks those that are there; `_wait` and `_receive_answers` bring the answers.

        Nobody is asked if something cannot be pickled.
        """
        here = [(handle, arguments) for handle, arguments in calls if handle.state == UP]
        messages = [ForkingPickler.dumps((method, arguments)) for _, arguments in here]
        self._called = [handle for handle, _ in here]
        for handle, _ in calls:
            self._answers.pop(handle.number, None)
        self._send_command(CALL, self._called)
        # They listen by now: where nobody reads, a pipe has room for some 200 KB.
        for handle, message in zip(self._called, messages, strict=True):
            handle.send(message)

    def _receive_answers(self, method: str, calls: Calls, allow_lost: bool = False) -> list[Any]:
        """The answers, in the order of the workers.

        `allow_lost`: that of a worker which was lost is None, if the policy is to go on.
        """
        handles = [handle for handle, _ in calls]
        for handle in self._called:  # all, or what one said would pass for its next answer
            while handle.number not in self._answers and handle.state == UP:
                self._receive(handle)
        self._collect_reports(handles)
        values, failed = list[Any](), list[BaseException]()
        for handle in handles:
            if handle.number not in self._answers:
                self.fault_log.check()
                if not allow_lost:
                    name = self.fault_log.name
                    raise KernelError(f"{name}: worker {handle.number} was lost in `{method}`.")
            worked, value = self._answers.pop(handle.number, (True, None))
            (values if worked else failed).append(value)
        if failed:
            raise failed[0]
        return values

    # Episodes begun, and steps of all copies.

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
        for name in STEP_FLAGS:  # here: workers without a selected copy are not called
            arrays[name][:] = False
        self.lost_workers.shown(arrays["selected"])
        self._resetting = self._make_calls(arguments, arrays["selected"])
        self._send_calls("reset", self._resetting)

    def end_reset(self, timeout: float | None = None) -> bool:
        """Workers in the place of those that were lost are asked again."""
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

    # Another number of copies, and the end.

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
        except BaseException:  # some have moved, others have not
            self.close()
            raise
        finally:
            old.close()
        self.fault_log.check()

    def _shrink(self) -> None:
        """Has workers give up the copies of the highest rows; gives those without any back."""
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
        """Deals new rows to the workers with the fewest copies, and to new ones."""
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
        """Calls a method of the copies that moves them to the block, which is a new one."""
        layout = self.block.layout
        calls = [(handle, (layout, *rest)) for handle, rest in calls]
        self._send_calls(method, calls)
        for handle in self._called:
            with suppress(OSError):
                handle.send_fds([self.block.fd])
        self._wait()
        self._receive_answers(method, calls, allow_lost=True)

    def close(self) -> None:
        """Ends the workers or gives them back; may be called again."""
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
    """Rows lo..hi-1 in nearly equal parts."""
    edges = np.linspace(lo, hi, workers + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


class AsyncSteps:
    """Steps of single copies: sent, taken by workers as they come to it, received.

    Attributes:
        out: bool [E], copies that were sent an action and not received since.
    """

    def __init__(self, driver: ProcessDriver) -> None:
        self._driver = driver
        self.in_flight = np.zeros(driver.num_envs, np.bool_)
        self._ready: list[int] = []  # ready copies that nobody has received yet
        self._serving = False  # workers step what is wanted, and wait for no order

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies, and nothing is under way."""
        self.in_flight = np.zeros(num_envs, np.bool_)

    def stop(self) -> None:
        """Before any other order.

        Raises:
            ConfigError: steps are under way.
        """
        if self._serving and self.in_flight.any():
            raise self._driver.not_received()
        self._serving = False

    def request_steps(self, handles: Sequence[WorkerHandle]) -> None:
        """Has workers step what is wanted: new ones, and those that did something else."""
        if self._serving:
            for handle in handles:
                if handle.state == UP and handle.episodes_started:
                    handle.order(STEP_REQUESTED)

    def send(self, copies: NDArray[np.int64]) -> None:
        """A step of these copies, which are idle, is wanted; their actions are in the block."""
        driver = self._driver
        if not self._serving:
            driver.ready()
            self._serving = True
            self.request_steps(driver.handles)
        self.in_flight[copies] = True
        chosen = np.zeros(len(self.in_flight), np.bool_)
        chosen[copies] = True
        chosen &= ~driver.lost_workers.dirty  # no action is theirs: see `_complete_lost`
        driver.block["requested"][chosen] += np.uint64(1)
        for handle in driver.handles_with(chosen):
            handle.reset_watch()
            handle.words[REQUESTS] += 1
            handle.wake()

    def receive(self, count: int, timeout: float | None) -> NDArray[np.int64]:
        """The first so many copies that are ready; see `SerialDriver.receive`."""
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
                raise TimeoutError(f"`recv`: {len(self._ready)} of {count} copies are ready.")
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
        """Steps that nobody takes, for their worker was lost after the copies were last shown.

        That an episode is lost is reported at once; what comes after it, once the worker is back,
        or if without it there would not be as many copies as are needed.
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
                in_flight = int((self.in_flight & ~waiting).sum())  # has arrived, or will
                without_pending_loss = lost_workers.without_pending_loss(rows)
                rows = np.setdiff1d(rows, without_pending_loss[max(0, needed - in_flight) :])
            lost_workers.write_skipped_step(rows)
            lost_workers.shown(rows, here)
            waiting[rows] = False
            self._ready += rows.tolist()

    def lost(self, rows: NDArray[np.int64]) -> None:
        """Steps of a worker that is gone are over, also those that nobody has received."""
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
    """Keeps apart what copies showed before a loss and what they do after it.

    An action that was chosen before belongs to no copy of the new worker: a step passes such a
    copy over, reports of the first one that its episode was lost, and shows its present state.

    Args:
        driver: whose copies.
        leave: called with the rows of a worker that is gone, before another one has them.
        repeats: an episode that is lost is begun again; else it ends, truncated and marked.

    Attributes:
        unseen: bool [E], copies whose state is another one than they last showed.
        any: there are such copies.
    """

    def __init__(
        self, driver: ProcessDriver, on_lost: Callable[[NDArray[np.int64]], None], repeat_lost: bool
    ) -> None:
        self._driver, self._on_lost, self._repeat_lost = driver, on_lost, repeat_lost
        self.dirty, self._unreported = np.zeros((2, driver.num_envs), np.bool_)
        self.any = False

    def mark_lost(self) -> None:
        """Notes which workers are gone, and with them the episodes of their copies."""
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
        """These copies show their state, if their worker is here; no loss is unreported."""
        if self.any:
            self._unreported[rows] = False
            self.dirty[rows] = not here
            self.any = bool(self.dirty.any())

    def skip_step(self, handle: WorkerHandle) -> bool:
        """A step that a worker's copies did not take, if any of them is unseen.

        Returns true if they show their present state.
        """
        if not self.dirty[handle.rows].any():
            return False
        rows, here = handle.numbers, handle.state == UP and handle.episodes_started
        if here:  # the others have said nothing at this step
            self._driver.block["info_code"][rows[~self.dirty[rows]]] = False
        self.write_skipped_step(rows)
        self.shown(rows, here)
        return here

    def write_skipped_step(self, rows: NDArray[np.int64]) -> None:
        """Writes the outcome of a step that copies did not take."""
        block = self._driver.block
        block["valid"][rows] = block["held"][rows]
        block["reward"][rows] = 0.0
        for name in ("terminated", "ended", "has_final"):
            block[name][rows] = False
        block["truncated"][rows] = block["lost"][rows] = self._unreported[rows]

    def without_pending_loss(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some copies of which no loss is unreported."""
        return rows[~self._unreported[rows]]

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies."""
        old = self.dirty, self._unreported
        common = min(num_envs, len(self.dirty))
        self.dirty, self._unreported = fresh = np.zeros((2, num_envs), np.bool_)
        fresh[0, :common], fresh[1, :common] = old[0][:common], old[1][:common]
        self.any = bool(self.dirty.any())
