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
    BEGIN,
    BEGIN_LOST,
    DOWN,
    REPLAY,
    SERVE,
    STARTING,
    STEP_ALL,
    TALK,
    UP,
    WorkerHandle,
)
from slipstream.gym.process.fault_log import Fault
from slipstream.gym.process.process_pool import ProcessPool
from slipstream.gym.process.shared_memory import (
    ANYWHERE,
    ASKED,
    AWAITED,
    HERE,
    NOT,
    POLL_MS,
    REPORTS,
    STEP,
    Layout,
    PipeEvent,
    SharedBlock,
    fence,
    poll_ms,
    spin,
    spin_seconds,
)
from slipstream.gym.serial_driver import Answers, Arguments, Arrays, BaseDriver
from slipstream.gym.sub_env_group import FRESH
from slipstream.gym.worker_config import WorkerConfig, packed

_RUNS = {"begin": BEGIN, "replay": REPLAY}
_PAUSE_MS = 5  # between two tries to replace lost workers
_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for children

Calls = Sequence[tuple[WorkerHandle, tuple[Any, ...]]]
"""Workers with the arguments of the method that each is asked for."""


class ProcessDriver(BaseDriver):
    """W workers over one block; methods without a description are those of `SerialDriver`.

    Args:
        layout: of the block, with `state_arrays`.
        job: makes an `Assignment` of `layout`, `ranges` and `spin`.
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
    eventful = True

    def __init__(
        self,
        layout: Layout,
        job: Callable[..., WorkerConfig],
        *,
        num_envs: int,
        name: str,
        leave: Callable[[NDArray[np.int64]], None] = lambda rows: None,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        crowd: ProcessPool | None = None,
        repeats: bool = False,
    ) -> None:
        if workers is not None:
            workers = check_count("workers", workers)
        super().__init__(num_envs, name, policy)
        self.policy, self._job = policy, job
        self.losses, self.singles = LostWorkers(self, leave, repeats), AsyncSteps(self)
        self._cores = usable_cores()
        self._most = workers or self._cores
        w = max(1, min(self._most, num_envs))
        self.spin = spin_seconds(w - 1, self._cores)
        self.links: list[WorkerHandle] = []
        self._poller = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._answers: dict[int, Any] = {}
        self._error: Exception | None = None
        self._pending: list[WorkerHandle] = []
        self._beginning: list[WorkerHandle] = []  # beside those that step
        self._asked: list[WorkerHandle] = []  # in the newest talk
        self._owns_crowd = crowd is None
        self._crowd = crowd = ProcessPool(method) if crowd is None else crowd
        crowd.claim(num_envs, name)
        try:
            self._done = PipeEvent()
            self._poller.register(self._done.fds[0], select.POLLIN)
            # Should `close` never be called: at exit, or when nobody refers to it any more.
            self._end = Finalize(
                self, _end, (self.links, crowd, self._done), exitpriority=_BEFORE_WAITING
            )
            try:
                self._take(_dealt(0, num_envs, w))
                self.block = SharedBlock(layout)
            except BaseException:
                self._end()
                raise
        except BaseException as error:
            crowd.release(num_envs)
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
            self._await_start(self.links)
        except BaseException:
            self.close()
            raise
        pids = [link.pid for link in self.links]
        self._crowd.started(self.num_envs, self.ledger.name, pids)

    def _take(self, ranges: Sequence[tuple[int, int]]) -> list[WorkerHandle]:
        """Further workers, with these copies."""
        before = len(self.links)
        first = 1 + max((link.number for link in self.links), default=-1)
        for number, own in enumerate(ranges, first):
            link = self._crowd.take()
            link.number, link.ranges = number, [own]
            self.links.append(link)
        return self.links[before:]

    def _start(self, link: WorkerHandle) -> None:
        if link.state == DOWN:
            self._crowd.start(link)
        assert link.pipe is not None
        self._by_fd[link.pipe.fileno()] = link
        self._poller.register(link.pipe.fileno(), select.POLLIN)
        part = self._job(layout=self.block.layout, ranges=tuple(link.ranges), spin=self.spin)
        link.assign(packed(part), [self.block.fd, *self._done.fds])

    def _forget(self, link: WorkerHandle) -> None:
        """Its pipe is not listened to any more."""
        if link.pipe is not None:
            self._poller.unregister(link.pipe.fileno())
            del self._by_fd[link.pipe.fileno()]

    def _await_start(self, links: Sequence[WorkerHandle]) -> None:
        for link in links:
            self._start(link)
        waiting = list(links)
        while waiting:
            self.sleep(POLL_MS)
            for link in waiting:
                if link.state != DOWN:
                    link.watch(self.policy.hang_seconds)
                elif time.monotonic() >= link.due:
                    self._start(link)
            self.raise_error()
            self.ledger.check_any()
            waiting = [link for link in waiting if link.state != UP]
        for link in links:
            link.lost, link.begun = False, True  # nobody has begun

    def _revived(self) -> list[WorkerHandle]:
        """Marks what was lost, starts who shall follow; those that are ready to begin."""
        self.losses.mark()  # before another one writes there
        for link in self.links:
            if link.state == DOWN and time.monotonic() >= link.due:
                link.begun = False
                try:
                    self._start(link)
                except ResourceError as error:
                    self._lost(link, str(error))
            elif link.state == STARTING:
                assert link.pipe is not None
                if link.pipe.poll(0):
                    self._hear(link)
                else:
                    link.watch(self.policy.hang_seconds)
        return [link for link in self.links if link.state == UP and not link.begun]

    def mend(self) -> None:
        """Replaces workers when it is time, and has new ones begin their copies."""
        fresh = self._revived()
        if fresh:
            if self.begun:
                self._order(BEGIN_LOST, fresh)
                self._wait()
            self.singles.serve(self._begun(fresh))

    def _begun(self, fresh: Sequence[WorkerHandle]) -> list[WorkerHandle]:
        """Those that have begun, after they were ordered to."""
        for link in fresh:
            self.hear_reports(link)
            link.begun = link.state == UP
        return [link for link in fresh if link.begun]

    @property
    def complete(self) -> bool:
        """Return true if all workers are there, and their copies have begun."""
        for link in self.links:  # noqa: SIM110  (a generator takes a microsecond)
            if link.state != UP or not link.begun:
                return False
        return True

    def ready(self) -> None:
        self.check_open()
        while not self.complete:
            self.mend()
            self.ledger.check()
            time.sleep(0.002)

    def _lost(self, link: WorkerHandle, why: str = "") -> None:
        """Counts the loss of a worker; another one is started when it is time."""
        said, hung, at = link.last_words(), link.hung, int(link.words[AT])
        if not any(lo <= at < hi for lo, hi in link.ranges):
            at = link.ranges[0][0]
        if link.pipe is not None:
            self._forget(link)
            link.drop()
            why = self._crowd.ending(link)
            if hung:
                seconds = self.policy.hang_seconds
                why = f"hung for more than {seconds:g} s, and did not come back when it was asked"
        arrays, episode, step = self.block.arrays, 0, 0
        arrays["tries"][at] += 1
        action = np.ravel(arrays["actions"][at]).tolist() if "actions" in arrays else []
        if "episode" in arrays:
            episode, step = max(0, int(arrays["episode"][at]) - 1), int(arrays["length"][at])
        text = f"the process {why}" + (f"\n{said}" if said else "")
        self.ledger.add(Fault("lost", at, link.number, link.pid, episode, step, action, text))
        link.due, link.lost = time.monotonic() + self.ledger.delay(link.number), True

    # Orders, what workers send back, and how they are waited for.

    @property
    def arrays(self) -> Arrays:
        if not self.block.arrays:
            self.check_open()
        return self.block.arrays

    def _order(
        self, command: int, links: Sequence[WorkerHandle], beside: Sequence[WorkerHandle] = ()
    ) -> None:
        """Has workers do something; `_wait` waits for those, too, that were `beside` ordered."""
        for link in links:
            link.order(command, NOT)
        self._pending = [*beside, *links]

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
            if spin(ready, spin_seconds(len(pending), self._cores)):
                return True
            # One wakes this process and leaves it a core; the others look for their next order.
            pending[-1].words[AWAITED] = HERE if len(self.links) >= self._cores else ANYWHERE
            fence()
            pending = [link for link in pending if link.state == UP and not link.done]
            self._pending = pending
            if not pending:
                return True
            if pending[-1].words[AWAITED] == NOT:
                continue
            look = poll_ms(hang)
            if until is not None:
                look = min(look, max(0, int(1000 * (until - time.monotonic()) + 1)))
            self.sleep(look)
            for link in pending:
                if link.state == UP and not link.done:
                    link.watch(hang)
            if until is not None and time.monotonic() >= until:
                return not any(link.state == UP and not link.done for link in pending)

    def _finish(self, links: Iterable[WorkerHandle]) -> None:
        """After `_wait`: takes what workers have to report."""
        for link in links:
            if link.words[REPORTS] != link.heard:
                self.hear_reports(link)
            if link.state == UP:
                self.ledger.worked(link.number)
        self.raise_error()

    def sleep(self, milliseconds: int) -> None:
        """Until a worker is done, says something or is gone, or the time is over."""
        for fd, _ in self._poller.poll(milliseconds):
            if fd == self._done.fds[0]:
                self._done.hush()
            elif fd in self._by_fd:
                self._hear(self._by_fd[fd])

    def hear_reports(self, link: WorkerHandle) -> None:
        """Takes the faults that a worker has reported."""
        while link.state == UP and link.words[REPORTS] != link.heard:
            self._hear(link)

    def _hear(self, link: WorkerHandle) -> None:
        """Takes one message of a worker; its end is one, too."""
        assert link.pipe is not None
        try:
            what, value = link.pipe.recv()
        except (EOFError, OSError):
            self._lost(link)
            return
        if what == "ready":
            link.state = UP
        elif what == "fault":
            link.heard += 1
            self.ledger.add(value._replace(worker=link.number, pid=link.pid))
        elif what == "answer":
            self._answers[link.number] = value
        else:  # it could not make its copies
            self._error = self._error or value

    def raise_error(self) -> None:
        """Raises why a worker could not begin its job."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # Methods of the copies, called by messages: slow.

    def ask(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        spare: bool = False,
    ) -> Answers:
        return self._talk(method, self._calls(arguments, selected), spare)

    def insist(self, method: str, arguments: Arguments) -> Answers:
        answers: dict[int, tuple[NDArray[np.int64], Any]] = {}
        calls = self._calls(arguments)
        while left := [call for call in calls if call[0].number not in answers]:
            self.ready()
            for (link, _), answer in zip(left, self._talk(method, left, True), strict=True):
                if link.state == UP:
                    answers[link.number] = answer
        return [answers[link.number] for link, _ in calls]

    def rows_of(self, selected: NDArray[np.bool_]) -> list[WorkerHandle]:
        """Workers that have any of the selected copies."""
        return [link for link in self.links if selected[link.rows].any()]

    def _calls(self, arguments: Arguments, selected: NDArray[np.bool_] | None = None) -> Calls:
        links = self.links if selected is None else self.rows_of(selected)
        return [(link, arguments(link.numbers.tolist())) for link in links]

    def _talk(self, method: str, calls: Calls, spare: bool) -> Answers:
        try:
            self._begin_talk(method, calls)
            self._wait()
            values = self._end_talk(method, calls, spare)
        finally:
            self.losses.mark()
            self.singles.serve([link for link, _ in calls])
        return [(link.numbers, value) for (link, _), value in zip(calls, values, strict=True)]

    def _begin_talk(self, method: str, calls: Calls) -> None:
        """Asks those that are there; `_wait` and `_end_talk` bring the answers.

        Nobody is asked if something cannot be pickled.
        """
        here = [(link, arguments) for link, arguments in calls if link.state == UP]
        messages = [ForkingPickler.dumps((method, arguments)) for _, arguments in here]
        self._asked = [link for link, _ in here]
        for link, _ in calls:
            self._answers.pop(link.number, None)
        self._order(TALK, self._asked)
        # They listen by now: where nobody reads, a pipe has room for some 200 KB.
        for link, message in zip(self._asked, messages, strict=True):
            link.send(message)

    def _end_talk(self, method: str, calls: Calls, spare: bool = False) -> list[Any]:
        """The answers, in the order of the workers.

        `spare`: that of a worker which was lost is None, if the policy is to go on.
        """
        links = [link for link, _ in calls]
        for link in self._asked:  # all, or what one said would pass for its next answer
            while link.number not in self._answers and link.state == UP:
                self._hear(link)
        self._finish(links)
        values, failed = list[Any](), list[BaseException]()
        for link in links:
            if link.number not in self._answers:
                self.ledger.check()
                if not spare:
                    name = self.ledger.name
                    raise KernelError(f"{name}: worker {link.number} was lost in `{method}`.")
            worked, value = self._answers.pop(link.number, (True, None))
            (values if worked else failed).append(value)
        if failed:
            raise failed[0]
        return values

    # Episodes begun, and steps of all copies.

    def settle(self) -> None:
        self.check_open()
        self.singles.stop()

    def run(self, what: str) -> None:
        self.singles.stop()
        selected = self.block["selected"]
        self.losses.shown(selected)
        links = self.rows_of(selected)
        self._order(_RUNS[what], links)
        self._wait()
        self._finish(links)
        self.losses.mark()
        self.losses.shown(selected & self.losses.unseen, here=False)

    def begin_reset(self, arguments: Arguments) -> None:
        self.singles.stop()
        self.ready()
        arrays = self.block.arrays
        arrays["valid"][:], arrays["reward"][:] = True, 0.0
        for name in FRESH:  # here: workers without a selected copy are not called
            arrays[name][:] = False
        self.losses.shown(arrays["selected"])
        self._resetting = self._calls(arguments, arrays["selected"])
        self._begin_talk("begin", self._resetting)

    def end_reset(self, timeout: float | None = None) -> bool:
        """Workers in the place of those that were lost are asked again."""
        calls = self._resetting
        if not self._wait(timeout):
            return False
        while True:
            self._end_talk("begin", calls, spare=True)
            calls = [call for call in calls if call[0].state != UP]
            if not calls:
                self.begun = True
                return True
            self.ready()
            self.losses.shown(self.block["selected"])
            self._begin_talk("begin", calls)
            self._wait()

    def begin_step(self, t: int) -> None:
        self.singles.stop()
        links, self._beginning = self.links, []
        if self.losses.any or not self.complete:
            self._beginning = self._revived()
            for link in self._beginning:
                link.order(BEGIN_LOST, NOT)
            links = [link for link in links if not self.losses.unseen[link.rows].any()]
        for link in links:
            link.words[STEP] = t
        self._stepping = links
        self._order(STEP_ALL, links, self._beginning)

    def end_step(self, timeout: float | None = None) -> bool:
        if not self._wait(timeout):
            return False
        self._begun(self._beginning)
        self._finish(self._stepping)
        self.losses.mark()
        self._shown = False
        if self.losses.any:
            for link in self.links:
                self._shown |= self.losses.pass_over(link)
        return True

    @property
    def stepped(self) -> bool:
        if self._shown:
            return True
        down, held = self.block["down"], self.block["held"]
        faulty = self.ledger.total and np.count_nonzero(down)  # without a fault none is down
        if self._stepping and not faulty and not np.count_nonzero(held):
            return True
        idle = down | held
        return any(not idle[link.rows].all() for link in self._stepping if link.state == UP)

    def send(self, rows: NDArray[np.int64]) -> None:
        self.singles.send(rows)

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        return self.singles.receive(self._count(count), timeout)

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return self.singles.out

    @property
    def unseen(self) -> NDArray[np.bool_]:
        return self.losses.unseen

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
        self._crowd.claim(max(0, num_envs - before), self.ledger.name)
        try:
            self.block = SharedBlock(layout(num_envs))
        except BaseException:
            self._crowd.release(max(0, num_envs - before))
            raise
        self._crowd.release(max(0, before - num_envs))
        self._move(old.arrays, self.block.arrays, num_envs, fill)
        self.losses.resize(num_envs)
        self.singles.resize(num_envs)
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
        self.ledger.check()

    def _shrink(self) -> None:
        """Has workers give up the copies of the highest rows; gives those without any back."""
        size = self.num_envs
        for link in self.links:
            link.ranges = [(lo, min(hi, size)) for lo, hi in link.ranges if lo < size]
        self._attach("shrink", [(link, (size,)) for link in self.links if link.load])
        empty = [link for link in self.links if not link.load]
        for link in empty:
            self.links.remove(link)
            self._forget(link)
        self._crowd.give_back(empty)

    def _grow(self, before: int) -> None:
        """Deals new rows to the workers with the fewest copies, and to new ones."""
        w = min(self._most, self.num_envs)
        share = -(-self.num_envs // max(w, len(self.links)))
        calls, lo = [], before
        for link in self.links:
            hi = min(self.num_envs, lo + max(0, share - link.load))
            calls.append((link, (lo, hi, self.begun)))
            if hi > lo:
                link.ranges = [*link.ranges, (lo, hi)]
            lo = hi
        self._attach("grow", calls)
        if lo < self.num_envs:
            parts = _dealt(lo, self.num_envs, -(-(self.num_envs - lo) // share))
            self.spin = spin_seconds(len(self.links) + len(parts) - 1, self._cores)
            more = self._take(parts)
            self._await_start(more)
            if self.begun:
                self._talk("begin_all", [(link, ()) for link in more], spare=True)

    def _attach(self, method: str, calls: Calls) -> None:
        """Calls a method of the copies that moves them to the block, which is a new one."""
        layout = self.block.layout
        calls = [(link, (layout, *rest)) for link, rest in calls]
        self._begin_talk(method, calls)
        for link in self._asked:
            with suppress(OSError):
                link.hand([self.block.fd])
        self._wait()
        self._end_talk(method, calls, spare=True)

    def close(self) -> None:
        """Ends the workers or gives them back; may be called again."""
        if self.closed:
            return
        self.closed = True
        self._end()
        self.block.close()
        self._crowd.release(self.num_envs)
        if self._owns_crowd:
            self._crowd.close()


def _end(links: list[WorkerHandle], crowd: ProcessPool, done: PipeEvent) -> None:
    try:
        crowd.give_back(links)
    finally:
        done.close()


def _dealt(lo: int, hi: int, workers: int) -> list[tuple[int, int]]:
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
        self.out = np.zeros(driver.num_envs, np.bool_)
        self._arrived: list[int] = []  # ready copies that nobody has received yet
        self._serving = False  # workers step what is wanted, and wait for no order

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies, and nothing is under way."""
        self.out = np.zeros(num_envs, np.bool_)

    def stop(self) -> None:
        """Before any other order.

        Raises:
            ConfigError: steps are under way.
        """
        if self._serving and self.out.any():
            raise self._driver.not_received()
        self._serving = False

    def serve(self, links: Sequence[WorkerHandle]) -> None:
        """Has workers step what is wanted: new ones, and those that did something else."""
        if self._serving:
            for link in links:
                if link.state == UP and link.begun:
                    link.order(SERVE)

    def send(self, copies: NDArray[np.int64]) -> None:
        """A step of these copies, which are idle, is wanted; their actions are in the block."""
        driver = self._driver
        if not self._serving:
            driver.ready()
            self._serving = True
            self.serve(driver.links)
        self.out[copies] = True
        chosen = np.zeros(len(self.out), np.bool_)
        chosen[copies] = True
        chosen &= ~driver.losses.unseen  # no action is theirs: see `_answer`
        driver.block["wanted"][chosen] += np.uint64(1)
        for link in driver.rows_of(chosen):
            link.rest()
            link.words[ASKED] += 1
            link.wake()

    def receive(self, count: int, timeout: float | None) -> NDArray[np.int64]:
        """The first so many copies that are ready; see `SerialDriver.receive`."""
        driver = self._driver
        hang = driver.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        needed = 0
        while True:
            complete = driver.complete
            if not complete:
                driver.mend()
                driver.ledger.check()
            self._note()
            self._answer(needed)
            if len(self._arrived) >= count:
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"`recv`: {len(self._arrived)} of {count} copies are ready.")
            driver.sleep(poll_ms(hang) if complete else _PAUSE_MS)
            needed = count
            for link in driver.links:
                if link.state == UP:
                    self._watch(link, hang)
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        self.out[ready] = False
        for link in driver.links:
            driver.hear_reports(link)
        driver.raise_error()
        return ready

    def _note(self) -> None:
        block = self._driver.block
        fresh = self.out & (block["wanted"] == block["served"]) & ~self._driver.losses.unseen
        fresh[self._arrived] = False
        self._arrived += np.flatnonzero(fresh).tolist()

    def _answer(self, needed: int) -> None:
        """Steps that nobody takes, for their worker was lost after the copies were last shown.

        That an episode is lost is reported at once; what comes after it, once the worker is back,
        or if without it there would not be as many copies as are needed.
        """
        driver, losses = self._driver, self._driver.losses
        if not losses.any:
            return
        waiting = self.out & losses.unseen
        waiting[self._arrived] = False
        for link in driver.rows_of(waiting):
            rows = link.numbers[waiting[link.rows]]
            here = link.state == UP and link.begun
            if not here:
                under_way = int((self.out & ~waiting).sum())  # has arrived, or will
                silent = losses.silent(rows)
                rows = np.setdiff1d(rows, silent[max(0, needed - under_way) :])
            losses.say(rows)
            losses.shown(rows, here)
            waiting[rows] = False
            self._arrived += rows.tolist()

    def lost(self, rows: NDArray[np.int64]) -> None:
        """Steps of a worker that is gone are over, also those that nobody has received."""
        block, gone = self._driver.block, set(rows.tolist())
        block["served"][rows] = block["wanted"][rows]
        self._arrived = [row for row in self._arrived if row not in gone]

    def _watch(self, link: WorkerHandle, hang: float) -> None:
        block, at = self._driver.block, link.rows
        if (self.out[at] & (block["wanted"][at] != block["served"][at])).any():
            link.watch(hang)
        else:
            link.rest()


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
        self, driver: ProcessDriver, leave: Callable[[NDArray[np.int64]], None], repeats: bool
    ) -> None:
        self._driver, self._leave, self._repeats = driver, leave, repeats
        self.unseen, self._unsaid = np.zeros((2, driver.num_envs), np.bool_)
        self.any = False

    def mark(self) -> None:
        """Notes which workers are gone, and with them the episodes of their copies."""
        for link in self._driver.links:
            if not link.lost:
                continue
            link.lost = False
            block, rows = self._driver.block, link.numbers
            self._leave(rows)
            block["told"][rows] = False
            running = ~(block["held"][rows] | block["down"][rows] | self.unseen[rows])
            self._unsaid[rows[running]] = self._driver.begun and not self._repeats
            self.unseen[rows] = self.any = True
            block["down"][rows] = False
            self._driver.singles.lost(rows)

    def shown(self, rows: Any, here: bool = True) -> None:
        """These copies show their state, if their worker is here; no loss is unreported."""
        if self.any:
            self._unsaid[rows] = False
            self.unseen[rows] = not here
            self.any = bool(self.unseen.any())

    def pass_over(self, link: WorkerHandle) -> bool:
        """A step that a worker's copies did not take, if any of them is unseen.

        Returns true if they show their present state.
        """
        if not self.unseen[link.rows].any():
            return False
        rows, here = link.numbers, link.state == UP and link.begun
        if here:  # the others have said nothing at this step
            self._driver.block["told"][rows[~self.unseen[rows]]] = False
        self.say(rows)
        self.shown(rows, here)
        return here

    def say(self, rows: NDArray[np.int64]) -> None:
        """Writes the outcome of a step that copies did not take."""
        block = self._driver.block
        block["valid"][rows] = block["held"][rows]
        block["reward"][rows] = 0.0
        for name in ("terminated", "ended", "kept"):
            block[name][rows] = False
        block["truncated"][rows] = block["lost"][rows] = self._unsaid[rows]

    def silent(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some copies of which no loss is unreported."""
        return rows[~self._unsaid[rows]]

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies."""
        old = self.unseen, self._unsaid
        common = min(num_envs, len(self.unseen))
        self.unseen, self._unsaid = fresh = np.zeros((2, num_envs), np.bool_)
        fresh[0, :common], fresh[1, :common] = old[0][:common], old[1][:common]
        self.any = bool(self.unseen.any())
