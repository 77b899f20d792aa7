"""How far a study is: measured for the terminal, for `study status` and for `--hours`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np

from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.search import Search
from slipstream.studies.standing import Standing
from slipstream.training.record.machine import Machine, MachineSampler


class Meter:
    """Measures a session: steps, seconds and what the processes use.

    Args:
        clock: seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._steps: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self.done = 0
        self.seconds: dict[str, float] = {}
        self._sampler = MachineSampler()

    @property
    def elapsed(self) -> float:
        """Seconds of this session."""
        return self._clock() - self._began

    @property
    def machine(self) -> Machine:
        """What this session takes of the machine, a few seconds old."""
        return self._sampler.look()

    def add(self, name: str, steps: int, before: int, seconds: Mapping[str, float]) -> None:
        """An outcome came in: a member's steps so far, and those that an earlier session made."""
        known = self._steps.get(name, before)
        self.done += max(0, steps - known)
        self._steps[name] = max(steps, known)
        for kind, value in seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + value

    @property
    def speed(self) -> float | None:
        """Steps per second of this session; None before the first outcome."""
        return self.done / self.elapsed if self.done and self.elapsed > 0 else None

    @property
    def shares(self) -> dict[str, float]:
        """Of the workers' time, by kind."""
        total = sum(self.seconds.values())
        return {kind: value / total for kind, value in self.seconds.items()} if total else {}


def standing(
    search: Search,
    plan: StudyPlan,
    meter: Meter,
    after_steps: float,
    interval: Callable[[int], tuple[float, float] | None],
) -> Standing:
    """Where the search stands.

    Args:
        search, plan, meter: of this session.
        after_steps: to be trained after the search.
        interval: of the score of a trial.
    """
    kinds = [verdict.kind for verdict in search.verdicts.values()]
    counts = {kind: kinds.count(kind) for kind in ("complete", "pruned", "failed")}
    ended, asked = sum(counts.values()), search.scheduler.asked
    speed, elapsed = meter.speed, meter.elapsed
    best = search.best
    ends = interval(best.trial) if best else None
    left = remaining_steps(search, plan) + after_steps
    return Standing(
        phase="search",
        trials=search.scheduler.limit,
        complete=counts["complete"],
        pruned=counts["pruned"],
        failed=counts["failed"],
        running=asked - ended,
        inactive=sum(v.kind == "complete" and v.inactive for v in search.verdicts.values()),
        trials_per_hour=3600 * search.ended_now / elapsed if search.ended_now else None,
        steps_per_second=speed,
        eta=left / speed if speed else None,
        best=best.score if best else None,
        best_trial=best.trial if best else None,
        best_low=ends[0] if ends else None,
        best_high=ends[1] if ends else None,
        shares=meter.shares,
        machine=asdict(meter.machine),
        elapsed=elapsed,
    )


def remaining_steps(search: Search, plan: StudyPlan, to_come: bool = True) -> float:
    """Environment steps to the search's end, by the survival seen so far.

    Args:
        search, plan: the search.
        to_come: count trials that are not asked yet; each is expected to take the mean share of
            its budget that those took which ended.
    """
    survival = expected_share(search)
    later = max(0, search.scheduler.limit - search.scheduler.asked) * plan.mean_steps * survival
    in_flight = 0.0
    for trial in search.scheduler.running:
        stages = search.stages(trial)
        reached = search.verdicts.get(trial)
        done = stages.steps[reached.stage] if reached else 0
        in_flight += max(0.0, stages.steps[-1] * max(survival, done / stages.steps[-1]) - done)
    return (in_flight + later * to_come) * plan.folds


def expected_share(search: Search) -> float:
    """Mean share of its budget that a trial takes, of those that ended; 1 before any did."""
    shares = []
    for trial, verdict in search.verdicts.items():
        if verdict.kind in ("complete", "pruned") and trial >= search.unprunable:
            stages = search.stages(trial)
            shares.append(stages.steps[verdict.stage] / stages.steps[-1])
    return float(np.mean(shares)) if shares else 1.0
