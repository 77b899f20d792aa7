"""How far a study is: measured for the terminal, for `study status` and for `--hours`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.files.machine import Machine, MachineSampler
from slipstream.files.status import Status
from slipstream.studies.engine.under_way import EVERY_SECONDS, UnderWay, read_under_way
from slipstream.studies.record.rows import Slot
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.search import Search

_LATELY = 2**15  # bytes in which members say where they are between two looks


class Meter:
    """Measures a session: steps, seconds and what the processes use.

    Args:
        clock: seconds; replaced in tests.
        before: steps per second of earlier sessions; None where there were none.

    Attributes:
        done: steps of this session.
        seconds: of its workers, by kind.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, before: float | None = None
    ) -> None:
        self._clock, self._before = clock, before
        self._began = self._last = clock()  # the last outcome
        self._steps: dict[str, int] = {}
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
        self._last = self._clock()
        known = self._steps.get(name, before)
        self.done += max(0, steps - known)
        self._steps[name] = max(steps, known)
        for kind, value in seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + value

    @property
    def speed(self) -> float | None:
        """Steps per second up to the last outcome; before this session's first, of earlier ones."""
        if not self.done or self._last <= self._began:
            return self._before
        return self.done / (self._last - self._began)

    def eta(self, steps: float) -> float | None:
        """Seconds that so many steps take, of which some are done since the last outcome."""
        speed = self.speed
        if not speed:
            return None
        whole = steps / speed
        return max(whole - (self._clock() - self._last), whole / 20)  # somebody is late


class Watcher:
    """Knows what workers last said of members under way; a look reads what is new.

    Args:
        path: of the file that they append to.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._looked = path, -math.inf
        self._said: dict[str, UnderWay] = {}

    def of(self, slots: Sequence[Slot]) -> list[dict[str, Any]]:
        """For `Status.running`: each member, with its numbers where it said some."""
        if time.monotonic() - self._looked >= EVERY_SECONDS:
            self._looked = time.monotonic()
            known = {**self._said, **read_under_way(self._path, _LATELY)}
            self._said = {s.name: known[s.name] for s in slots if s.name in known}
        found = []
        for slot in slots:
            one = self._said.get(slot.name)
            numbers = {"step": one.step, "score": one.score, "time": one.at} if one else {}
            found.append({"trial": slot.trial, "fold": slot.fold, **numbers})
        return found


def search_status(
    search: Search,
    plan: StudyPlan,
    meter: Meter,
    after_steps: float,
    interval: Callable[[int], tuple[float, float] | None],
    watcher: Watcher,
) -> Status:
    """Where the search stands.

    Args:
        search, plan, meter: of this session.
        after_steps: to be trained after the search.
        interval: of the score of a trial.
        watcher: knows how far members are.
    """
    running = sorted(search.scheduler.running)
    verdicts = search.verdicts.values()
    kinds = [verdict.kind for verdict in verdicts]
    counts = {kind: kinds.count(kind) for kind in ("complete", "pruned", "failed")}
    ended, best = sum(counts.values()), search.best
    low, high = (interval(best.trial) if best else None) or (None, None)
    score = {"score": best.score, "trial": best.trial, "low": low, "high": high} if best else {}
    return Status(
        "study",
        phase="search",
        done=ended,
        of=search.scheduler.limit,
        unit="trials",
        rate=meter.speed,
        trials_per_hour=3600 * search.ended_now / meter.elapsed if search.ended_now else None,
        eta=meter.eta(remaining_steps(search, plan) + after_steps),
        best=score,
        counts={**counts, "inactive": sum(v.kind == "complete" and v.inactive for v in verdicts)},
        running=watcher.of([Slot("search", t, 0, k) for t in running for k in range(plan.folds)]),
        phases=dict(meter.seconds),
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
