"""The outside of the hockey game: spaces and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.core.spec import Metric, Spec

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
    )
