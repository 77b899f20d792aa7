"""Dashboard: `python -m benchmarks dash`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from benchmarks.ours.dash import training
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions


def dash_cost(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the cost of a watcher to a training."""
    with training(settings.spec["seconds"]) as rate:
        yield settings.row(partial(rate, True), partial(rate, False))
