"""The outside of the hockey game: spaces and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.core.spec import Metric, Reflection, Spec
from slipstream.envs.hockey.setup import NORMAL_LIMIT

_BOTH = (
    Metric("winner", "1, 0 or -1"),
    Metric("touches", "catches"),
    Metric("touches_two", "catches"),
    Metric("shots", "shots"),
    Metric("shots_two", "shots"),
    Metric("goals", "goals"),
    Metric("closeness", "reward"),
    Metric("direction", "reward"),
)
_LEARNER = (
    Metric("won", "games"),
    Metric("lost", "games"),
    Metric("opponent", "number"),
    Metric("catches", "catches"),
    Metric("catches_other", "catches"),
    Metric("shots_taken", "shots"),
)


# What changes its sign where up and down are swapped, for each player: places, speeds and turns.
_UPRIGHT = (1, 2, 4, 5, 7, 8, 10, 11, 13, 15)
_UP, _TURN = 1, 2  # numbers of an action


def reflection(p: Any) -> Reflection:
    """The game with up and down swapped, as either player sees it."""
    if p.fineness == 0:
        return Reflection(_UPRIGHT, action=(_UP, _TURN))
    levels = p.fineness - 1
    choices = list(range(1 + 6 * levels + (1 if p.keep else 0)))
    for axis in (_UP, _TURN):
        for level in range(levels):
            back, forth = 1 + 2 * axis * levels + level, 1 + (2 * axis + 1) * levels + level
            choices[back], choices[forth] = forth, back
    return Reflection(_UPRIGHT, choices=tuple(choices))


def spec(p: Any, d: Any) -> Spec:
    """18 numbers seen and 4 in an action, 16 and 3 without keep mode; or discrete actions."""
    action: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4 if p.keep else 3,), np.float32)
    if p.fineness > 0:
        action = spaces.Discrete(1 + 6 * (p.fineness - 1) + (1 if p.keep else 0))
    return Spec(
        observation=spaces.Box(-np.inf, np.inf, (18 if p.keep else 16,), np.float32),
        action=action,
        metrics=_LEARNER if p.players == 1 else _BOTH,
        players=p.players,
        winner=None if p.players == 1 else "winner",
        reflection=reflection(p),
        max_episode_steps=NORMAL_LIMIT + 2,  # never reached: a game ends itself one step earlier
    )
