"""What soft actor-critic has besides an actor and two critics, as compiled loops take it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.actor_critic.learned import STATISTICS as _OF_ALL
from slipstream.nets.adam import TrainState

STATISTICS = (*_OF_ALL, "entropy")
ENTROPY = len(_OF_ALL)


class Entropy(NamedTuple):
    """Of each member: target float64 [M]; automatic: bool [M], is alpha learned? Or as tensors."""

    target: Any
    automatic: Any


class SACOwn(NamedTuple):
    """The temperature, and memory of one member's update.

    Attributes:
        temperature: a group of which only the first number, log alpha, counts.
        entropy: what is wanted of it.
        drawn: float64 [2, B, K], noise and u of the policy's own actions tanh(u).
        log_prob: float64 [B], of them.
        value: float64 [2, B], both critics' values of them.
        d_action: float32 [B, K], the smaller one's derivatives with respect to them.
        kept: int64 [parts, b], rows of a block that one of the critics judges.
    """

    temperature: TrainState
    entropy: Entropy
    drawn: NDArray[np.float64]
    log_prob: NDArray[np.float64]
    value: NDArray[np.float64]
    d_action: NDArray[np.float32]
    kept: NDArray[np.int64]
