"""All workers of an environment: started, ordered, waited for, and replaced when they are lost."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

from slipstream.core.errors import KernelError, ResourceError
from slipstream.vector.process.bell import Bell
from slipstream.vector.process.block import Block
from slipstream.vector.process.faults import Fault, Ledger
from slipstream.vector.process.launcher import Launcher
from slipstream.vector.process.layout import AT, REPORTS
from slipstream.vector.process.link import DOWN, STARTING, UP, Link
from slipstream.vector.process.patience import spin
from slipstream.vector.process.worker import LEAVE, TALK

_LOOK_MS = 50  # longest sleep between two looks at workers that say nothing
_LEAVE_SECONDS = 2.0
_BEFORE_WAITING = 100  # at exit: before multiprocessing waits for children


class Workers:
    """W workers over one block.

    Args:
        block: shared with them.
        ranges: copies (lo, hi) of each.
        method: how they are started.
        pack: makes worker w's job as bytes; its argument says whether it follows a lost one.
        ledger: counts faults.
        spin: seconds of looking before a wait sleeps.
    """

    def __init__(
        self,
        block: Block,
        ranges: Sequence[tuple[int, int]],
        method: str,
        pack: Callable[[int, bool], bytes],
        ledger: Ledger,
        spin: float,
    ) -> None:
        self._block, self._pack, self._ledger, self._spin = block, pack, ledger, spin
        self._launcher = Launcher(method)
        self._done = Bell()
        self._words = block.words()
        self.links = [Link(n, lo, hi, self._words) for n, (lo, hi) in enumerate(ranges)]
        self._poller = select.poll()
        self._poller.register(self._done.fds[0], select.POLLIN)
        self._by_fd: dict[int, Link] = {}
        self._answers: dict[int, Any] = {}
        self._error: Exception | None = None
        # Should `close` never be called: at exit, or when nobody refers to it any more.
        self._end = Finalize(
            self,
            _end,
            (self.links, self._launcher, self._done, self._words),
            exitpriority=_BEFORE_WAITING,
        )

    def start(self) -> None:
        """Starts all workers and waits until their copies are made.

        Raises:
            ConfigError, ResourceError, KernelError: one could not make its copies.
        """
        for link in self.links:
            self._start(link, False)
        waiting = list(self.links)
        while waiting:
            self._sleep(_LOOK_MS)
            for link in waiting:
                link.watch(self._ledger.policy.hang_seconds)
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._ledger.fresh:
                raise KernelError(f"{self._ledger.name}: {self._ledger.fresh[0]}")
            waiting = [link for link in waiting if link.state != UP]

    def _start(self, link: Link, again: bool) -> None:
        others = [
            fd for other in self.links if other.pipe is not None for fd in (other.pipe.fileno(),)
        ]
        job = self._pack(link.number, again)
        link.start(self._launcher, job, self._block.fd, self._done, others)
        assert link.pipe is not None
        self._by_fd[link.pipe.fileno()] = link
        self._poller.register(link.pipe.fileno(), select.POLLIN)

    def revive(self) -> list[Link]:
        """Starts lost workers when it is time; those that have become ready since the last call."""
        now, ready = time.monotonic(), []
        for link in self.links:
            if link.state == DOWN and now >= link.due:
                try:
                    self._start(link, True)
                except ResourceError as error:
                    self._lost(link, str(error))
            elif link.state == STARTING:
                assert link.pipe is not None
                if link.pipe.poll(0):
                    self._hear(link)
                else:
                    link.watch(self._ledger.policy.hang_seconds)
                if link.state == UP:
                    ready.append(link)
        return ready

    def order(self, command: int, links: Sequence[Link]) -> list[Link]:
        """Has workers do something and waits for them; those that were lost over it."""
        for link in links:
            link.order(command)
        pending = list(links)

        def ready() -> bool:
            while pending and pending[-1].done:
                pending.pop()
            return not pending

        if not spin(ready, self._spin):
            hang = self._ledger.policy.hang_seconds
            look = min(_LOOK_MS, max(1, int(hang * 250)))
            while True:
                pending = [link for link in pending if link.state == UP and not link.done]
                if not pending:
                    break
                self._sleep(look)
                for link in pending:
                    if link.state == UP and not link.done:
                        link.watch(hang)
        lost = []
        for link in links:
            while link.state == UP and link.words[REPORTS] != link.heard:
                self._hear(link)
            if link.state == UP:
                self._ledger.worked(link.number)
            else:
                lost.append(link)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return lost

    def talk(self, link: Link, method: str, *arguments: Any) -> Any:
        """Calls a method of a worker's copies: the slow path.

        Raises:
            KernelError: the worker was lost over it; whatever the method raised.
        """
        self._answers.pop(link.number, None)
        link.send((method, arguments))
        lost = self.order(TALK, [link])
        while not lost and link.number not in self._answers and link.state == UP:
            self._hear(link)
        if link.number not in self._answers:
            self._ledger.check()
            raise KernelError(f"{self._ledger.name}: worker {link.number} was lost in `{method}`.")
        worked, value = self._answers.pop(link.number)
        if not worked:
            raise value
        return value

    def _sleep(self, milliseconds: int) -> None:
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
            kind, copy, episode, step, action, text = value
            fault = Fault(kind, copy, link.number, link.pid, episode, step, action, text)
            self._ledger.add(fault)
        elif what == "answer":
            self._answers[link.number] = value
        else:  # an error of all its copies
            link.heard += what == "error"
            self._error = self._error or value

    def _lost(self, link: Link, why: str = "") -> None:
        """Counts the loss of a worker; `revive` starts another one when it is time."""
        said, hung = link.last_words(), link.hung
        at = link.lo + min(int(link.words[AT]), link.hi - link.lo - 1)
        if link.pipe is not None:
            self._poller.unregister(link.pipe.fileno())
            del self._by_fd[link.pipe.fileno()]
            link.drop()
            how = self._launcher.ending(link.pid)
            if hung:
                seconds = self._ledger.policy.hang_seconds
                how = f"hung for more than {seconds:g} s, and did not come back when it was asked"
            why = how
        block = self._block
        fault = Fault(
            "lost",
            at,
            link.number,
            link.pid,
            max(0, int(block["episode"][at]) - 1),
            int(block["length"][at]),
            block["actions"][at].ravel().tolist(),
            f"the process {why}" + (f"\n{said}" if said else ""),
        )
        self._ledger.add(fault)
        link.due = time.monotonic() + self._ledger.delay(link.number)

    def close(self) -> None:
        """Ends all processes."""
        self._end()


def _end(links: list[Link], launcher: Launcher, done: Bell, words: memoryview) -> None:
    """Asks all to leave, waits a little for all together, and leaves none."""
    try:
        for link in links:
            if link.state == UP:
                link.order(LEAVE)
        until = time.monotonic() + _LEAVE_SECONDS
        for link in links:
            if link.state == UP and link.pipe is not None:
                with suppress(EOFError, OSError):
                    while link.pipe.poll(max(0.0, until - time.monotonic())):
                        link.pipe.recv()
    finally:
        for link in links:
            if link.pipe is not None:
                link.kill(signal.SIGKILL)
                launcher.ending(link.pid)
            link.close()
        launcher.close()
        done.close()
        words.release()
