"""What one evaluation episode left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec

_RUINED = 1e-6  # of the initial equity: the same floor as the log reward's


@dataclass(frozen=True)
class Track:
    """One evaluation episode: a symbol's continuous pass, or one episode of a game.

    Attributes:
        name: the symbol in a market, else "episode 3".
        ret: sum of rewards, unscaled and undiscounted.
        length: steps.
        metrics: `Spec.metrics` at the end, by name.
        actions: [n, K], what the environment received; empty where not asked for.
        trace: `Spec.trace` STATE fields after each step, [n, ...] by name, or empty.
    """

    name: str
    ret: float
    length: int
    metrics: Mapping[str, float]
    actions: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 1)))
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def score(tracks: list[Track], spec: Spec) -> float:
    """What the best policy is chosen by: mean log return in a market, else mean episode return."""
    if spec.market is None:
        return float(np.mean([track.ret for track in tracks]))
    return float(
        np.mean([math.log(max(1.0 + track.metrics["total_return"], _RUINED)) for track in tracks])
    )
