"""What a study that ran says about the full one: measured where it is that, else forecast."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.bench.ours.study import Ran
from slipstream.bench.study_settings import FOLDS, FULL, Size
from slipstream.studies.config import PruningConfig


class Figures(NamedTuple):
    """About the full study.

    Attributes:
        seconds: search, one test pass of every fold, report.
        confirm: seconds from the end of the search to the hold-out.
        pruned: seconds with pruning, if both rungs stay armed and stop half of what gets there.
        overhead: share of the workers' time in the search that is neither rollout nor update.
        forecast: whether `seconds` was extrapolated.
        how: what was measured, in words.
    """

    seconds: float
    confirm: float
    pruned: float
    overhead: float
    forecast: bool
    how: str


def figures(ran: Ran, size: Size, workers: int, *, rungs: bool = False) -> Figures:
    """Adds the parts up: training by steps, passes by their number, the rest by trials.

    Args:
        ran: what was measured.
        size: what was asked for.
        workers: processes that worked side by side.
        rungs: whether scores at rungs belong to the study, as they do with pruning.
    """
    busy = ran.train + ran.evaluate + ran.rest
    wall = ran.search / busy  # of the study, for a second of work
    members = ran.trials * FOLDS
    train = wall * ran.train / (members * size.iterations)  # for a member's iteration
    evaluate = wall * ran.evaluate * (1.0 - ran.rungs) / members  # for a pass
    rest = wall * ran.rest / ran.trials
    searched = FULL.members * (train * FULL.iterations + evaluate) + FULL.trials * rest
    if rungs:
        searched = ran.search * FULL.trials / ran.trials
    whole = size == FULL and ran.trials == FULL.trials
    confirm = ran.confirm
    if not whole:
        confirm = FULL.confirming * (train * FULL.iterations + evaluate)
    trained, passes = _with_pruning(FULL.trials)
    pruned = FOLDS * (trained * FULL.iterations * train + passes * evaluate) + FULL.trials * rest
    steps = f"{members:,} members x {size.iterations} iterations"
    return Figures(
        seconds=searched + ran.report,
        confirm=confirm,
        pruned=pruned + ran.report,
        overhead=1.0 - (ran.train + ran.evaluate) / (workers * ran.search),
        forecast=not whole,
        how="measured" if whole else f"forecast from {steps}",
    )


def _with_pruning(trials: int) -> tuple[float, float]:
    """Budgets that so many trials use, and test passes of a fold: half stop at each rung."""
    pruning = PruningConfig.model_validate({})
    first = min(pruning.startup, trials)
    stages = (*pruning.rungs, 1.0)
    left = float(trials - first)
    trained, passes, before = float(first), float(first * len(stages)), 0.0
    for share in stages:
        trained += left * (share - before)
        passes += left
        left, before = left / 2.0, share
    return trained, passes
