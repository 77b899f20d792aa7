"""E copies in W workers as their parent steps them, whoever reads what they write."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.cores import usable_cores
from slipstream.core.errors import ConfigError
from slipstream.core.process import not_started
from slipstream.vector.process.asked import Asked
from slipstream.vector.process.block import Block
from slipstream.vector.process.crowd import Crowd
from slipstream.vector.process.faults import FaultLog, FaultPolicy
from slipstream.vector.process.job import Assignment, packed
from slipstream.vector.process.layout import NOT, STEP, Layout
from slipstream.vector.process.link import UP, Link
from slipstream.vector.process.losses import Losses
from slipstream.vector.process.patience import spin_seconds
from slipstream.vector.process.worker import BEGIN_LOST, STEP_ALL
from slipstream.vector.process.workers import CopyWorkers

Describe = Callable[[int], tuple[int, int, list[Any]]]


class ProcessCopies:
    """Workers over one block: ordered, replaced when they are lost, their rows then marked so.

    Args:
        layout: of the block, with `state_arrays`.
        num_envs: E.
        job: makes a worker's job from (layout, number, workers, ranges, seconds to spin).
        name: of the environment, for messages.
        leave, repeats: see `Losses`.
        describe: a copy's episode, step and last action, for messages.
        workers: W; the machine's cores unless given.
        method: "forkserver", "spawn" or "fork".
        policy: what a fault leads to.
        crowd: where workers come from; processes of its own unless given.
        halves: every worker has copies of the lower half of the rows and of the upper one, which
            are ordered apart.

    Attributes:
        block: arrays that all share; replaced by `resize`.
        begun: copies have been reset.
        losses: copies whose worker was lost.
    """

    def __init__(
        self,
        layout: Layout,
        num_envs: int,
        job: Callable[..., Assignment],
        *,
        name: str,
        leave: Callable[[NDArray[np.int64]], None],
        describe: Describe,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        crowd: Crowd | None = None,
        halves: bool = False,
        repeats: bool = False,
    ) -> None:
        if workers is not None:
            workers = check_count("workers", workers)
        self.num_envs, self.policy = num_envs, policy
        self._job, self._halves = job, halves
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
        self.asked = Asked(self)
        middle = num_envs // 2
        ranges = [_dealt(0, num_envs, w)]
        if halves:
            ranges = [_dealt(0, middle, w), _dealt(middle, num_envs, w)]
        try:
            self.workers = CopyWorkers(
                self.block,
                [list(own) for own in zip(*ranges, strict=True)],
                crowd,
                self._packed,
                describe,
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

    def _packed(self, number: int) -> bytes:
        link = next(link for link in self.links if link.number == number)
        return packed(
            self._job(
                self.block.layout,
                number,
                len(self.links),
                tuple(link.ranges),
                self.spin,
            )
        )

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
            for link in self._begun(fresh):
                self.asked.greet(link)

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

    def check_open(self) -> None:
        """Raises where it was closed."""
        if self.closed:
            raise ConfigError(f"{self.ledger.name} was closed; make it again to step it.")

    def run(self, command: int, links: Sequence[Link]) -> None:
        """Has workers begin selected copies, or replay them: what they did before is over."""
        self.asked.stop()
        selected = self.block["selected"]
        self.losses.shown(selected)
        self.workers.order(command, links)
        self.losses.mark()
        self.losses.shown(selected & self.losses.unseen, here=False)

    def rows_of(self, selected: NDArray[np.bool_]) -> list[Link]:
        """Workers that have any of the selected copies."""
        return [link for link in self.links if selected[link.rows].any()]

    def talk(
        self, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]], spare: bool = False
    ) -> list[Any]:
        """Calls a method of several workers' copies at once; see `CopyWorkers.end_talk`."""
        try:
            return self.workers.talk_each(method, calls, spare)
        finally:
            self.losses.mark()
            self.asked.go_on([link for link, _ in calls])

    def insist(self, method: str, calls: Sequence[tuple[Link, tuple[Any, ...]]]) -> list[Any]:
        """`talk`; whoever is lost over it is asked again once it is back."""
        answers: dict[int, Any] = {}
        while left := [call for call in calls if call[0].number not in answers]:
            self.ready()
            for (link, _), value in zip(left, self.talk(method, left, spare=True), strict=True):
                if link.state == UP:
                    answers[link.number] = value
        return [answers[link.number] for link, _ in calls]

    def begin_step(self, t: int) -> bool:
        """Orders a step of all workers that are there; False where none was there."""
        self.asked.stop()
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
        """Waits for the step; whether it is over."""
        if not self.workers.wait(timeout):
            return False
        self._begun(self._beginning)
        self.workers.finish(self._stepping)
        self.losses.mark()
        self._shown = False
        if self.losses.any:
            for link in self.links:
                self._shown |= self.losses.pass_over(link, link.rows)
        return True

    @property
    def stepped(self) -> bool:
        """Whether any copy was alive at the last step, or is by now."""
        if self._shown:
            return True
        down, held = self.block["down"], self.block["held"]
        faulty = self.ledger.total and np.count_nonzero(down)  # without a fault none is down
        if self._stepping and not faulty and not np.count_nonzero(held):
            return True
        idle = down | held
        return any(not idle[link.rows].all() for link in self._stepping if link.state == UP)

    def resize(
        self, num_envs: int, layout: Layout, fill: Callable[[Block], None] = lambda block: None
    ) -> None:
        """More copies, or fewer: those of the highest rows go; the others' episodes go on.

        Args:
            num_envs: E from now on.
            layout: of the new block.
            fill: told of the new block before the new copies begin.

        Raises:
            ConfigError: halves are stepped apart, or steps are under way.
            ResourceError: the new block does not fit; everything is as it was.
        """
        num_envs = check_count("num_envs", num_envs)
        if self._halves:
            raise ConfigError("Copies whose halves are stepped apart cannot be resized.")
        self.check_open()
        self.asked.stop()
        self.ready()
        old, before = self.block, self.num_envs
        self._crowd.claim(max(0, num_envs - before), self.ledger.name)
        try:
            block = Block(layout)
        except BaseException:
            self._crowd.release(max(0, num_envs - before))
            raise
        self._crowd.release(max(0, before - num_envs))
        common = min(before, num_envs)
        for name, array in block.arrays.items():
            array[:common] = old[name][:common]
        fill(block)
        self.block, self.num_envs = block, num_envs
        self.losses.resize(num_envs)
        self.asked.resize(num_envs)
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
            more = self.workers.add([[part] for part in parts])
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


def _dealt(lo: int, hi: int, workers: int) -> list[tuple[int, int]]:
    """Rows lo..hi-1 in nearly equal parts."""
    edges = np.linspace(lo, hi, workers + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))
