"""Copies whose worker was lost: what is still to be said of them, and until when they are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.vector.process.link import UP, Link

if TYPE_CHECKING:
    from slipstream.vector.process.process_copies import ProcessCopies

Rows = slice | NDArray[np.int64]


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
        self, copies: ProcessCopies, leave: Callable[[NDArray[np.int64]], None], repeats: bool
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
        block, rows = self._copies.block, self._numbers(link.rows)
        self._leave(rows)
        block["told"][rows] = False
        running = ~(block["held"][rows] | block["down"][rows] | self.unseen[rows])
        self._unsaid[rows[running]] = self._copies.begun and not self._repeats
        self.unseen[rows] = self.any = True
        block["down"][rows] = False
        self._copies.asked.lost(rows)

    def shown(self, rows: Any, here: bool = True) -> None:
        """These copies are shown where they stand, if their worker is here; no loss is unsaid."""
        if self.any:
            self._unsaid[rows] = False
            self.unseen[rows] = not here
            self.any = bool(self.unseen.any())

    def pass_over(self, link: Link, at: Rows) -> bool:
        """A step that copies of one worker did not take, if any of them is unseen.

        Whether they are shown where they stand.
        """
        if not self.unseen[at].any():
            return False
        rows, here = self._numbers(at), link.state == UP and link.begun
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

    def _numbers(self, at: Rows) -> NDArray[np.int64]:
        return np.arange(len(self.unseen))[at]
