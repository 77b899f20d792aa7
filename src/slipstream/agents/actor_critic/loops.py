"""Loops around the updates of an actor and two critics, compiled once and cached."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np

from slipstream.agents.actor_critic.act import Explorer, explore_rows
from slipstream.agents.actor_critic.learned import Learned, Nets
from slipstream.agents.actor_critic.steps import turn_all
from slipstream.experience.compiled import (
    compile_loops,
    of_bool,
    of_float32,
    of_float64,
    of_int64,
)
from slipstream.nets.adam import TrainState
from slipstream.nets.compiled import DECIDER

_GROUP = TrainState(
    *(of_float32(2), of_float32(3), of_float32(2), of_float32(2), of_int64(1), of_bool(1)),
)
_FLAT = of_float32(2)
_LEARNED = Learned(_GROUP, (_GROUP, _GROUP), (_FLAT, _FLAT), _FLAT, (_FLAT, _FLAT))
_NETS = Nets(of_int64(2), of_int64(2), True, 1, 8)
_EXPLORER = Explorer(DECIDER, np.zeros(1, np.uint64), of_int64(1), of_float64(1), 1, 1)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    explore_rows: (
        *(_EXPLORER, 0, of_float32(2), of_bool(2)),
        *(of_float32(2), of_float32(1), of_float32(2)),
    ),
    turn_all: (_NETS, _LEARNED),
}


@functools.cache
def loops(name: str, explore: Callable[..., None]) -> dict[str, Any]:
    """Compiled forms of the functions above, by their names; `off_policy/learning.py` has more.

    Args:
        name: of the agent; explore: how it acts, see `act.py`.
    """
    return compile_loops(name, _EXAMPLES, {"explore": cast(FunctionType, explore)})
