"""Which transitions are learned from: plain loops that `compiled.py` compiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.core.random import word
from slipstream.jit.memory import prefetch
from slipstream.jit.simd import exp_2, log_2
from slipstream.rl.experience.replay.ring import ENDING, NONE
from slipstream.rl.experience.replay.tree import find_leaves, smallest, sum_leaves, total


def power(x: float, y: float) -> float:
    """x^y of a normal x > 0 and y in -1..1, to a relative 1e-9; within 2^-1000 .. 2^1000."""
    return exp_2(y * log_2(x))


LEAST_ERROR = 1e-6  # added to errors: what was learned well is drawn again some day
GREATEST = 1e30  # priority: sums of millions of them are finite float32 numbers

_SHIFT_11 = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


def draw(ring: Any, m: int, key: Any, beta: float, index: Any, weight: Any) -> None:
    """Draws B transitions of member m, with replacement.

    Without priorities each is drawn with probability 1 / R of the R that are held. With them
    transition i is drawn with probability P(i) = p_i / sum p (p is |error|^alpha), one from each of
    B equal parts of the sum, and its weight is

        w_i = (1 / (R P(i)))^beta / max_j w_j = (min_j p_j / p_i)^beta

    so that with beta = 1 the mean of w_i f(i) is that of f over all held, but for a factor that is
    the same for all i.

    Args:
        ring: the Ring; held[m] must be above 0.
        m: member.
        key: np.uint64, the random stream; another one at every call.
        beta: how much of the bias is undone, 0 to 1.
        index: int64 [B], written: n S + slot.
        weight: float32 [B], written; 1 without priorities.
    """
    if ring.tree.shape[1] > 0:
        _draw_by_priority(ring, m, key, beta, index, weight)
        return
    slots, counter = ring.rows.shape[1], 0
    ending = ring.rows.shape[2] - 1
    for b in range(len(index)):  # all are on their way before the first one is looked at
        n, slot = _place(ring, m, key, b)
        rows = ring.rows[m * ring.copies + n]
        prefetch(rows, slot, 0)
        prefetch(rows, slot, ending)
        prefetch(rows, slot + 1, ending)  # behind the next observation; need not exist
    for b in range(len(index)):
        searching = True
        while searching:
            n, slot = _place(ring, m, key, counter)
            counter += 1
            if ring.rows[m * ring.copies + n, slot, ENDING] != NONE:
                index[b] = n * slots + slot
                weight[b] = 1.0
                searching = False


def _place(ring: Any, m: int, key: Any, counter: int) -> tuple[int, int]:
    """Any slot that member m has used, the copy's first."""
    span = ring.span[m]
    u = float(word(key, np.uint64(counter)) >> _SHIFT_11) * _TO_UNIT
    place = int(u * float(ring.copies * span))
    n = place // span
    return n, place - n * span


def _draw_by_priority(ring: Any, m: int, key: Any, beta: float, index: Any, weight: Any) -> None:
    tree, levels, target = ring.tree[m], ring.levels, ring.target
    part = total(tree, levels) / float(len(index))
    low = smallest(ring.least[m], levels)
    for first in range(0, len(index), len(target)):
        last = min(len(index), first + len(target))
        for b in range(first, last):
            u = float(word(key, np.uint64(b)) >> _SHIFT_11) * _TO_UNIT
            target[b - first] = (float(b) + u) * part
        find_leaves(ring.tree, m, levels, target[: last - first], index[first:last])
    slots = ring.rows.shape[1]
    for b in range(len(index)):
        n = index[b] // slots
        prefetch(ring.rows[m * ring.copies + n], index[b] - n * slots, 0)  # gathered soon
        weight[b] = tree[index[b]]
    for b in range(len(index)):  # apart, so that a processor does several at once
        weight[b] = power(low / float(weight[b]), beta)


def new_priorities(ring: Any, m: int, index: Any, error: Any) -> None:
    """Sets the priorities of transitions to (|error| + 1e-6)^alpha; does nothing without any.

    Args:
        ring: the Ring; m: member.
        index: int64 [B], as drawn; error: float32 [B]. One that is not finite is passed over.
    """
    if ring.tree.shape[1] == 0:
        return
    tree, value, alpha = ring.tree[m], ring.target, ring.alpha
    for first in range(0, len(index), len(value)):
        last = min(len(index), first + len(value))
        for b in range(first, last):
            size = abs(float(error[b])) + LEAST_ERROR
            value[b - first] = min(power(size, alpha), GREATEST)
        for b in range(first, last):
            size = abs(float(error[b]))
            if size - size == 0.0:
                ring.peak[m] = max(ring.peak[m], value[b - first])
                tree[index[b]] = value[b - first]
    sum_leaves(tree, ring.least[m], ring.levels, index)
