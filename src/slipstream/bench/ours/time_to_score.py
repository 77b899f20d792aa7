"""Seconds that a lone copy trains until a test reaches a score."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from slipstream.bench.ours.ppo import Enough, Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.listeners.events import Evaluated, Event, Started, Updated


class _Watch:
    """Times a training without its tests, and stops at a test's score."""

    def __init__(self, score: float) -> None:
        self.score = score
        self.reached, self.steps = False, 0
        self.seconds = 0.0
        self._since = 0.0

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Updated):
            self.seconds += now - self._since
            self.steps = event.progress.steps
        elif isinstance(event, Evaluated):  # the time since `Updated` was the test's
            self.reached = float(event.scores[0]) >= self.score
            if self.reached:
                raise Enough
        elif not isinstance(event, Started):
            return
        self._since = time.perf_counter()


def measure(config: Mapping[str, Any], score: float) -> dict[str, Any]:
    """Trains by a config of one copy; an untimed iteration goes before, so compiling is apart.

    Args:
        config: sections of a run's config; `evaluation` says when there are tests, and how long.
        score: of a test, where to stop.
    """
    train_by(config, Stopwatch(0.0))
    watch = _Watch(score)
    train_by(config, watch)
    return {
        "seconds": watch.seconds,
        "reached": float(watch.reached),
        "steps": float(watch.steps),
    }


if __name__ == "__main__":
    serve(measure)
