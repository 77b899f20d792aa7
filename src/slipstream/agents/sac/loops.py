"""Soft actor-critic's loops over rows, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.agents.sac.act import Explorer, explore_rows
from slipstream.agents.sac.learned import Learned, Learner, Nets, Scale, Settings, Space, Tally
from slipstream.agents.sac.steps import turn_all
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
_LEARNED = Learned(_GROUP, _GROUP, (_GROUP, _GROUP), (_FLAT, _FLAT), _FLAT, (_FLAT, _FLAT))
_NET = Nets(of_int64(2), of_int64(2), True, 1, 8)
_SETTINGS = Settings(
    *(of_float64(1), of_float64(1), of_float64(1), of_float64(1), of_float64(1), of_bool(1)),
    *(of_float64(1), 1),
)
_SCALE = Scale(of_float32(2), of_float32(2), 1.0)
_TALLY = Tally(of_float64(2), of_int64(1))
_SPACE = Space(
    *(1, of_float32(2), of_float32(3), of_float32(1), of_float32(2), of_float32(3), of_float32(2)),
    *(of_float64(3), of_float64(2), of_float64(1), of_float64(2), of_float32(2), of_float32(3)),
    *(of_int64(2), of_float64(2), of_float64(2), of_float64(1)),
)
_SEEDS = np.zeros(1, np.uint64)
LEARNER = Learner(
    *(_NET, _LEARNED, _SETTINGS, _SCALE, _SEEDS, of_float64(2), _TALLY, _SPACE, 1, of_int64(1)),
)
EXPLORER = Explorer(DECIDER, _SEEDS, of_int64(1), 1, 1)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    explore_rows: (
        *(EXPLORER, 0, of_float32(2), of_bool(2)),
        *(of_float32(2), of_float32(1), of_float32(2)),
    ),
    turn_all: (LEARNER,),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names; `off_policy/learning.py` has more."""
    return compile_loops("sac", _EXAMPLES)
