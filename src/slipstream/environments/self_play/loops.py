"""The loops of self-play, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.environments.self_play.brains import (
    Brains,
    SeatTable,
    act_boxes,
    act_choices,
    random_boxes,
    random_choices,
)
from slipstream.environments.self_play.seating import (
    Draw,
    Seats,
    draw_seats,
    seat_boxes,
    seat_choices,
    show_seat,
)
from slipstream.experience.compiled import (
    compile_loops,
    of_bool,
    of_float32,
    of_float64,
    of_int64,
)
from slipstream.vector.loop import book_dtype

_KEYS = np.zeros(1, np.uint64)
_BRAINS = Brains(
    *(of_float32(2), of_int64(2), True, True, True, 0),
    *(of_float32(2), of_float32(2), 1.0),
    *(of_int64(1), of_int64(1)),
    *(of_float32(1), of_float32(1), of_float32(1), of_float32(1)),
    *(of_float32(2), of_float32(1)),
)
_TABLE = SeatTable(
    *(of_float32(3), of_bool(3), of_int64(1), of_int64(1), _KEYS, of_int64(1)),
    *(of_int64(1), of_int64(1)),
)
_SEATS = Seats(of_int64(1), of_int64(1), of_int64(1), of_int64(1), _KEYS)
_DRAW = Draw(0, of_float64(1), of_float64(2), of_int64(2), 0)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    act_boxes: (_BRAINS, _TABLE, of_float32(3)),
    act_choices: (_BRAINS, _TABLE, of_int64(3)),
    random_boxes: (_BRAINS, _TABLE, of_float32(3)),
    random_choices: (_BRAINS, _TABLE, of_int64(3)),
    draw_seats: (_DRAW, of_int64(1), np.zeros(1, book_dtype(2)), _SEATS),
    show_seat: (
        *(of_int64(1), of_float32(3), of_bool(3), of_float32(2)),
        *(of_float32(2), of_bool(2), of_float32(1)),
    ),
    seat_boxes: (of_int64(1), of_float32(2), of_float32(3)),
    seat_choices: (of_int64(1), of_int64(2), of_int64(3)),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("self_play", _EXAMPLES)
