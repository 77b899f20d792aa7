"""Scheduler: the order of trial events in virtual time, the environment steps of one member.

A study has a fixed number of concurrent trials. A trial that starts at virtual time v reaches a
rung at v plus the steps that one of its members has made by then, however long the machine takes.
Events are ordered by (virtual time, trial number). Each event happens after the outcomes that it
requires are available. A suggestion, rung or end therefore depends exactly on the results with a
smaller key. Group sizes, workers, speed and kills change nothing. A trial whose outcome arrives
early is parked: it does not train further before its event has happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

ASK = -1
StagePredicate = Callable[[int, int], bool]  # of a trial and a stage


class Event(NamedTuple):
    """An event at a virtual time; events are ordered by time, then trial number.

    Attributes:
        time: steps of one member since the study's start.
        trial: number of the trial.
        stage: `ASK`, or the index of the rung that is reached; the last one is the trial's end.
    """

    time: int
    trial: int
    stage: int


class Scheduler:
    """Order of events of a study: a pure function of the known outcomes.

    `pop_event` returns one event after the other. The caller reports each result with `start_trial`
    or `finish_stage` before it takes the next event.

    Args:
        max_concurrent_trials: number of trials that run at the same time.
        limit: total number of trials; `stop_asking` lowers it.

    Attributes:
        limit: total number of trials.
        num_asked: number of trials started so far.
    """

    def __init__(self, max_concurrent_trials: int, limit: int) -> None:
        self.limit, self.num_asked = limit, 0
        self._next_trial = 0
        self._events: list[Event] = []
        self._starts: dict[int, tuple[int, Sequence[int]]] = {}
        for _ in range(min(max_concurrent_trials, limit)):
            self._free_slot(0)

    @property
    def running(self) -> list[int]:
        """Numbers of running trials, ascending."""
        return sorted(self._starts)

    @property
    def is_finished(self) -> bool:
        """True if no events are left."""
        return not self._starts and not any(e.trial < self.limit for e in self._events)

    def stop_asking(self) -> int:
        """Start no further trials; running trials finish. Return the number of trials started."""
        self.limit = min(self.limit, self.num_asked)
        return self.limit

    def pop_event(self, ready: StagePredicate) -> Event | None:
        """Pop the next event; None if its outcomes are missing or no events are left.

        Args:
            ready: returns whether the outcomes of a trial's stage are known.
        """
        while self._events:
            event = self._events[0]
            if event.stage != ASK and not ready(event.trial, event.stage):
                return None
            heapq.heappop(self._events)
            if event.stage != ASK or event.trial < self.limit:
                return event
        return None

    def start_trial(self, event: Event, steps: Sequence[int]) -> None:
        """Start a trial.

        Args:
            event: the event returned by `pop_event`.
            steps: steps of a member at each stage, ascending; empty if the config is invalid.
        """
        self.num_asked = event.trial + 1
        if not steps:
            self._free_slot(event.time)
            return
        self._starts[event.trial] = (event.time, steps)
        self._push(event.trial, 0)

    def finish_stage(self, event: Event, goes_on: bool) -> None:
        """Finish a stage of a trial; after the last stage the trial's slot is freed."""
        if goes_on and event.stage + 1 < len(self._starts[event.trial][1]):
            self._push(event.trial, event.stage + 1)
            return
        del self._starts[event.trial]
        self._free_slot(event.time)

    def pending_stages(
        self, ready: StagePredicate, certain: StagePredicate
    ) -> list[tuple[int, int]]:
        """Return (trial, stage) pairs to compute now, ordered by trial.

        A trial's next stage is pending if its event is the next one of that trial, or if the trial
        is certain to get there.

        Args:
            ready: see `pop_event`.
            certain: returns whether a trial with known outcomes continues after a stage regardless
                of other trials.
        """
        stages_to_run = []
        for event in sorted(self._events, key=lambda e: e.trial):
            if event.stage == ASK:
                continue
            stage, stages = event.stage, len(self._starts[event.trial][1])
            while stage + 1 < stages and ready(event.trial, stage) and certain(event.trial, stage):
                stage += 1
            if not ready(event.trial, stage):
                stages_to_run.append((event.trial, stage))
        return stages_to_run

    def _push(self, trial: int, stage: int) -> None:
        start, steps = self._starts[trial]
        heapq.heappush(self._events, Event(start + steps[stage], trial, stage))

    def _free_slot(self, time: int) -> None:
        heapq.heappush(self._events, Event(time, self._next_trial, ASK))
        self._next_trial += 1
