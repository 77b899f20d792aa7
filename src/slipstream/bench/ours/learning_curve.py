"""Seconds that a lone copy trains until a test reaches a score, and the curve of its training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from slipstream.bench.moments import MOMENTS, next_moment
from slipstream.bench.ours.ppo import Enough, Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.listeners.events import Evaluated, Event, Started, Updated


class _Watch:
    """Times a training without its tests, and stops at a test's score."""

    def __init__(self, score: float, budget: int) -> None:
        self.score, self.budget = score, budget
        self.reached, self.steps = False, 0
        self.seconds = 0.0
        self.curve: list[float] = []
        self._since = 0.0

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Updated):
            self.seconds += now - self._since
            self.steps = event.progress.steps
            if next_moment(self.curve, self.steps, self.budget):
                self.curve.append(float(event.metrics["score"][0]))
        elif isinstance(event, Evaluated):  # the time since `Updated` was the test's
            self.reached = float(event.scores[0]) >= self.score
            if self.reached:
                raise Enough
        elif not isinstance(event, Started):
            return
        self._since = time.perf_counter()


def measure(config: Mapping[str, Any], score: float = math.inf) -> dict[str, Any]:
    """Trains by a config of one copy; an untimed iteration goes before, so compiling is apart.

    Args:
        config: sections of a run's config; `evaluation` says when there are tests, and how long.
        score: of a test, where to stop.
    """
    train_by(config, Stopwatch(0.0))
    watch = _Watch(score, int(config["training"]["total_steps"]))
    train_by(config, watch)
    return {
        "seconds": watch.seconds,
        "reached": float(watch.reached),
        "steps": float(watch.steps),
        "curve": watch.curve if len(watch.curve) == MOMENTS else [],
    }


if __name__ == "__main__":
    serve(measure)
