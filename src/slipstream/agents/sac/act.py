"""Actions of one member's copies in training, as loops that `loops.py` compiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.nets.drawing import draw_member_squashed
from slipstream.nets.modes import Decider
from slipstream.vector.draws import ACT

_ACT = np.uint64(ACT)


class Explorer(NamedTuple):
    """Who acts for M members.

    Attributes:
        decider: of the actor, and of the environment's bounds.
        seeds: uint64 [M]; steps: int64 [M], environment steps that each member took so far.
        warm_up: steps of uniform actions at first; copies: N.
    """

    decider: Decider
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    warm_up: int
    copies: int


def explore(
    by: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Draws actions for copies lo..hi-1, all of them member m's and in their order.

    Args:
        by: Explorer; obs: float32 [E, D]; mask: unused.
        action: float32 [E, K], the policy's own in [-1, 1]; log_prob: float32 [E], of it.
        out: float32 [E, K], what environments receive. Rows lo..hi-1 of all three are written.
    """
    key = stream(by.seeds[m], _ACT, np.uint64(by.steps[m]))
    uniform = by.steps[m] < by.warm_up
    draw_member_squashed(by.decider, m, key, 0, lo, hi, obs, uniform, action, log_prob, out)


def explore_rows(
    by: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """`explore` for all members, whose steps are counted; t is unused."""
    for m in range(len(by.steps)):
        explore(by, m, m * by.copies, (m + 1) * by.copies, obs, mask, action, log_prob, out)
        by.steps[m] += by.copies
