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


class LongestWaiting(CopyScheduler):
    """First come, first served."""

    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        places = sorted(range(len(copies)), key=lambda k: (-waited[k], copies[k]))
        return [copies[k] for k in places]
