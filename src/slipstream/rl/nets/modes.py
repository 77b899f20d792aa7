"""Most likely actions straight from observations, as loops over rows; `compiled.py` compiles them.

A row's bits depend neither on the rows beside it nor on how many there are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from slipstream.jit.memory import matrix
from slipstream.rl.nets.layers import BLOCK, OUTPUTS, PLACE, forward
from slipstream.rl.nets.sampling import scale_row


class Decider(NamedTuple):
    """What decides for all members.

    Attributes:
        weights: float32 [M, P]; table: int64 [L, 7], the actor's; relu: else tanh.
        squashed: of a box, the tanh of the network's output counts.
        mean, inverse_std, limit: of observations, float32 [M, D]; see `scale_row`.
        sizes, start: int64 [K], of choices: how many there are, and the first one's number.
        half, middle, low, high: float32 [K], of a box: half of its extent, its centre, its bounds.
        x: float32 [BLOCK, inputs], the column of ones in place; space: of `forward`. Overwritten.
    """

    weights: Any
    table: Any
    relu: bool
    squashed: bool
    mean: Any
    inverse_std: Any
    limit: Any
    sizes: Any
    start: Any
    half: Any
    middle: Any
    low: Any
    high: Any
    x: Any
    space: Any


def decide_box(by: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """What environments lo..hi-1, all of them member m's, receive in a box.

    Args:
        by: the Decider; obs: float32 [E, D]; mask: unused.
        out: float32 [E, K], rows lo..hi-1 are written.
    """
    width = by.table[len(by.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = outputs_of(by, m, first, last, obs)
        head = matrix(by.space, at, last - first, width)
        for r in range(last - first):
            for j in range(len(by.half)):
                mean = head[r, j]
                if by.squashed:
                    mean = np.float32(math.tanh(mean))
                value = mean * by.half[j] + by.middle[j]
                value = by.low[j] if value < by.low[j] else value  # NaN stays NaN
                out[first + r, j] = by.high[j] if value > by.high[j] else value


def decide_choices(by: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """What environments lo..hi-1 receive as choices: each component's first greatest logit.

    Args:
        by: the Decider; obs: float32 [E, D].
        mask: bool [E, choices] of allowed choices, or [0, 0] for none.
        out: int64 [E, K], rows lo..hi-1 are written.
    """
    masked = mask.shape[0] > 0
    width = by.table[len(by.table) - 1, OUTPUTS]
    for begin in range(lo, hi, BLOCK):
        end = min(begin + BLOCK, hi)
        at = outputs_of(by, m, begin, end, obs)
        head = matrix(by.space, at, end - begin, width)
        for e in range(begin, end):
            first = 0
            for c in range(len(by.sizes)):
                last = first + by.sizes[c]
                best, top = first, -math.inf
                for j in range(first, last):
                    if (not masked or mask[e, j]) and head[e - begin, j] > top:
                        best, top = j, float(head[e - begin, j])
                out[e, c] = best - first + by.start[c]
                first = last


def outputs_of(by: Any, m: int, first: int, last: int, obs: Any) -> int:
    """Leaves the actor's outputs [last - first, padded] in `by.space`; where they begin."""
    rows = last - first
    for r in range(rows):
        scale_row(obs[first + r], by.mean[m], by.inverse_std[m], by.limit[m], by.x[r])
    forward(by.weights[m], by.table, by.relu, by.x[:rows], by.space)
    return rows * int(by.table[len(by.table) - 1, PLACE])


def decide_boxes(by: Any, copies: int, obs: Any, mask: Any, out: Any) -> None:
    """`decide_box` for all members, `copies` environments each."""
    for m in range(len(by.weights)):
        decide_box(by, m, m * copies, (m + 1) * copies, obs, mask, out)


def decide_all_choices(by: Any, copies: int, obs: Any, mask: Any, out: Any) -> None:
    """`decide_choices` for all members, `copies` environments each."""
    for m in range(len(by.weights)):
        decide_choices(by, m, m * copies, (m + 1) * copies, obs, mask, out)
