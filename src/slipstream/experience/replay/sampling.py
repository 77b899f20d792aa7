"""Which transitions are learned from: plain loops that `compiled.py` compiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slipstream.core.memory import prefetch
from slipstream.core.random import word
from slipstream.experience.replay.ring import ENDING, NONE
from slipstream.experience.replay.tree import find_leaves, smallest, sum_leaves, total
from slipstream.machine.sixteen import bits_of, float_of

# log2 m = s (L0 + L1 s^2 + ...) with s = (m - 1) / (m + 1), |s| < 0.172: error below 1e-10.
_L0, _L1, _L2, _L3, _L4 = (2.0 / (math.log(2.0) * k) for k in (1, 3, 5, 7, 9))
# 2^f, |f| <= 1/2, by its Taylor series: error below 1e-10.
_E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8 = (
    math.log(2.0) ** k / math.factorial(k) for k in range(1, 9)
)
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_EXPONENT = 52  # where a number's exponent begins
_WHOLE = 6755399441055744.0  # 1.5 2^52: added and taken away again, it leaves a whole number
_WHOLE_BITS = 0x4338000000000000
_MOST = 1000.0


def power(x: float, y: float) -> float:
    """x^y of a normal x > 0 and y in -1..1, to a relative 1e-9; within 2^-1000 .. 2^1000."""
    exponent = (bits_of(x) - _ROOT_HALF) >> _EXPONENT
    m = float_of(bits_of(x) - (exponent << _EXPONENT))  # from sqrt(1/2) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    log = float(exponent) + s * (_L0 + z * (_L1 + z * (_L2 + z * (_L3 + z * _L4))))
    t = y * log
    t = -_MOST if t < -_MOST else t
    t = _MOST if t > _MOST else t
    shifted = t + _WHOLE
    f = t - (shifted - _WHOLE)
    e = _E5 + f * (_E6 + f * (_E7 + f * _E8))
    e = 1.0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * e))))
    return float_of(bits_of(e) + ((bits_of(shifted) - _WHOLE_BITS) << _EXPONENT))


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
