"""Ranges: what a policy's features were in training, and how far outside of that a bar's lie."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.environments.environment import Environment
from slipstream.environments.episodes import Seen, run_episodes
from slipstream.environments.evaluation import decide
from slipstream.runs.policies import DeployedPolicy

_LEAST = 1e-6  # of a range: a column that was constant has none


class Outside(NamedTuple):
    """How far outside, as a share of the range in training (0: within), and of which feature."""

    share: float = 0.0
    feature: str = ""

    def __str__(self) -> str:
        return (
            f"{self.feature} lies outside its range in training, by {100 * self.share:.0f} % of it"
        )


class Ranges(NamedTuple):
    """Smallest and largest value of each feature column of an observation, float64 [columns]."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Ranges | None:
        """Those that a deployment froze."""
        kept = facts.get("ranges")
        return None if kept is None else cls(*(np.array(kept[name]) for name in cls._fields))

    @classmethod
    def seen(cls, deployed: DeployedPolicy, environment: Environment) -> Ranges:
        """What the kernel shows in every pass over a window.

        Args:
            deployed: who acts meanwhile; features do not depend on it.
            environment: the bars of training as one window.
        """
        columns = len(_names(deployed)) * int(deployed.policy.conditions["lookback"])
        low, high = np.full(columns, np.inf), np.full(columns, -np.inf)
        passes = len(environment.episode_names("window") or [""])

        def act(seen: Seen) -> NDArray[Any]:
            rows = seen.obs.reshape(len(seen.obs), -1)[:, :columns]
            np.minimum(low, rows.min(axis=0), out=low)
            np.maximum(high, rows.max(axis=0), out=high)
            return decide(deployed.policy, seen, None)

        backend = deployed.config.training.chosen_backend
        with closing(environment.evaluation("window", passes, backend=backend)) as env:
            run_episodes(env, act, passes, 0, record=False)
        return cls(low, high)

    def outside(self, deployed: DeployedPolicy, obs: NDArray[Any]) -> Outside:
        """The feature of an observation that is furthest outside."""
        row = obs.ravel()[: len(self.low)]
        beyond = np.maximum(self.low - row, row - self.high)
        share = np.maximum(beyond, 0.0) / np.maximum(self.high - self.low, _LEAST)
        place, names = int(np.argmax(share)), _names(deployed)
        return Outside(float(share[place]), names[place % len(names)])


def _names(deployed: DeployedPolicy) -> list[str]:
    """Of the columns that one bar shows, in order."""
    known = deployed.policy.conditions
    features = [str(one["name"]) for one in known["features"]]
    symbols = known["symbols"] if known["symbols_at_once"] > 1 else ("",)
    return [f"{symbol} {feature}".strip() for symbol in symbols for feature in features]
