"""slipstream's trainer at work: steps per second over whole iterations, or time to a score."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.worker import serve
from slipstream.training.listeners.events import Event, Started, Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.trainer import train

_EPISODES = 100  # training episodes that a score is the mean of


class Enough(Exception):  # noqa: N818  (nothing went wrong)
    """Leaves the trainer once the measurement is complete."""


class Stopwatch:
    """Times whole iterations, from the end of the first one, which compiles and warms up."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.first: Updated | None = None
        self.last: Updated | None = None
        self.began = self.ended = 0.0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Updated):
            return
        now = time.perf_counter()
        if self.first is None:
            self.first, self.began = event, now
            return
        self.last, self.ended = event, now
        if now - self.began >= self.seconds:
            raise Enough


class _UntilScore:
    """Stops when the trailing 100 training episodes average the score."""

    def __init__(self, score: float) -> None:
        self.score, self.reached = score, False
        self.began = self.ended = 0.0
        self.steps = 0

    def __call__(self, event: Event) -> None:
        self.ended = time.perf_counter()
        if isinstance(event, Started):
            self.began = self.ended
        if isinstance(event, Updated):
            self.steps = event.progress.steps
            full = event.metrics["episodes"][0] >= _EPISODES
            self.reached = bool(full and event.metrics["score"][0] >= self.score)
            if self.reached:
                raise Enough


def measure(
    config: Mapping[str, Any], seconds: float = 0.0, score: float | None = None
) -> dict[str, float]:
    """Trains by the given config and returns figures.

    Args:
        config: sections of a run's config.
        seconds: time to measure the rate over, after the first iteration.
        score: train until it is reached instead; an untimed run of one iteration goes before,
            so that compiling is apart.
    """
    if score is None:
        watch = Stopwatch(seconds)
        train_by(config, watch)
        assert watch.first is not None and watch.last is not None, (
            "one iteration outlasted the budget"
        )
        first, last = watch.first.progress, watch.last.progress
        members = len(watch.last.metrics["score"])
        elapsed = watch.ended - watch.began
        steps, updates = last.steps - first.steps, last.updates - first.updates
        return {
            "steps_per_second": members * steps / elapsed,
            "updates_per_step": updates / steps,
            "update_seconds_per_step": (last.seconds_update - first.seconds_update) / steps,
        }
    began = time.perf_counter()
    train_by(config, Stopwatch(0.0))
    warm_up = time.perf_counter() - began
    until = _UntilScore(score)
    train_by(config, until)
    return {
        "seconds": until.ended - until.began,
        "reached": float(until.reached),
        "steps": float(until.steps),
        "warm_up": warm_up,
    }


def train_by(config: Mapping[str, Any], listener: Any) -> None:
    """A run in a directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        resolved = RunConfig.from_mapping(config)
        run = Run.create(resolved, Path(folder) / "run")
        try:
            train(run.config, run, [listener])
        except Enough:
            pass
        finally:
            run.close()


if __name__ == "__main__":
    serve(measure)
