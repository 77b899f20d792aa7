"""Which trial is asked, judged and ended when: in virtual time, the steps of one member.

A study has a fixed number of trials in flight. A trial that begins at virtual time v reaches its
rungs and its end at v + the steps that a member of it has made by then, however long the
machine took. Events are keyed (virtual time, trial number) and happen in that order, each one after
the outcomes that it needs are there: so an ask, a rung or an end sees exactly the results with a
smaller key, and group sizes, workers, speed and kills change nothing. A trial whose outcome came
early is parked: it is not run further before its event has happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

ASK = -1
StagePredicate = Callable[[int, int], bool]  # of a trial and a stage


class Event(NamedTuple):
    """Something that happens at a virtual time; tuples order by time, then trial number.

    Attributes:
        time: steps of one member since the study's start.
        trial: its number.
        stage: `ASK`, else index of the rung that is reached; the last one is the trial's end.
    """

    time: int
    trial: int
    stage: int


class Scheduler:
    """The order of a study: a pure function of the outcomes that are known.

    `due` hands out one event after the other; whoever takes one says with `begin` or `settle` what
    came of it, before the next.

    Args:
        in_flight: trials in flight at most.
        limit: trials asked at most; `cut` lowers it.

    Attributes:
        limit: as given, or cut.
        asked: trials asked so far.
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
        """Trials in flight, ascending."""
        return sorted(self._starts)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._starts and not any(e.trial < self.limit for e in self._events)

    def stop_asking(self) -> int:
        """Asks no further trial; those in flight go on to their ends. Returns the number asked."""
        self.limit = min(self.limit, self.num_asked)
        return self.limit

    def pop_event(self, ready: StagePredicate) -> Event | None:
        """Takes out the next event, in order; None where it waits for outcomes, or nothing is left.

        Args:
            ready: whether the outcomes of a trial's stage are known.
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
        """A trial was asked.

        Args:
            event: that was due.
            steps: of a member at each of its stages, ascending; none: the trial was refused.
        """
        self.num_asked = event.trial + 1
        if not steps:
            self._free_slot(event.time)
            return
        self._starts[event.trial] = (event.time, steps)
        self._push(event.trial, 0)

    def finish_stage(self, event: Event, goes_on: bool) -> None:
        """A stage was judged; after its last one no trial goes on."""
        if goes_on and event.stage + 1 < len(self._starts[event.trial][1]):
            self._push(event.trial, event.stage + 1)
            return
        del self._starts[event.trial]
        self._free_slot(event.time)

    def pending_stages(
        self, ready: StagePredicate, certain: StagePredicate
    ) -> list[tuple[int, int]]:
        """(trial, stage) pairs whose outcomes are to be computed now, by trial.

        A trial's next stage is wanted when its event is the next one of that trial, or when it is
        certain that the trial gets there.

        Args:
            ready: see `due`.
            certain: whether a trial with known outcomes goes on after a stage whatever others do.
        """
        found = []
        for event in sorted(self._events, key=lambda e: e.trial):
            if event.stage == ASK:
                continue
            stage, stages = event.stage, len(self._starts[event.trial][1])
            while stage + 1 < stages and ready(event.trial, stage) and certain(event.trial, stage):
                stage += 1
            if not ready(event.trial, stage):
                found.append((event.trial, stage))
        return found

    def _push(self, trial: int, stage: int) -> None:
        start, steps = self._starts[trial]
        heapq.heappush(self._events, Event(start + steps[stage], trial, stage))

    def _free_slot(self, time: int) -> None:
        heapq.heappush(self._events, Event(time, self._next_trial, ASK))
        self._next_trial += 1
