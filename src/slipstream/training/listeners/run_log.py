"""Enters a run's events into its logbook."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from slipstream.training.listeners.events import (
    Checkpointed,
    Evaluated,
    Event,
    Failed,
    Finished,
    Started,
    Updated,
)
from slipstream.training.record.logbook import Logbook


class RunLog:
    """A listener; see `Logbook`."""

    def __init__(self, logbook: Logbook) -> None:
        self._logbook, self._members = logbook, 1
        self._last = (0.0, 0)  # seconds and steps at the last writing
        self._details: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Listens."""
        steps = event.progress.steps * self._members
        if isinstance(event, Updated):
            self._details = {"nodes": list(event.nodes)} if event.nodes else {}
            if self._logbook.due:
                self._show(event, steps)
        elif isinstance(event, Started):
            self._members = event.members
            steps = event.progress.steps * self._members
            self._last = time.monotonic(), steps
            total = event.progress.budget * self._members
            self._logbook.show(phase="training", done=steps, total=total)
        elif isinstance(event, Evaluated):
            self._logbook.note(
                "validated", steps=steps, split=event.split, scores=event.scores, best=event.best
            )
        elif isinstance(event, Checkpointed):
            self._logbook.show(done=steps, details=self._details)
            self._logbook.note("checkpoint", steps=steps, folder=event.path.name)
        elif isinstance(event, Failed):
            self._logbook.note(
                "member failed", steps=steps, member=event.member, reason=event.reason
            )
        elif isinstance(event, Finished):
            self._logbook.show(done=steps, details=self._details)

    def _show(self, event: Updated, steps: int) -> None:
        now, (before, known) = time.monotonic(), self._last
        self._last = now, steps
        rate = (steps - known) / max(now - before, 1e-9)
        left = event.progress.budget * self._members - steps
        scores = np.asarray(event.metrics.get("score", ()), np.float64)
        scores = scores[np.isfinite(scores)]
        self._logbook.show(
            done=steps,
            rate=rate,
            eta=left / rate if rate > 0 else None,
            score=float(scores.mean()) if len(scores) else None,
            details=self._details,
        )
