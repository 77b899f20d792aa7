"""Which of its copies a worker steps next, where they are asked for one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class CopyScheduler(ABC):
    """Decides the order within one worker; every worker has a scheduler of its own.

    It changes when a copy's step is done, never what comes of it.
    """

    @abstractmethod
    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        """The copies in the order in which to step them; asked again whenever more are wanted.

        Args:
            copies: numbers, within the worker, of those that a step is wanted of.
            waited: seconds for which each has been waiting.
            cost: seconds that a step of each took, the newest ones counting most; 0 before the
                first.
        """


class RoundRobin(CopyScheduler):
    """In turn, from the one after that which was first the last time."""

    def __init__(self) -> None:
        self._next = 0

    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        turn = sorted(copies, key=lambda copy: (copy < self._next, copy))
        if turn:
            self._next = turn[0] + 1
        return turn


class LongestWaiting(CopyScheduler):
    """First come, first served."""

    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        places = sorted(range(len(copies)), key=lambda k: (-waited[k], copies[k]))
        return [copies[k] for k in places]


class CheapestFirst(CopyScheduler):
    """By measured cost: who is soon done first, so that `recv` has its copies early.

    Args:
        patience: seconds after which a copy goes before all that have waited less.
    """

    def __init__(self, patience: float = 1.0) -> None:
        self.patience = patience

    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        def key(k: int) -> tuple[float, float, int]:
            late = waited[k] if waited[k] > self.patience else 0.0
            return -late, cost[k], copies[k]

        return [copies[k] for k in sorted(range(len(copies)), key=key)]
