"""A member's rows of a rollout as its losses read them: inputs, values, advantages, columns.

Plain loops that `loops.py` compiles. Row r = t N + n is step t of the member's copy n.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.surrogate import explained_variance, pack_rows
from slipstream.experience.advantages import advantages
from slipstream.nets.layers import BLOCK, OUTPUTS, PLACE, forward
from slipstream.nets.sampling import scale_row


class Experience(NamedTuple):
    """A rollout of M members, E = M N copies, and what it is read by.

    Attributes:
        obs: float32 [T + 1, E, D]; mean, inverse_std: float32 [M, D], limit: see `scale_row`.
        mask: bool [T + 1, E, choices] of allowed choices, or [0, 0, 0] for none.
        action: float32 [T, E, K], exact for choices below 2^24.
        log_prob, reward: float32 [T, E], rewards scaled.
        terminated, truncated, valid: bool [T, E].
        final_obs: float32 [n, D]; final_index: int64 [n, 2].
        gamma, lam: float32 [E].
        paid: bool [M]; the other members' advantages are 0.
    """

    obs: NDArray[np.float32]
    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: float
    mask: NDArray[np.bool_]
    action: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_obs: NDArray[np.float32]
    final_index: NDArray[np.int64]
    gamma: NDArray[np.float32]
    lam: NDArray[np.float32]
    paid: NDArray[np.bool_]


class Rows(NamedTuple):
    """What follows from it; `x`, `packed` and `mask` are of one member at a time. Overwritten.

    Attributes:
        x: float32 [(T + 1) N, inputs], the column of ones in place.
        packed: float32 [R, 5 + K] as in `surrogate.py`.
        mask: bool [R, choices], or [0, 0] for none.
        value: float32 [T + 1, E]; final_value: float32 [n]; advantage, target: float32 [T, E].
        place: int64 [BLOCK], of some final observations.
        explained: float64 [M], share of the targets' variance that the critic knew.
    """

    x: NDArray[np.float32]
    packed: NDArray[np.float32]
    mask: NDArray[np.bool_]
    value: NDArray[np.float32]
    final_value: NDArray[np.float32]
    advantage: NDArray[np.float32]
    target: NDArray[np.float32]
    place: NDArray[np.int64]
    explained: NDArray[np.float64]


def load_rows(
    experience: Any, rows: Any, m: int, lo: int, hi: int, weights: Any, critic: Any, relu: bool,
    space: Any,
) -> None:  # fmt: skip
    """Inputs and values of member m's observations lo..hi-1 of its (T + 1) N.

    Args:
        experience: Experience; rows: Rows.
        weights: float32 [P]; critic: int64 [L, 5]; relu, space: as for `forward`.
    """
    copies = experience.obs.shape[1] // len(experience.mean)
    mean, inverse_std = experience.mean[m], experience.inverse_std[m]
    low, high = np.float32(-experience.limit), np.float32(experience.limit)
    for first in range(lo, hi, BLOCK):
        x = rows.x[first : min(first + BLOCK, hi)]
        for i in range(len(x)):
            t, n = (first + i) // copies, (first + i) % copies
            scale_row(experience.obs[t, m * copies + n], mean, inverse_std, low, high, x[i])
        at, width = critic_outputs(weights, critic, relu, x, space)
        for i in range(len(x)):
            t, n = (first + i) // copies, (first + i) % copies
            rows.value[t, m * copies + n] = space[at + i * width]


def load_finals(
    experience: Any, rows: Any, m: int, weights: Any, critic: Any, relu: bool, x: Any, space: Any
) -> None:
    """Values of member m's final observations; x: float32 [BLOCK, inputs], overwritten."""
    copies, total = experience.obs.shape[1] // len(experience.mean), len(experience.final_index)
    mean, inverse_std = experience.mean[m], experience.inverse_std[m]
    low, high = np.float32(-experience.limit), np.float32(experience.limit)
    b = 0
    for i in range(total):
        if experience.final_index[i, 1] // copies == m:
            scale_row(experience.final_obs[i], mean, inverse_std, low, high, x[b])
            rows.place[b] = i
            b += 1
        if b == BLOCK or (b > 0 and i == total - 1):
            at, width = critic_outputs(weights, critic, relu, x[:b], space)
            for k in range(b):
                rows.final_value[rows.place[k]] = space[at + k * width]
            b = 0


def critic_outputs(weights: Any, critic: Any, relu: bool, x: Any, space: Any) -> tuple[int, int]:
    """Leaves the critic's outputs in `space`; where they begin, and from one row to the next."""
    last = len(critic) - 1
    forward(weights, critic, relu, x, space)
    return len(x) * critic[last, PLACE], critic[last, OUTPUTS]


def fill_rows(experience: Any, rows: Any, m: int, lo: int, hi: int) -> None:
    """Advantages, targets and what the losses need of member m's copies lo..hi-1 of all E."""
    e = experience
    advantages(
        *(lo, hi, e.reward, rows.value, e.terminated, e.truncated, e.valid),
        *(rows.final_value, e.final_index, e.gamma, e.lam, rows.advantage, rows.target),
    )
    if not e.paid[m]:
        rows.advantage[:, lo:hi] = 0.0
    copies = e.obs.shape[1] // len(e.mean)
    pack_rows(
        *(lo, hi, m * copies, copies, e.log_prob, rows.advantage, rows.target, rows.value),
        *(e.valid, e.action, rows.packed),
    )
    if len(rows.mask) > 0:
        for t in range(len(e.reward)):
            for copy in range(lo, hi):
                allowed, to = e.mask[t, copy], rows.mask[t * copies + copy - m * copies]
                for j in range(len(to)):
                    to[j] = allowed[j]


def explain(rows: Any, m: int) -> None:
    """Member m's explained variance."""
    rows.explained[m] = explained_variance(rows.packed)
