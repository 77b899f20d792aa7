"""Epsilon-greedy choices of one member's copies, as loops that `loops.py` compiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream, word
from slipstream.machine.draws import ACT
from slipstream.nets.modes import Decider, decide_choices

_SHIFT = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_ACT = np.uint64(ACT)
_TWO = np.uint64(2)
_ONE = np.uint64(1)

# Columns of `Explorer.settings`.
INITIAL = 0
FINAL = 1
STEPS = 2


class Explorer(NamedTuple):
    """Who chooses for M members.

    Attributes:
        decider: of greatest values, in choices 0..n-1.
        seeds: uint64 [M]; steps: int64 [M], environment steps that each member took so far.
        settings: float64 [M, 3], epsilon's first and last value and the steps it falls over.
        warm_up: steps of random choices at first.
        copies: N; start: what the environment calls its first choice.
    """

    decider: Decider
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    settings: NDArray[np.float64]
    warm_up: int
    copies: int
    start: int


def epsilon_of(by: Any, m: int) -> float:
    """Share of random choices at member m's next step."""
    if by.steps[m] < by.warm_up:
        return 1.0
    own = by.settings[m]
    if by.steps[m] >= own[STEPS]:
        return float(own[FINAL])
    return float(own[INITIAL] + (own[FINAL] - own[INITIAL]) * (by.steps[m] / own[STEPS]))


def explore(by: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """Choices of copies lo..hi-1, all of them member m's and in their order.

    Args:
        by: Explorer; obs: float32 [E, D].
        mask: bool [E, choices] of allowed choices, or [0, 0] for none.
        out: int64 [E, 1], rows lo..hi-1 are written: 0..n-1.
    """
    decide_choices(by.decider, m, lo, hi, obs, mask, out)
    epsilon = epsilon_of(by, m)
    key = stream(by.seeds[m], _ACT, np.uint64(by.steps[m]))
    masked = mask.shape[0] > 0
    choices = by.decider.sizes[0]
    for e in range(lo, hi):
        place = _TWO * np.uint64(e - lo)
        if float(word(key, place) >> _SHIFT) * _TO_UNIT >= epsilon:
            continue
        u = float(word(key, place + _ONE) >> _SHIFT) * _TO_UNIT
        allowed = choices
        if masked:
            allowed = 0
            for j in range(choices):
                if mask[e, j]:
                    allowed += 1
        wanted = int(u * float(allowed))
        if not masked:
            out[e, 0] = wanted
            continue
        for j in range(choices):
            if mask[e, j]:
                if wanted == 0:
                    out[e, 0] = j
                wanted -= 1


def explore_rows(
    by: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Choices of all members' copies, whose steps are counted.

    Args:
        by: Explorer; t: row, which nothing depends on; obs, mask: as for `explore`.
        action: int64 [E, 1], 0..n-1; log_prob: not written; out: int64 [E, 1], what the copies
            receive.
    """
    for m in range(len(by.steps)):
        lo = m * by.copies
        explore(by, m, lo, lo + by.copies, obs, mask, action)
        by.steps[m] += by.copies
    for e in range(len(out)):
        out[e, 0] = action[e, 0] + by.start


def explore_choices(
    keys: NDArray[np.uint64],
    epsilon: NDArray[np.float64],
    copies: int,
    choices: int,
    mask: NDArray[np.bool_] | None,
    out: NDArray[np.int64],
) -> None:
    """What `explore` puts in the place of some greatest values, in NumPy.

    Args:
        keys: uint64 [M], of this step; epsilon: float64 [M].
        copies: N; choices: n; mask: bool [E, n] or None.
        out: int64 [E, 1], of which some are replaced.
    """
    with np.errstate(over="ignore"):
        places = _TWO * np.arange(copies, dtype=np.uint64)
        first, second = word(keys[:, None], places), word(keys[:, None], places + _ONE)
    random = ((first >> _SHIFT) * _TO_UNIT < epsilon[:, None]).ravel()
    u = ((second >> _SHIFT) * _TO_UNIT).ravel()
    allowed = np.ones((len(out), choices), np.bool_) if mask is None else mask
    wanted = (u * allowed.sum(1)).astype(np.int64)
    ranks = np.cumsum(allowed, axis=1) - 1
    chosen = ((ranks == wanted[:, None]) & allowed).argmax(1)
    out[random, 0] = chosen[random]
