"""What one evaluation episode left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import EnvSpec

_RUINED = 1e-6  # of the initial equity: the same floor as the log reward's


@dataclass(frozen=True)
class EpisodeResult:
    """One evaluation episode: a symbol's continuous pass, or one episode of a game.

    Attributes:
        name: the symbol in a market, else "episode 3".
        ret: sum of rewards, unscaled and undiscounted.
        length: steps.
        metrics: `EnvSpec.metrics` at the end, by name.
        actions: [n, K], what the environment received; empty where not asked for.
        trace: `EnvSpec.trace` STATE fields after each step, [n, ...] by name, or empty.
        number: of the episode, j.
    """

    name: str
    episode_return: float
    length: int
    metrics: Mapping[str, float]
    actions: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 1)))
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    number: int = 0


def score_values(tracks: Sequence[EpisodeResult], spec: EnvSpec) -> NDArray[np.float64]:
    """What a score is the mean of, [J]: log returns in a market, else episode returns."""
    if spec.market is None:
        return np.array([track.episode_return for track in tracks])
    growth = [1.0 + track.metrics["total_return"] for track in tracks]
    return np.array([math.log(max(one, _RUINED)) for one in growth])


def finite_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of an evaluation's [J] values that are of episodes which were not lost."""
    return values[~np.isnan(values)] if np.isfinite(values).any() else values


def score(tracks: Sequence[EpisodeResult], spec: EnvSpec) -> float:
    """What the best policy is chosen by: mean log return in a market, else mean episode return."""
    return float(np.mean(score_values(tracks, spec)))


def standard_error(sample: NDArray[np.float64]) -> float | None:
    """Standard error of the mean of [n] independent values; None for fewer than two.

    It is their deviation / sqrt(n).
    """
    return float(sample.std(ddof=1) / math.sqrt(len(sample))) if len(sample) > 1 else None
