"""PPO's loops over rows, compiled once and cached like the environments' loops.

Between matrix products an update does little arithmetic on many small pieces; as array operations
each of them would cost more in dispatch than in work. The loops are plain Python and release the
interpreter lock when compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.agents.ppo.epochs import Epochs, update_members
from slipstream.agents.ppo.member_gradient import Net, Space
from slipstream.agents.ppo.member_rows import Experience, Rows
from slipstream.agents.ppo.tally import Tally
from slipstream.experience.compiled import (
    compile_loops,
    of_bool,
    of_float32,
    of_float64,
    of_int64,
)
from slipstream.nets.adam import TrainState

_WEIGHTS = TrainState(
    *(of_float32(2), of_float32(3), of_float32(2), of_float32(2), of_int64(1), of_bool(1)),
)
_TALLY = Tally(
    *(of_float64(1), of_float64(1), of_float64(1), of_float64(1), of_bool(1), of_float64(2)),
    *(of_int64(1), of_float64(1)),
)
_NET = Net(of_int64(3), True, True, 0, of_int64(1))
_EXPERIENCE = Experience(
    *(of_float32(3), of_float32(2), of_float32(2), 1.0, of_bool(3), of_float32(3), of_float32(2)),
    *(of_float32(2), of_bool(2), of_bool(2), of_bool(2), of_float32(2), of_int64(2)),
    *(of_float32(1), of_float32(1), of_bool(1)),
)
_ROWS = Rows(
    *(of_float32(2), of_float32(2), of_bool(2), of_float32(2), of_float32(1), of_float32(2)),
    *(of_float32(2), of_int64(1), of_float64(1)),
)
_SPACE = Space(of_float32(3), of_float32(3), of_float32(3), of_float32(2), of_float64(3))
_EPOCHS = Epochs(
    net=_NET,
    weights=_WEIGHTS,
    losses=of_float64(2),
    experience=_EXPERIENCE,
    rows=_ROWS,
    keys=np.zeros((1, 1), np.uint64),
    order=of_int64(2),
    moments=of_float64(3),
    normalise=True,
    statistics=of_float64(2),
    tally=_TALLY,
    space=_SPACE,
    gate=of_int64(1),
)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    update_members: (_EPOCHS, False),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("ppo", _EXAMPLES)
