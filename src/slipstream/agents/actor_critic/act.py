"""Actions in training, as loops that `loops.py` compiles with an agent's way to explore."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.machine.draws import ACT
from slipstream.nets.modes import Decider

# Bound by the renderer: (by, m, key, uniform, lo, hi, obs, action, log_prob, out) draws actions for
# copies lo..hi-1, all of them member m's and in their order.
#   by: Explorer; key: of the step's noise; uniform: whether they are uniform in [-1, 1];
#   obs: float32 [E, D]; action: float32 [E, K], the policy's own in [-1, 1]; log_prob: float32 [E],
#   of it; out: float32 [E, K], what environments receive. Rows lo..hi-1 are written.
explore: Any = None

_ACT = np.uint64(ACT)


class Explorer(NamedTuple):
    """Who acts for M members.

    Attributes:
        decider: of the actor, and of the environment's bounds.
        seeds: uint64 [M]; steps: int64 [M], environment steps that each member took so far.
        noise: float64 [M], deviation of what is added to a policy's action, where some is.
        warm_up: steps of uniform actions at first; copies: N.
    """

    decider: Decider
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    noise: NDArray[np.float64]
    warm_up: int
    copies: int


def explore_rows(
    by: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Actions of all members' copies, whose steps are counted; t and mask are unused."""
    for m in range(len(by.steps)):
        key = stream(by.seeds[m], _ACT, np.uint64(by.steps[m]))
        uniform, lo = by.steps[m] < by.warm_up, m * by.copies
        explore(by, m, key, uniform, lo, lo + by.copies, obs, action, log_prob, out)
        by.steps[m] += by.copies
