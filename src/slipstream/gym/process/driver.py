"""E copies in W workers: ordered and asked for by their parent, replaced when they are lost.

`ProcessDriver` steps all copies at once. `SingleSteps` keeps which copies were sent an action of
their own, `Losses` which copies' worker was lost, and what is still to be said of them.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.capacity import usable_cores
from slipstream.core.errors import KernelError, ResourceError
from slipstream.core.process import AT, FaultPolicy, not_started
from slipstream.gym.copies import FRESH
from slipstream.gym.driver import (
    Arguments,
    Arrays,
    CopyDriver,
    check_asked,
    closed,
    idle_rows,
    not_received,
)
from slipstream.gym.job import Assignment, packed
from slipstream.gym.process.faults import Fault, FaultLog
from slipstream.gym.process.pool import Crowd
from slipstream.gym.process.shared_memory import (
    ANYWHERE,
    ASKED,
    AWAITED,
    HERE,
    LOOK_MS,
    NOT,
    REPORTS,
    STEP,
    Bell,
    Block,
    Layout,
    fence,
    look_ms,
    spin,
    spin_seconds,
)
from slipstream.gym.process.worker import (
    BEGIN,
    BEGIN_LOST,
    DOWN,
    REPLAY,
    SERVE,
    STARTING,
    STEP_ALL,
    TALK,
    UP,
    Link,
)

_RUNS = {"begin": BEGIN, "replay": REPLAY}
_PAUSE_MS = 5  # between two tries to replace lost workers


class ProcessDriver(CopyDriver):
    """Workers over one block: ordered, replaced when they are lost, their rows then marked so.

    Args:
        layout: of the block, with `state_arrays`.
        num_envs: E.
        job: makes an `Assignment` of `layout`, `ranges` and `spin`.
        name: of the environment, for messages.
        leave, repeats: see `Losses`.
        workers: W; the machine's cores unless given.
        method: "forkserver", "spawn" or "fork".
        policy: what a fault leads to.
        crowd: where workers come from; processes of its own unless given.

    Attributes:
        block: arrays that all share; replaced by `resize`.
        singles: steps of single copies.
        losses: copies whose worker was lost.
    """

    backend = "process"

    def __init__(
        self,
        layout: Layout,
        num_envs: int,
        job: Callable[..., Assignment],
        *,
        name: str,
        leave: Callable[[NDArray[np.int64]], None] = lambda rows: None,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        crowd: Crowd | None = None,
        repeats: bool = False,
    ) -> None:
        if workers is not None:
            workers = check_count("workers", workers)
        self.num_envs, self.policy = num_envs, policy
        self._job = job
        self.losses = Losses(self, leave, repeats)
        self._beginning: list[Link] = []
        self._most = workers or usable_cores()
        w = max(1, min(self._most, num_envs))
        self.spin = spin_seconds(w - 1, usable_cores())
        self.begun = self.closed = False
        self.ledger = FaultLog(policy, num_envs, name)
        self._own = Crowd(method) if crowd is None else None
        crowd = crowd or self._own
        assert crowd is not None
        crowd.claim(num_envs, name)
        self._crowd = crowd
        try:
            self.block = Block(layout)
        except BaseException as error:
            crowd.release(num_envs)
            if isinstance(error, OSError):
                raise not_started(error, "give fewer workers") from error
            raise
        self.singles = SingleSteps(self)
        try:
            self.workers = CopyWorkers(
                self.block,
                _dealt(0, num_envs, w),
                crowd,
                self._packed,
                self._describe,
                self.ledger,
                usable_cores(),
            )
        except BaseException as error:
            self.block.close()
            crowd.release(num_envs)
            if isinstance(error, OSError):
                raise not_started(error, "give fewer workers") from error
            raise

    def start(self) -> None:
        """Starts the workers and waits until the copies are made.

        Raises:
            ConfigError, ResourceError, KernelError: one could not be made; nothing is left.
        """
        try:
            self.workers.start()
        except BaseException:
            self.close()
            raise
        pids = [link.pid for link in self.links]
        self._crowd.started(self.num_envs, self.ledger.name, pids)

    @property
    def links(self) -> list[Link]:
        """The workers."""
        return self.workers.links

    def _describe(self, copy: int) -> tuple[int, int, list[Any]]:
        """A copy's episode, step and last action, as far as the arrays tell them."""
        arrays = self.block.arrays
        acted = np.ravel(arrays["actions"][copy]).tolist() if "actions" in arrays else []
        if "episode" not in arrays:
            return 0, 0, acted
        return max(0, int(arrays["episode"][copy]) - 1), int(arrays["length"][copy]), acted

    def _packed(self, number: int) -> bytes:
        link = next(link for link in self.links if link.number == number)
        ranges = tuple(link.ranges)
        return packed(self._job(layout=self.block.layout, ranges=ranges, spin=self.spin))

    def ready(self) -> None:
        """Waits until every worker is there, and its copies have begun."""
        self.check_open()
        while not self.workers.complete:
            self.mend()
            self.ledger.check()
            time.sleep(0.002)

    def mend(self) -> None:
        """Replaces workers when it is time, and has new ones begin their copies."""
        fresh = self._revived()
        if fresh:
            if self.begun:
                self.workers.begin(BEGIN_LOST, fresh)
                self.workers.wait()
            self.singles.serve(self._begun(fresh))

    def _revived(self) -> list[Link]:
        """Marks what was lost, starts who shall follow; those that are ready to begin."""
        self.losses.mark()  # before another one writes there
        self.workers.revive()
        return [link for link in self.links if link.state == UP and not link.begun]

    def _begun(self, fresh: Sequence[Link]) -> list[Link]:
        """Those that have begun, after they were ordered to."""
        for link in fresh:
            self.workers.hear_reports(link)
            link.begun = link.state == UP
        return [link for link in fresh if link.begun]

    @property
    def arrays(self) -> Arrays:
        arrays = self.block.arrays
        if not arrays:
            self.check_open()
        return arrays

    def check_open(self) -> None:
        if self.closed:
            raise closed(self.ledger.name)

    def settle(self) -> None:
        self.check_open()
        self.singles.stop()

    def run(self, what: str) -> None:
        self.singles.stop()
        selected = self.block["selected"]
        self.losses.shown(selected)
        self.workers.order(_RUNS[what], self.rows_of(selected))
        self.losses.mark()
        self.losses.shown(selected & self.losses.unseen, here=False)

    def rows_of(self, selected: NDArray[np.bool_]) -> list[Link]:
        """Workers that have any of the selected copies."""
        return [link for link in self.links if selected[link.rows].any()]

    def begin_reset(self, arguments: Arguments) -> None:
        self.singles.stop()
        self.ready()
        arrays = self.block.arrays
        arrays["valid"][:], arrays["reward"][:] = True, 0.0
        for name in FRESH:  # here: workers without a selected copy are not called
            arrays[name][:] = False
        self.losses.shown(arrays["selected"])
        self._resetting = self._calls(arguments, arrays["selected"])
        self.workers.begin_talk("begin", self._resetting)

    def end_reset(self, timeout: float | None = None) -> bool:
        """Workers in the place of those that were lost are asked again."""
        workers, calls = self.workers, self._resetting
        if not workers.wait(timeout):
            return False
        while True:
            workers.end_talk("begin", [link for link, _ in calls], spare=True)
            calls = [call for call in calls if call[0].state != UP]
            if not calls:
                self.begun = True
                return True
            self.ready()
            self.losses.shown(self.block["selected"])
            workers.begin_talk("begin", calls)
            workers.wait()

    def _calls(
        self, arguments: Arguments, selected: NDArray[np.bool_] | None = None
    ) -> list[tuple[Link, tuple[Any, ...]]]:
        links = self.links if selected is None else self.rows_of(selected)
        return [(link, arguments(link.numbers.tolist())) for link in links]

    def ask(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        spare: bool = False,
    ) -> list[tuple[NDArray[np.int64], Any]]:
        return self._talk(method, self._calls(arguments, selected), spare)

    def _talk(
        self, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]], spare: bool
    ) -> list[tuple[NDArray[np.int64], Any]]:
        links = [link for link, _ in calls]
        try:
            values = self.workers.talk_each(method, calls, spare)
        finally:
            self.losses.mark()
            self.singles.serve(links)
        return [(link.numbers, value) for link, value in zip(links, values, strict=True)]

    def insist(self, method: str, arguments: Arguments) -> list[tuple[NDArray[np.int64], Any]]:
        answers: dict[int, tuple[NDArray[np.int64], Any]] = {}
        calls = self._calls(arguments)
        while left := [call for call in calls if call[0].number not in answers]:
            self.ready()
            for (link, _), answer in zip(left, self._talk(method, left, True), strict=True):
                if link.state == UP:
                    answers[link.number] = answer
        return [answers[link.number] for link, _ in calls]

    def idle_rows(self, copies: Any) -> NDArray[np.int64]:
        return idle_rows(copies, self.singles.out)

    def send(self, rows: NDArray[np.int64]) -> None:
        self.singles.send(rows)

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        return self.singles.receive(count, timeout)

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return self.singles.out

    @property
    def unseen(self) -> NDArray[np.bool_]:
        return self.losses.unseen

    def begin_step(self, t: int) -> bool:
        self.singles.stop()
        links, workers = self.links, self.workers
        self._beginning = []
        if self.losses.any or not workers.complete:
            self._beginning = self._revived()
            for link in self._beginning:
                link.order(BEGIN_LOST, NOT)
            links = [link for link in links if not self.losses.unseen[link.rows].any()]
        for link in links:
            link.words[STEP] = t
        self._stepping = links
        workers.begin(STEP_ALL, links, self._beginning)
        return bool(links)

    def end_step(self, timeout: float | None = None) -> bool:
        if not self.workers.wait(timeout):
            return False
        self._begun(self._beginning)
        self.workers.finish(self._stepping)
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

    def resize(
        self,
        num_envs: int,
        layout: Callable[[int], Layout],
        fill: Callable[[Arrays], None] = lambda arrays: None,
    ) -> None:
        num_envs = check_count("num_envs", num_envs)
        self.check_open()
        self.singles.stop()
        self.ready()
        old, before = self.block, self.num_envs
        self._crowd.claim(max(0, num_envs - before), self.ledger.name)
        try:
            block = Block(layout(num_envs))
        except BaseException:
            self._crowd.release(max(0, num_envs - before))
            raise
        self._crowd.release(max(0, before - num_envs))
        common = min(before, num_envs)
        for name, array in block.arrays.items():
            array[:common] = old[name][:common]
        fill(block.arrays)
        self.block, self.num_envs = block, num_envs
        self.losses.resize(num_envs)
        self.singles.resize(num_envs)
        self.ledger.resize(num_envs)
        try:
            self._move(block, before)
        except BaseException:  # some have moved, others have not
            self.close()
            raise
        finally:
            old.close()
        self.ledger.check()

    def _move(self, block: Block, before: int) -> None:
        """Has workers move to another block, and gives up copies or takes on more."""
        num_envs = self.num_envs
        if num_envs < before:
            for link in self.links:
                link.ranges = [(lo, min(hi, num_envs)) for lo, hi in link.ranges if lo < num_envs]
            calls = [(link, (num_envs,)) for link in self.links if link.load]
            self.workers.move(block, "shrink", calls)
            self.workers.drop([link for link in self.links if not link.load])
        else:
            self._grow(block, before)

    def _grow(self, block: Block, before: int) -> None:
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
        self.workers.move(block, "grow", calls)
        if lo < self.num_envs:
            parts = _dealt(lo, self.num_envs, -(-(self.num_envs - lo) // share))
            self.spin = spin_seconds(len(self.links) + len(parts) - 1, usable_cores())
            more = self.workers.add(parts)
            if self.begun:
                self.workers.talk_each("begin_all", [(link, ()) for link in more], spare=True)

    def close(self) -> None:
        """Ends the workers or gives them back; may be called again."""
        if self.closed:
            return
        self.closed = True
        self.workers.close()
        self.block.close()
        self._crowd.release(self.num_envs)
        if self._own is not None:
            self._own.close()


class SingleSteps:
    """Steps of single copies: sent, taken by workers as they come to it, received.

    Attributes:
        out: bool [E], copies that were sent an action and not received since.
    """

    def __init__(self, copies: ProcessDriver) -> None:
        self._copies = copies
        self.out = np.zeros(copies.num_envs, np.bool_)
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
            raise not_received(self._copies.ledger.name)
        self._serving = False

    def serve(self, links: Sequence[Link]) -> None:
        """Has workers step what is wanted: new ones, and those that did something else."""
        if self._serving:
            for link in links:
                if link.state == UP and link.begun:
                    link.order(SERVE)

    def send(self, copies: NDArray[np.int64]) -> None:
        """A step of these copies, which are idle, is wanted; their actions are in the block."""
        if not self._serving:
            self._copies.ready()
            self._serving = True
            self.serve(self._copies.links)
        self.out[copies] = True
        chosen = np.zeros(len(self.out), np.bool_)
        chosen[copies] = True
        chosen &= ~self._copies.losses.unseen  # no action is theirs: see `_answer`
        self._copies.block["wanted"][chosen] += np.uint64(1)
        for link in self._copies.rows_of(chosen):
            link.rest()
            link.words[ASKED] += 1
            link.wake()

    def receive(self, count: int | None, timeout: float | None) -> NDArray[np.int64]:
        """See `CopyDriver.receive`."""
        count = check_asked(count, int(self.out.sum()))
        copies = self._copies
        hang = copies.policy.hang_seconds
        until = None if timeout is None else time.monotonic() + timeout
        needed = 0
        while True:
            complete = copies.workers.complete
            if not complete:
                copies.mend()
                copies.ledger.check()
            self._note()
            self._answer(needed)
            if len(self._arrived) >= count:
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"`recv`: {len(self._arrived)} of {count} copies are ready.")
            copies.workers.sleep(look_ms(hang) if complete else _PAUSE_MS)
            needed = count
            for link in copies.links:
                if link.state == UP:
                    self._watch(link, hang)
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        self.out[ready] = False
        for link in copies.links:
            copies.workers.hear_reports(link)
        copies.workers.raise_error()
        return ready

    def _note(self) -> None:
        block = self._copies.block
        fresh = self.out & (block["wanted"] == block["served"]) & ~self._copies.losses.unseen
        fresh[self._arrived] = False
        self._arrived += np.flatnonzero(fresh).tolist()

    def _answer(self, needed: int) -> None:
        """Steps that nobody takes, for their worker was lost after the copies were last shown.

        That an episode is lost is said at once; what comes after it, once the worker is back, or
        where without it there would not be as many copies as are needed.
        """
        copies, losses = self._copies, self._copies.losses
        if not losses.any:
            return
        waiting = self.out & losses.unseen
        waiting[self._arrived] = False
        for link in copies.rows_of(waiting):
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
        block, gone = self._copies.block, set(rows.tolist())
        block["served"][rows] = block["wanted"][rows]
        self._arrived = [row for row in self._arrived if row not in gone]

    def _watch(self, link: Link, hang: float) -> None:
        block, at = self._copies.block, link.rows
        if (self.out[at] & (block["wanted"][at] != block["served"][at])).any():
            link.watch(hang)
        else:
            link.rest()


class Losses:
    """Keeps apart what copies showed before a loss and what they do after it.

    An action that was chosen before belongs to no copy of the new worker: a step passes such a
    copy over, says of the first one that its episode was lost, and shows where it stands now.

    Args:
        copies: whose.
        leave: called with the rows of a worker that is gone, before another one has them.
        repeats: an episode that is lost is begun again; else it ends, truncated and marked.

    Attributes:
        unseen: bool [E], copies that stand elsewhere than where they were last shown.
        any: there are such copies.
    """

    def __init__(
        self, copies: ProcessDriver, leave: Callable[[NDArray[np.int64]], None], repeats: bool
    ) -> None:
        self._copies, self._leave, self._repeats = copies, leave, repeats
        self.unseen = np.zeros(copies.num_envs, np.bool_)
        self._unsaid = np.zeros(copies.num_envs, np.bool_)  # of whose loss no step has told yet
        self.any = False

    def mark(self) -> None:
        """Notes which workers are gone, and with them the episodes of their copies."""
        for link in self._copies.links:
            if link.lost:
                self._mark(link)

    def _mark(self, link: Link) -> None:
        link.lost = False
        block, rows = self._copies.block, link.numbers
        self._leave(rows)
        block["told"][rows] = False
        running = ~(block["held"][rows] | block["down"][rows] | self.unseen[rows])
        self._unsaid[rows[running]] = self._copies.begun and not self._repeats
        self.unseen[rows] = self.any = True
        block["down"][rows] = False
        self._copies.singles.lost(rows)

    def shown(self, rows: Any, here: bool = True) -> None:
        """These copies are shown where they stand, if their worker is here; no loss is unsaid."""
        if self.any:
            self._unsaid[rows] = False
            self.unseen[rows] = not here
            self.any = bool(self.unseen.any())

    def pass_over(self, link: Link) -> bool:
        """A step that a worker's copies did not take, if any of them is unseen.

        Whether they are shown where they stand.
        """
        if not self.unseen[link.rows].any():
            return False
        rows, here = link.numbers, link.state == UP and link.begun
        if here:  # the others have said nothing at this step
            self._copies.block["told"][rows[~self.unseen[rows]]] = False
        self.say(rows)
        self.shown(rows, here)
        return here

    def say(self, rows: NDArray[np.int64]) -> None:
        """What a step says of copies that did not take it."""
        block = self._copies.block
        block["valid"][rows] = block["held"][rows]
        block["reward"][rows] = 0.0
        for name in ("terminated", "ended", "kept"):
            block[name][rows] = False
        block["truncated"][rows] = block["lost"][rows] = self._unsaid[rows]

    def silent(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some copies of which nothing is unsaid."""
        return rows[~self._unsaid[rows]]

    def resize(self, num_envs: int) -> None:
        """From now on there are so many copies."""
        common = min(num_envs, len(self.unseen))
        old, self.unseen = self.unseen, np.zeros(num_envs, np.bool_)
        self.unseen[:common] = old[:common]
        old, self._unsaid = self._unsaid, np.zeros(num_envs, np.bool_)
        self._unsaid[:common] = old[:common]
        self.any = bool(self.unseen.any())


def _dealt(lo: int, hi: int, workers: int) -> list[tuple[int, int]]:
    """Rows lo..hi-1 in nearly equal parts."""
    edges = np.linspace(lo, hi, workers + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for children


class CopyWorkers:
    """W workers over one block.

    Args:
        block: shared with them.
        ranges: copies of each, (lo, hi).
        crowd: where they come from and go to.
        pack: makes worker w's job as bytes.
        describe: a lost copy's episode, step and last action, for messages.
        ledger: counts faults.
        cores: that the workers and this process share.

    Attributes:
        block: may be replaced by a larger one, see `move`.
    """

    def __init__(
        self,
        block: Block,
        ranges: Sequence[tuple[int, int]],
        crowd: Crowd,
        pack: Callable[[int], bytes],
        describe: Callable[[int], tuple[int, int, list[Any]]],
        ledger: FaultLog,
        cores: int,
    ) -> None:
        self.block, self._pack, self._ledger, self._cores = block, pack, ledger, cores
        self._describe, self._crowd = describe, crowd
        self._done = Bell()
        self.links: list[Link] = []
        self._poller = select.poll()
        self._poller.register(self._done.fds[0], select.POLLIN)
        self._by_fd: dict[int, Link] = {}
        self._answers: dict[int, Any] = {}
        self._error: Exception | None = None
        self._pending: list[Link] = []
        self._asked: list[Link] = []  # in the newest talk
        # Should `close` never be called: at exit, or when nobody refers to it any more.
        self._end = Finalize(
            self, _end, (self.links, crowd, self._done), exitpriority=_BEFORE_WAITING
        )
        try:
            self._take(ranges)
        except BaseException:
            self._end()
            raise

    def start(self) -> None:
        """Starts all workers and waits until their copies are made.

        Raises:
            ConfigError, ResourceError, KernelError: one could not make its copies.
        """
        self._await_start(self.links)

    def _await_start(self, links: Sequence[Link]) -> None:
        for link in links:
            self._start(link)
        waiting = list(links)
        while waiting:
            self.sleep(LOOK_MS)
            for link in waiting:
                if link.state != DOWN:
                    link.watch(self._ledger.policy.hang_seconds)
                elif time.monotonic() >= link.due:
                    self._start(link)
            self.raise_error()
            self._ledger.check_any()
            waiting = [link for link in waiting if link.state != UP]
        for link in links:
            link.lost, link.begun = False, True  # nobody has begun

    def move(
        self, block: Block, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]]
    ) -> None:
        """From now on everything lies in another block; calls a method that attaches it."""
        self.block = block
        links = [link for link, _ in calls]
        self.begin_talk(method, [(link, (block.layout, *rest)) for link, rest in calls])
        for link in self._asked:
            with suppress(OSError):
                link.hand([block.fd])
        self.wait()
        self.end_talk(method, links, spare=True)

    def add(self, ranges: Sequence[tuple[int, int]]) -> list[Link]:
        """More workers, which make their copies; waits for them."""
        more = self._take(ranges)
        self._await_start(more)
        return more

    def _take(self, ranges: Sequence[tuple[int, int]]) -> list[Link]:
        first, before = 1 + max((link.number for link in self.links), default=-1), len(self.links)
        for number, own in enumerate(ranges, first):
            link = self._crowd.take()
            link.number, link.ranges = number, [own]
            self.links.append(link)
        return self.links[before:]

    def drop(self, links: Sequence[Link]) -> None:
        """Gives workers back that have no copies left."""
        for link in links:
            self.links.remove(link)
            if link.pipe is not None:
                self._poller.unregister(link.pipe.fileno())
                del self._by_fd[link.pipe.fileno()]
        self._crowd.give_back(list(links))

    def _start(self, link: Link) -> None:
        if link.state == DOWN:
            self._crowd.start(link)
        assert link.pipe is not None
        self._by_fd[link.pipe.fileno()] = link
        self._poller.register(link.pipe.fileno(), select.POLLIN)
        link.assign(self._pack(link.number), [self.block.fd, *self._done.fds])

    def revive(self) -> None:
        """Starts lost workers when it is time, and hears those that are being started.

        Their copies are made; who orders `BEGIN_LOST` has them begin.
        """
        now = time.monotonic()
        for link in self.links:
            if link.state == DOWN and now >= link.due:
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
                    link.watch(self._ledger.policy.hang_seconds)

    @property
    def complete(self) -> bool:
        """Whether all are there, and their copies have begun."""
        for link in self.links:  # noqa: SIM110  (a generator takes a microsecond)
            if link.state != UP or not link.begun:
                return False
        return True

    def order(self, command: int, links: Sequence[Link]) -> list[Link]:
        """Has workers do something and waits for them; those that were lost over it."""
        self.begin(command, links)
        self.wait()
        return self.finish(links)

    def begin(self, command: int, links: Sequence[Link], beside: Sequence[Link] = ()) -> None:
        """Has workers do something; `wait` waits for those, too, that were `beside` ordered."""
        for link in links:
            link.order(command, NOT)
        self._pending = [*beside, *links]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until what was begun is done, or for so many seconds; whether it is done."""
        pending = self._pending

        def ready() -> bool:
            while pending and pending[-1].done:
                pending.pop()
            return not pending

        hang = self._ledger.policy.hang_seconds
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
            look = look_ms(hang)
            if until is not None:
                look = min(look, max(0, int(1000 * (until - time.monotonic()) + 1)))
            self.sleep(look)
            for link in pending:
                if link.state == UP and not link.done:
                    link.watch(hang)
            if until is not None and time.monotonic() >= until:
                return not any(link.state == UP and not link.done for link in pending)

    def finish(self, links: Sequence[Link]) -> list[Link]:
        """After `wait`: hears what workers have to report; those that were lost."""
        lost = []
        for link in links:
            if link.words[REPORTS] != link.heard:
                self.hear_reports(link)
            if link.state == UP:
                self._ledger.worked(link.number)
            else:
                lost.append(link)
        self.raise_error()
        return lost

    def hear_reports(self, link: Link) -> None:
        """Takes the faults that a worker has reported."""
        while link.state == UP and link.words[REPORTS] != link.heard:
            self._hear(link)

    def raise_error(self) -> None:
        """What went wrong in all copies of a worker at once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def talk_each(
        self, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]], spare: bool = False
    ) -> list[Any]:
        """Calls a method of several workers' copies at once, each with its own arguments: slow.

        Raises:
            KernelError: a worker was lost over it; whatever the method raised.
        """
        self.begin_talk(method, calls)
        self.wait()
        return self.end_talk(method, [link for link, _ in calls], spare)

    def begin_talk(self, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]]) -> None:
        """Asks those that are there; `wait` and `end_talk` bring the answers.

        Nobody is asked where something cannot be pickled.
        """
        here = [(link, arguments) for link, arguments in calls if link.state == UP]
        messages = [ForkingPickler.dumps((method, arguments)) for _, arguments in here]
        self._asked = [link for link, _ in here]
        for link, _ in calls:
            self._answers.pop(link.number, None)
        self.begin(TALK, self._asked)
        # They listen by now: where nobody reads, a pipe has room for some 200 KB.
        for link, message in zip(self._asked, messages, strict=True):
            link.send(message)

    def end_talk(self, method: str, links: Sequence[Link], spare: bool = False) -> list[Any]:
        """The answers, in the order of the workers.

        `spare`: that of a worker which was lost is None, where the policy is to go on.
        """
        for link in self._asked:  # all, or what one said would pass for its next answer
            while link.number not in self._answers and link.state == UP:
                self._hear(link)
        self.finish(links)
        values, failed = list[Any](), list[BaseException]()
        for link in links:
            if link.number not in self._answers:
                self._ledger.check()
                if not spare:
                    name = self._ledger.name
                    raise KernelError(f"{name}: worker {link.number} was lost in `{method}`.")
            worked, value = self._answers.pop(link.number, (True, None))
            (values if worked else failed).append(value)
        if failed:
            raise failed[0]
        return values

    def sleep(self, milliseconds: int) -> None:
        """Until a worker is done, says something or is gone, or the time is over."""
        for fd, _ in self._poller.poll(milliseconds):
            if fd == self._done.fds[0]:
                self._done.hush()
            elif fd in self._by_fd:
                self._hear(self._by_fd[fd])

    def _hear(self, link: Link) -> None:
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
            kind, copy, *more = value
            self._ledger.add(Fault(kind, copy, link.number, link.pid, *more))
        elif what == "answer":
            self._answers[link.number] = value
        else:  # an error of all its copies
            link.heard += what == "error"
            self._error = self._error or value

    def _lost(self, link: Link, why: str = "") -> None:
        """Counts the loss of a worker; `revive` starts another one when it is time."""
        said, hung, at = link.last_words(), link.hung, int(link.words[AT])
        if not any(lo <= at < hi for lo, hi in link.ranges):
            at = link.ranges[0][0]
        if link.pipe is not None:
            self._poller.unregister(link.pipe.fileno())
            del self._by_fd[link.pipe.fileno()]
            link.drop()
            why = self._crowd.ending(link)
            if hung:
                seconds = self._ledger.policy.hang_seconds
                why = f"hung for more than {seconds:g} s, and did not come back when it was asked"
        self.block["tries"][at] += 1
        episode, step, action = self._describe(at)
        text = f"the process {why}" + (f"\n{said}" if said else "")
        self._ledger.add(Fault("lost", at, link.number, link.pid, episode, step, action, text))
        link.due, link.lost = time.monotonic() + self._ledger.delay(link.number), True

    def close(self) -> None:
        """Gives the workers back."""
        self._end()


def _end(links: list[Link], crowd: Crowd, done: Bell) -> None:
    try:
        crowd.give_back(links)
    finally:
        done.close()
