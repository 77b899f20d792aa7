"""Statuses and lines of a training's events."""

from __future__ import annotations

import numpy as np

from slipstream.training.callbacks.events import Progress, Started, Updated
from slipstream.training.callbacks.progress_reporter import ProgressReporter


class Heard:
    due = True

    def __init__(self):
        self.said, self.shown = [], []

    def show(self, status, at_once=False):
        self.shown.append(status)

    def log(self, line, style=""):
        self.said.append(line)

    def log_event(self, event, line="", style="", **facts):
        pass


def test_where_phases_end_by_episodes_progress_is_told_in_episodes():
    heard = Heard()
    telling = ProgressReporter(heard)
    progress = Progress(budget=1_324_960)
    telling(Started(progress, 2, 8, 1, "compiled", "cpu", episodes=240, ended=7))
    assert heard.shown[-1].completed == 7
    assert "Training 2 members, 240 episodes each" in heard.said[0]
    progress.advance(1024, 1)
    telling(Updated(progress, (0, 1), {"episodes": np.array([30.0, 50.0])}))
    last = heard.shown[-1]
    assert (last.completed, last.total, last.unit) == (80, 480, "episodes")
    telling(Updated(progress, (0, 1), {"episodes": np.array([251.0, 240.0])}))  # at a boundary
    assert (heard.shown[-1].completed, heard.shown[-1].total) == (480, 480)


def test_other_runs_are_told_in_steps():
    heard = Heard()
    telling = ProgressReporter(heard)
    progress = Progress(budget=2048)
    telling(Started(progress, 1, 8, 1, "compiled", "cpu"))
    progress.advance(1024, 1)
    telling(Updated(progress, (0,), {"episodes": np.array([30.0])}))
    assert (heard.shown[-1].completed, heard.shown[-1].total, heard.shown[-1].unit) == (
        1024,
        2048,
        "steps",
    )
