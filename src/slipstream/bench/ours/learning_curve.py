"""Returns of a lone copy's training episodes: seconds until they reach a mean, and their curve."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from slipstream.bench.moments import MOMENTS, next_moment
from slipstream.bench.ours.ppo import Enough, Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.events import Event, Started, Updated
from slipstream.training.recent_episodes import RECENT


class _Watch:
    """Follows the mean return of the last training episodes; stops at a score.

    The trainer tells the mean of the last RECENT. That of fewer follows from two such means, as
    long as there were no more than RECENT.
    """

    def __init__(self, score: float, episodes: int, budget: int) -> None:
        self.score, self.episodes, self.budget = score, episodes, budget
        self.began = self.ended = 0.0
        self.reached, self.steps = False, 0
        self.curve: list[float] = []
        self._sums = [(0, 0.0)]  # episodes so far, and the sum of their returns

    def __call__(self, event: Event) -> None:
        self.ended = time.perf_counter()
        if isinstance(event, Started):
            self.began = self.ended
        if not isinstance(event, Updated):
            return
        self.steps = event.progress.steps
        known, mean = int(event.metrics["episodes"][0]), float(event.metrics["score"][0])
        if next_moment(self.curve, self.steps, self.budget):
            self.curve.append(mean)
        self.reached = self._last(known, mean) >= self.score
        if self.reached:
            raise Enough

    def _last(self, known: int, mean: float) -> float:
        """Mean of the last episodes; minus infinity before there were as many."""
        if known > 0:
            self._sums.append((known, known * mean))
        if known < self.episodes:
            return -math.inf
        if self.episodes == RECENT:
            return mean
        assert known <= RECENT
        before, total = max(one for one in self._sums if known - one[0] >= self.episodes)
        return (known * mean - total) / (known - before)


def measure(
    config: Mapping[str, Any], score: float = math.inf, episodes: int = RECENT
) -> dict[str, Any]:
    """Trains by a config of one copy; an untimed iteration goes before, so compiling is apart.

    Args:
        config: sections of a run's config; with fewer `episodes` than RECENT its budget is that of
            RECENT episodes at most.
        score: where to stop; episodes: that it is the mean of.
    """
    train_by(config, Stopwatch(0.0))
    watch = _Watch(score, episodes, int(config["training"]["total_steps"]))
    train_by(config, watch)
    return {
        "seconds": watch.ended - watch.began,
        "reached": float(watch.reached),
        "steps": float(watch.steps),
        "curve": watch.curve if len(watch.curve) == MOMENTS else [],
    }


if __name__ == "__main__":
    serve(measure)
