"""The interval of a trial's score while a search goes on."""

from __future__ import annotations

import time

from slipstream.studies.progress import Meter
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.search import Search
from slipstream.studies.statistics.interval import score_interval

_SECONDS = 20.0
_SHARE = 0.002  # of a core at most


class RareInterval:
    """Calculates intervals rarely: nobody hands out work meanwhile.

    Args:
        plan, search, meter: of the study.
    """

    def __init__(self, plan: StudyPlan, search: Search, meter: Meter) -> None:
        self._plan, self._search, self._meter = plan, search, meter
        self._known: dict[int, tuple[float, float] | None] = {}
        self._next = _SECONDS  # of the session

    def __call__(self, trial: int) -> tuple[float, float] | None:
        """Low and high end; None where it is not known yet, or there is none."""
        study = self._plan.study
        if trial not in self._known and self._meter.elapsed >= self._next:
            began = time.thread_time()
            passes = self._search.final_passes(trial)
            self._known[trial] = score_interval(
                passes, self._plan.market, study.objective, study.penalty
            )
            spent = time.thread_time() - began
            self._next = self._meter.elapsed + max(_SECONDS, spent / _SHARE)
        return self._known.get(trial)
