"""Output of a notebook cell; whole notebooks: tests/test_notebook.py."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream.training.callbacks.console import NotebookCallback, curves, default_callback
from slipstream.training.callbacks.events import (
    Entered,
    Evaluated,
    Finished,
    Progress,
    Started,
    Updated,
)

pytest.importorskip("IPython")


def updated(steps, score):
    progress = Progress(budget=1_000_000, steps=steps, updates=1, wall=1.0)
    return Updated(progress, (0, 1), {"score": np.array([score, np.nan])})


def test_one_place_is_drawn_again_and_sentences_stand_below(capsys):
    now = iter(np.arange(0.0, 1e6, 10.0))
    callback = NotebookCallback(lambda: float(next(now)))
    drawn, shown = [], []

    class Handle:
        def update(self, page):
            drawn.append(page.data)

    def display(page, display_id):
        shown.append(page.data)
        return Handle()

    callback._display = display
    callback(Started(Progress(1_000_000), 2, 8, 1, "compiled", "cpu", notes=("mind <this>",)))
    for steps in range(10_000, 60_000, 10_000):
        callback(updated(steps, steps / 1000))
    callback(
        Evaluated(
            Progress(1_000_000, 50_000), "validation", (0, 1), np.array([1.0, 3.0]), {}, (True,) * 2
        )
    )
    callback(updated(60_000, 60.0))
    assert len(shown) == 1 and len(drawn) >= 5
    assert "120,000 of 2,000,000 steps" in drawn[-1] and drawn[-1].count("<polyline") == 1
    assert "training score 60" in drawn[-1]
    said = capsys.readouterr()
    assert "mind <this>" in said.out and not said.err
    assert "validation" not in said.out


def test_how_it_ended_is_drawn_however_soon_it_follows():
    callback, drawn = NotebookCallback(lambda: 0.0), []
    callback._display = lambda page, display_id: SimpleNamespace(
        update=lambda page: drawn.append(page.data)
    )
    ended = Progress(1_000, 1_000)
    callback(Started(Progress(1_000), 1, 8, 1, "compiled", "cpu"))
    callback(Entered(ended, "testing"))
    callback(Finished(ended, {}))
    assert "training 100 %" in drawn[-1]


def test_curves_stay_in_their_frame_and_are_thinned():
    callback = NotebookCallback()
    for steps in range(3_000):
        progress = Progress(3_000, steps)
        callback._add("training", progress, np.array([float(steps % 7), np.nan]))
    points = callback._curves["training"]
    assert 300 < len(points) <= 400 and points[1] == (8, 1.0)  # every 7.5 steps
    assert {b[0] - a[0] for a, b in pairwise(points)} == {8}
    text = curves({"training": points, "validation": [(0, -1.0), (2_999, 9.0)]})
    assert text.count("<polyline") == 2 and "-1 to 9, 2,999 steps" in text
    lines = " ".join(re.findall(r'points="([^"]*)"', text))
    x, y = np.array(re.findall(r"([\d.-]+),([\d.-]+)", lines), float).T
    assert x.min() >= 0 and x.max() <= 640 and y.min() >= 0 and y.max() <= 150
    assert curves({"training": [(0, 1.0)]}) == ""
    assert "nan" not in curves({"training": [(0, 1.0), (5, 1.0)]})


def test_nobody_listens_where_nobody_watches(monkeypatch):
    monkeypatch.delattr("sys.ps1", raising=False)
    monkeypatch.setattr("sys.stdout", None)
    assert default_callback() is None
