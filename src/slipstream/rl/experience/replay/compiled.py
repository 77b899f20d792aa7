"""The replay's loops, compiled once and cached like the environments' loops."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from slipstream.rl.experience.compiled import Loops, of_bool, of_float32, of_float64, of_int64
from slipstream.rl.experience.replay.gather import Batch, gather, locate
from slipstream.rl.experience.replay.reflection import NOTHING, reflect
from slipstream.rl.experience.replay.ring import Ring, begin, write_choices, write_numbers
from slipstream.rl.experience.replay.sampling import draw, new_priorities
from slipstream.rl.experience.replay.tree import rebuild

# Examples of types, for whoever compiles loops that take them.
RING = Ring(
    rows=of_float32(3),
    mask=of_bool(3),
    head=of_int64(1),
    written=of_int64(1),
    span=of_int64(1),
    held=of_int64(1),
    steps=of_int64(1),
    tree=of_float32(2),
    least=of_float32(2),
    levels=of_int64(1),
    target=of_float64(1),
    peak=of_float64(1),
    width=0,
    copies=1,
    alpha=0.0,
)
BATCH = Batch(
    obs=of_float32(2),
    mask=of_bool(2),
    action=of_float32(2),
    reward=of_float32(1),
    discount=of_float32(1),
    obs_next=of_float32(2),
    mask_next=of_bool(2),
)
KEY = np.uint64(0)


def writing(action: Any, store: Any = ()) -> tuple[Any, ...]:
    """Examples of the arguments of `write`."""
    flags = (of_bool(1), of_bool(1), of_bool(1))
    return (
        *(RING, store, 0, 1, action, of_float32(1), *flags, of_float32(2), of_bool(2)),
        *(of_float32(2), of_int64(1)),
    )


@functools.cache
def loops() -> Loops:
    """Compiled forms of the replay's functions, by their names."""
    return Loops(
        "replay",
        {
            begin: (RING, (), 0, 1, of_float32(2), of_bool(2)),
            write_choices: writing(of_int64(2)),
            write_numbers: writing(of_float32(2)),
            draw: (RING, 0, KEY, 0.0, of_int64(1), of_float32(1)),
            new_priorities: (RING, 0, of_int64(1), of_float32(1)),
            gather: (RING, (), 0, of_int64(1), 1, 1.0, BATCH),
            reflect: (NOTHING, KEY, BATCH),
            locate: (RING, 0, of_int64(1), 1, 1.0, of_int64(2), BATCH),
            rebuild: (of_float32(1), of_float32(1), of_int64(1)),
        },
    )
