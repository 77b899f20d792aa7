"""Drawn actions straight from observations, as loops over rows; `compiled.py` compiles them.

What `modes.py` is for the most likely action. A row's bits depend neither on the rows beside it nor
on how many there are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from slipstream.jit.draws import gumbel_rows, normal_at, normal_rows
from slipstream.rl.nets.layers import BLOCK, OUTPUTS
from slipstream.rl.nets.modes import Decider, outputs_of
from slipstream.rl.nets.sampling import (
    bounded_log_std,
    draw_component,
    sample_choices,
    sample_gaussian,
)

_ROOT_HALF = math.sqrt(0.5)
_LOG_2 = math.log(2.0)


class Sampler(NamedTuple):
    """What draws for all members.

    Attributes:
        by: networks, scales and the mapping of actions.
        log_std: float32 [M, K] of a gaussian, [M, 0] of other heads.
        keys: uint64 [T, M], the stream of each member's noise at step t.
        copies: environments of each member.
        first: number within its member of the first of them.
        noise: float32 [BLOCK * head width], overwritten.
    """

    by: Decider
    log_std: Any
    keys: Any
    copies: int
    first: int
    noise: Any


def draw_choices(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Choices of all members' environments at step t.

    Args:
        sampler: the Sampler; obs: float32 [E, D], not scaled.
        mask: bool [E, choices] of allowed choices, or [0, 0] for none.
        action: int64 [E, K], the policy's own; log_prob: float32 [E], of it.
        out: int64 [E, K], what the environments receive. All three are written.
    """
    by, width = sampler.by, 0
    padded = by.table[len(by.table) - 1, OUTPUTS]
    for c in range(len(by.sizes)):
        width += by.sizes[c]
    for m in range(len(by.weights)):
        begin = m * sampler.copies
        for lo in range(begin, begin + sampler.copies, BLOCK):
            hi = min(lo + BLOCK, begin + sampler.copies)
            at = outputs_of(by, m, lo, hi, obs)
            head = by.space[at : at + (hi - lo) * padded].reshape(1, hi - lo, padded)
            noise = sampler.noise[: (hi - lo) * width].reshape(1, (hi - lo) * width)
            counter = (sampler.first + lo - begin) * width
            gumbel_rows(sampler.keys[t, m : m + 1], counter, noise)
            sample_choices(head, noise, mask[lo:hi], by.sizes, action[lo:hi], log_prob[lo:hi])
            for e in range(lo, hi):
                for c in range(len(by.sizes)):
                    out[e, c] = action[e, c] + by.start[c]


def draw_boxes(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """The same in a box: action, out float32 [E, K]; mask is unused."""
    by, width = sampler.by, len(sampler.by.half)
    padded = by.table[len(by.table) - 1, OUTPUTS]
    for m in range(len(by.weights)):
        begin = m * sampler.copies
        for lo in range(begin, begin + sampler.copies, BLOCK):
            hi = min(lo + BLOCK, begin + sampler.copies)
            at = outputs_of(by, m, lo, hi, obs)
            head = by.space[at : at + (hi - lo) * padded].reshape(1, hi - lo, padded)
            noise = sampler.noise[: (hi - lo) * width].reshape(1, (hi - lo) * width)
            counter = (sampler.first + lo - begin) * width
            normal_rows(sampler.keys[t, m : m + 1], counter, noise)
            log_std = sampler.log_std[m : m + 1]
            sample_gaussian(head, noise, log_std, action[lo:hi], log_prob[lo:hi])
            for e in range(lo, hi):
                for j in range(width):
                    value = action[e, j] * by.half[j] + by.middle[j]
                    value = by.low[j] if value < by.low[j] else value  # NaN stays NaN
                    out[e, j] = by.high[j] if value > by.high[j] else value


def draw_squashed(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """The same in a box, for the head `squashed_gaussian`."""
    for m in range(len(sampler.by.weights)):
        lo = m * sampler.copies
        hi = lo + sampler.copies
        key, place = sampler.keys[t, m], sampler.first
        draw_member_squashed(sampler.by, m, key, place, lo, hi, obs, False, action, log_prob, out)


def draw_member_squashed(
    by: Any, m: int, key: Any, place: int, lo: int, hi: int, obs: Any, uniform: bool, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """Actions of environments lo..hi-1, all of them member m's.

    Args:
        by: Decider; key: of a stream; environment e takes its normal numbers from the place
            (place + e - lo) K on.
        uniform: whether actions are uniform in [-1, 1] instead: the quantiles of the same numbers.
        obs, action, log_prob, out: as for `draw_boxes`; rows lo..hi-1 are written.
    """
    width, padded = len(by.half), by.table[len(by.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = outputs_of(by, m, first, last, obs)
        for e in range(first, last):
            head, total = by.space[at + (e - first) * padded :], 0.0
            for j in range(width):
                noise = float(normal_at(key, (place + e - lo) * width + j))
                if uniform:
                    action[e, j] = math.erf(noise * _ROOT_HALF)
                    total -= _LOG_2
                else:
                    log_std = bounded_log_std(float(head[width + j]))
                    u, density = draw_component(float(head[j]), log_std, noise)
                    action[e, j] = math.tanh(u)
                    total += density
                value = action[e, j] * by.half[j] + by.middle[j]
                value = by.low[j] if value < by.low[j] else value  # NaN stays NaN
                out[e, j] = by.high[j] if value > by.high[j] else value
            log_prob[e] = total
