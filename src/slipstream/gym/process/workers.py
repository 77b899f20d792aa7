"""All workers of an environment: started, ordered, waited for, and replaced when they are lost."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

from slipstream.core.errors import KernelError, ResourceError
from slipstream.core.process import AT
from slipstream.gym.process.block import Block
from slipstream.gym.process.crowd import Crowd
from slipstream.gym.process.faults import Fault, FaultLog
from slipstream.gym.process.layout import ANYWHERE, AWAITED, HERE, NOT, REPORTS
from slipstream.gym.process.link import DOWN, STARTING, UP, Link
from slipstream.gym.process.patience import LOOK_MS, Bell, fence, look_ms, spin, spin_seconds
from slipstream.gym.process.worker import TALK

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
