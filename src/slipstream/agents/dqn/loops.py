"""DQN's loops, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.agents.dqn.act import Explorer, explore_rows
from slipstream.experience.compiled import (
    compile_loops,
    of_bool,
    of_float32,
    of_float64,
    of_int64,
)
from slipstream.nets.compiled import DECIDER

_EXPLORER = Explorer(DECIDER, np.zeros(1, np.uint64), of_int64(1), of_float64(2), 0, 1, 0)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    explore_rows: (
        *(_EXPLORER, 0, of_float32(2), of_bool(2)),
        *(of_int64(2), of_float32(1), of_int64(2)),
    ),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("dqn", _EXAMPLES)
