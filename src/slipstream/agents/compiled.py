"""The agents' loops over rows, compiled once and cached like the environments' loops.

Between matrix products an update does little arithmetic on many small pieces; as array operations
each of them would cost more in dispatch than in work. The loops are plain Python and release the
interpreter lock when compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.agents.adam import Tally, Weights, apply_gradients
from slipstream.agents.layers import forward_members
from slipstream.agents.member_gradient import (
    Net,
    Rows,
    Space,
    minibatch_gradients,
    output_gradients,
)
from slipstream.agents.modes import Decider, decide_all_choices, decide_boxes
from slipstream.agents.sampling import sample_choices, sample_gaussian, scale_rows
from slipstream.agents.surrogate import advantage_moments, explained_variances, pack_rows
from slipstream.experience.compiled import compile_loops


def _float32(ndim: int) -> Any:
    return np.zeros((1,) * ndim, np.float32)


def _float64(ndim: int) -> Any:
    return np.zeros((1,) * ndim, np.float64)


def _int64(ndim: int) -> Any:
    return np.zeros((1,) * ndim, np.int64)


def _bool(ndim: int) -> Any:
    return np.zeros((1,) * ndim, np.bool_)


_WEIGHTS = Weights(_float32(2), _float32(3), _float32(2), _float32(2), _int64(1), _bool(1))
_TALLY = Tally(
    *(_float64(1), _float64(1), _float64(1), _float64(1), _bool(1), _float64(2), _int64(1)),
    _float64(1),
)
_NET = Net(_int64(3), True, True, 0, _int64(1))
_ROWS = Rows(_float32(3), _float32(3), _bool(3), _int64(2), _float64(3), _float64(2))
_SPACE = Space(_float32(2), _float32(2), _float32(2), _float32(1), _float64(2))
_DECIDER = Decider(
    *(_float32(2), _int64(2), True, _float32(2), _float32(2), 1.0, _int64(1), _int64(1)),
    *(_float32(1), _float32(1), _float32(1), _float32(1), _float32(2), _float32(1)),
)
_APART = np.zeros((2, 2, 2), np.float32)[:, :1]  # rows of members that lie apart

# The arguments of every loop, as examples of their types; arrays are C-contiguous, or apart.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    apply_gradients: (_WEIGHTS, _float64(3), 0, _TALLY),
    pack_rows: (
        *(_float32(2), _float32(2), _float32(2), _float32(2), _bool(2), _float32(3), _float32(3)),
    ),
    explained_variances: (_float32(3), _float64(1)),
    advantage_moments: (_float32(3), _int64(2), 1, True, _float64(3)),
    minibatch_gradients: (_NET, _WEIGHTS, _ROWS, 0, 0, 0, 0, True, _float64(3), _TALLY, _SPACE),
    output_gradients: (
        *(_NET, _WEIGHTS, _ROWS, 0, 0, 0, _float32(3), _float32(3), _float32(3), _float32(3)),
        *(_float64(3), _float64(2)),
    ),
    forward_members: (_float32(2), _int64(2), True, _APART, _float32(1), _float32(3)),
    decide_boxes: (_DECIDER, 1, _float32(2), _bool(2), _float32(2)),
    decide_all_choices: (_DECIDER, 1, _float32(2), _bool(2), _int64(2)),
    sample_choices: (_float32(3), _float32(2), _bool(2), _int64(1), _int64(2), _float32(1)),
    sample_gaussian: (_float32(3), _float32(2), _float32(2), _float32(2), _float32(1)),
    scale_rows: (_float32(3), _float32(2), _float32(2), 1.0, 0, _float32(3)),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("agents", _EXAMPLES)
