"""The networks' loops over rows, each compiled once and cached like the environments' loops.

They are plain Python and release the interpreter lock when compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.rl.experience.compiled import (
    Loops,
    of_bool,
    of_float32,
    of_int64,
)
from slipstream.rl.nets.drawing import Sampler, draw_boxes, draw_choices, draw_squashed
from slipstream.rl.nets.layers import forward_members
from slipstream.rl.nets.modes import (
    Decider,
    decide_all_choices,
    decide_box,
    decide_boxes,
    decide_choices,
)
from slipstream.rl.nets.sampling import sample_choices, sample_gaussian, scale_rows

DECIDER = Decider(
    *(
        of_float32(2),
        of_int64(2),
        True,
        True,
        of_float32(2),
        of_float32(2),
        of_float32(2),
        of_int64(1),
        of_int64(1),
    ),
    *(of_float32(1), of_float32(1), of_float32(1), of_float32(1), of_float32(2), of_float32(1)),
)
_SAMPLER = Sampler(DECIDER, of_float32(2), np.zeros((1, 1), np.uint64), 1, 0, of_float32(1))
_APART = np.zeros((2, 2, 2), np.float32)[:, :1]  # rows of members that lie apart

# The arguments of every loop, as examples of their types; arrays are C-contiguous, or apart.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    forward_members: (of_float32(2), of_int64(2), True, _APART, of_float32(1), of_float32(3)),
    decide_box: (DECIDER, 0, 0, 0, of_float32(2), of_bool(2), of_float32(2)),
    decide_choices: (DECIDER, 0, 0, 0, of_float32(2), of_bool(2), of_int64(2)),
    decide_boxes: (DECIDER, 1, of_float32(2), of_bool(2), of_float32(2)),
    decide_all_choices: (DECIDER, 1, of_float32(2), of_bool(2), of_int64(2)),
    draw_boxes: (
        *(_SAMPLER, 0, of_float32(2), of_bool(2)),
        *(of_float32(2), of_float32(1), of_float32(2)),
    ),
    draw_squashed: (
        *(_SAMPLER, 0, of_float32(2), of_bool(2)),
        *(of_float32(2), of_float32(1), of_float32(2)),
    ),
    draw_choices: (
        *(_SAMPLER, 0, of_float32(2), of_bool(2)),
        *(of_int64(2), of_float32(1), of_int64(2)),
    ),
    sample_choices: (
        of_float32(3),
        of_float32(2),
        of_bool(2),
        of_int64(1),
        of_int64(2),
        of_float32(1),
    ),
    sample_gaussian: (of_float32(3), of_float32(2), of_float32(2), of_float32(2), of_float32(1)),
    scale_rows: (*(of_float32(n) for n in (3, 2, 2, 2)), 0, of_float32(3)),
}


@functools.cache
def loops() -> Loops:
    """Compiled forms of the functions above, by their names."""
    return Loops("nets", _EXAMPLES)
