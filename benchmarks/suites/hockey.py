"""Two-player hockey game: `python -m benchmarks hockey`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.machine import Neighbours
from benchmarks.race import Race
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions
from benchmarks.worker import run_worker

_SEEDS = (0, 1, 2)


def hockey_95(settings: SuiteOptions) -> Iterable[Row]:
    """Measure wall seconds from scratch to winning 95 % of the games against each bot."""
    answers = []
    with Neighbours() as neighbours:
        for seed in _SEEDS:
            asked = {"config": {**settings.spec["config"], "training": {"seed": seed}}}
            answers.append(run_worker("ours.training.seconds_to_wins", asked, timeout=3600.0))
    weak, strong, steps, apart = (
        statistics.median(answer[name] for answer in answers)
        for name in ("won_weak", "won_strong", "steps", "warm_up")
    )
    ran = Race(answers, others_cpu=neighbours.share)
    row = ran.row(settings, weak=weak, strong=strong, steps=steps / 1e6, apart=apart)
    cells = tuple({"seed": seed, **a} for seed, a in zip(_SEEDS, answers, strict=True))
    yield replace(row, cells=cells)
