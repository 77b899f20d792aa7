"""Seconds until the last few training episodes of a lone copy reach a mean."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from slipstream.bench.ours.ppo import Enough, Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.events import Event, Started, Updated
from slipstream.training.recent_episodes import RECENT


class _UntilScore:
    """Stops when the trailing episodes average the score.

    The trainer tells their mean since the beginning, of RECENT at most; an iteration that is an
    episode long tells each one's return by what it adds.
    """

    def __init__(self, score: float, episodes: int) -> None:
        self.score, self.reached = score, False
        self.began = self.ended = 0.0
        self.steps, self._known, self._sum = 0, 0, 0.0
        self._returns: deque[float] = deque(maxlen=episodes)

    def __call__(self, event: Event) -> None:
        self.ended = time.perf_counter()
        if isinstance(event, Started):
            self.began = self.ended
        if not isinstance(event, Updated):
            return
        self.steps = event.progress.steps
        known = int(event.metrics["episodes"][0])
        if known == self._known:
            return
        assert known == self._known + 1 <= RECENT
        total = known * float(event.metrics["score"][0])
        self._returns.append(total - self._sum)
        self._known, self._sum = known, total
        mean = sum(self._returns) / len(self._returns)
        self.reached = len(self._returns) == self._returns.maxlen and mean >= self.score
        if self.reached:
            raise Enough


def measure(config: Mapping[str, Any], score: float, episodes: int) -> dict[str, float]:
    """Trains by a config of one copy; an untimed iteration goes before, so compiling is apart.

    Args:
        config: sections of a run's config; its budget is RECENT episodes at most.
        score: where to stop; episodes: that it is the mean of.
    """
    train_by(config, Stopwatch(0.0))
    until = _UntilScore(score, episodes)
    train_by(config, until)
    return {
        "seconds": until.ended - until.began,
        "reached": float(until.reached),
        "steps": float(until.steps),
    }


if __name__ == "__main__":
    serve(measure)
