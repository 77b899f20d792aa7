"""Results of evaluation episodes and the scores computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import EnvSpec

_RUINED = 1e-6  # floor of equity / initial equity, the same as the log reward's


@dataclass(frozen=True)
class EpisodeResult:
    """Result of one evaluation episode: a backtest of one symbol, or one episode of a game.

    Attributes:
        name: symbol in a market, else "episode 3".
        episode_return: sum of rewards, unscaled and undiscounted.
        length: number of steps.
        metrics: `EnvSpec.metrics` at the end, by name.
        actions: [n, K], actions that the environment received; empty if not recorded.
        trace: `EnvSpec.trace` STATE fields after each step, [n, ...] by name; empty if not
            recorded.
        number: episode number j.
    """

    name: str
    episode_return: float
    length: int
    metrics: Mapping[str, float]
    actions: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 1)), repr=False)
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    number: int = 0


def score_values(tracks: Sequence[EpisodeResult], spec: EnvSpec) -> NDArray[np.float64]:
    """Return the values whose mean is the score, [J]: log returns in a market, else returns."""
    if spec.market is None:
        return np.array([track.episode_return for track in tracks])
    growth = [1.0 + track.metrics["total_return"] for track in tracks]
    return np.array([math.log(max(factor, _RUINED)) for factor in growth])


def finite_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the evaluation's values without those of lost episodes (NaN); all if all are lost."""
    return values[~np.isnan(values)] if np.isfinite(values).any() else values


def score(tracks: Sequence[EpisodeResult], spec: EnvSpec) -> float:
    """Return the score that selects the best policy: the mean of `score_values`."""
    return float(np.mean(score_values(tracks, spec)))


def standard_error(sample: NDArray[np.float64]) -> float | None:
    """Return the standard error std / sqrt(n) of a mean of n values; None if n < 2."""
    return float(sample.std(ddof=1) / math.sqrt(len(sample))) if len(sample) > 1 else None
