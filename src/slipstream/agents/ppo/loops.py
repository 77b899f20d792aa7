"""PPO's loops over rows, compiled once and cached like the environments' loops.

Between matrix products an update does little arithmetic on many small pieces; as array operations
each of them would cost more in dispatch than in work. The loops are plain Python and release the
interpreter lock when compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from slipstream.agents.ppo.member_gradient import (
    Net,
    Rows,
    Space,
    minibatch_gradients,
)
from slipstream.agents.ppo.surrogate import advantage_moments, explained_variances, pack_rows
from slipstream.agents.ppo.tally import Tally, apply_gradients
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
_ROWS = Rows(
    *(of_float32(3), of_float32(3), of_bool(3), of_int64(2), of_float64(3), of_float64(2)),
)
_SPACE = Space(of_float32(2), of_float32(2), of_float32(2), of_float32(1), of_float64(2))

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    apply_gradients: (_WEIGHTS, of_float64(3), 0, _TALLY),
    pack_rows: (
        *(of_float32(2), of_float32(2), of_float32(2), of_float32(2), of_bool(2)),
        *(of_float32(3), of_float32(3)),
    ),
    explained_variances: (of_float32(3), of_float64(1)),
    advantage_moments: (of_float32(3), of_int64(2), 1, True, of_float64(3)),
    minibatch_gradients: (
        *(_NET, _WEIGHTS, _ROWS, 0, 0, 0, 0, True, of_float64(3), _TALLY, _SPACE),
    ),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("ppo", _EXAMPLES)
