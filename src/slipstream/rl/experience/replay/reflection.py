"""Transitions turned into their mirror images, where an environment says what those are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.random import word
from slipstream.kernels.spec import Spec

_FIRST = np.uint64(1 << 40)  # place in the stream of a draw, behind all that draws use
_ONE = np.uint64(1)


class Signs(NamedTuple):
    """A `Reflection` for loops; all empty where nothing is reflected.

    Attributes:
        obs: float32 [D], 1 or -1; action: float32 [K] of a box.
        choice: int64 [n], what each choice becomes.
    """

    obs: NDArray[np.float32]
    action: NDArray[np.float32]
    choice: NDArray[np.int64]


NOTHING = Signs(np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def check_reflection(spec: Spec) -> None:
    """Refuses environments without a mirror image.

    Raises:
        ConfigError: the environment declares none, or has masks.
    """
    if spec.reflection is None or spec.masked:
        raise ConfigError(
            "`agent.reflect` learns from mirror images, and this environment does not say what its "
            "own are (or masks choices): leave it out, or declare `Spec(reflection=...)` as "
            "games/hockey/kernel.py does."
        )


def signs_of(spec: Spec) -> Signs:
    """The reflection that a spec declares."""
    check_reflection(spec)
    assert spec.reflection is not None
    obs = np.ones(int(np.prod(spec.observation_shape)), np.float32)
    obs[list(spec.reflection.observation)] = -1.0
    if spec.components:
        return Signs(obs, NOTHING.action, np.array(spec.reflection.choices, np.int64))
    action = np.ones(spec.action_width, np.float32)
    action[list(spec.reflection.action)] = -1.0
    return Signs(obs, action, NOTHING.choice)


def reflect(by: Any, key: Any, batch: Any) -> None:
    """Reflects each row of a batch with probability 1/2; a plain loop that is compiled.

    A row's reward and discount are its mirror image's own.

    Args:
        by: Signs; key: np.uint64, of the draw that made the batch; batch: the Batch, changed.
    """
    if len(by.obs) == 0:
        return
    for b in range(len(batch.reward)):
        if word(key, _FIRST + np.uint64(b)) & _ONE == 0:
            continue
        for j in range(len(by.obs)):
            batch.obs[b, j] *= by.obs[j]
            batch.obs_next[b, j] *= by.obs[j]
        for j in range(len(by.action)):
            batch.action[b, j] *= by.action[j]
        if len(by.choice) > 0:
            batch.action[b, 0] = np.float32(by.choice[int(batch.action[b, 0])])
