"""Which trial is asked, judged and ended when: in virtual time, the steps of one member.

A study has a fixed number of virtual slots. A trial that begins in a slot at virtual time v reaches
its rungs and its end at v + the steps that a member of it has made by then, however long the
machine took. Events are keyed (virtual time, trial number) and happen in that order, each one after
the outcomes that it needs are there: so an ask, a rung or an end sees exactly the results with a
smaller key, and group sizes, workers, speed and kills change nothing. A trial whose outcome came
early is parked: it is not run further before its event has happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

ASK = -1


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


class Rules(Protocol):
    """What happens at an event; called in the order of events, never twice for one."""

    def ask(self, event: Event) -> Sequence[int]:
        """Begins a trial: the member's steps at each of its stages, ascending; none: refused."""

    def judge(self, event: Event, last: bool) -> bool:
        """A stage was reached (`last`: the end) and its outcomes are there: does it go on?"""

    def ready(self, trial: int, stage: int) -> bool:
        """Whether the outcomes of that stage are known."""

    def certain(self, trial: int, stage: int) -> bool:
        """Whether a trial with known outcomes goes on after a stage whatever other trials do."""


class Scheduler:
    """The order of a study: a pure function of the outcomes it is shown.

    Args:
        slots: trials in flight at most.
        limit: trials asked at most; `cut` lowers it.
        rules: what happens at events.

    Attributes:
        limit: as given, or cut.
        asked: trials asked so far.
        now: virtual time of the last event that happened.
    """

    def __init__(self, slots: int, limit: int, rules: Rules) -> None:
        self.limit, self.asked, self.now = limit, 0, 0
        self._rules = rules
        self._numbered = 0
        self._events: list[Event] = []
        self._starts: dict[int, tuple[int, Sequence[int]]] = {}
        for _ in range(min(slots, limit)):
            self._free(0)

    @property
    def running(self) -> list[int]:
        """Trials in flight, ascending."""
        return sorted(self._starts)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._starts and not any(e.trial < self.limit for e in self._events)

    def cut(self) -> int:
        """Asks no further trial; those in flight go on to their ends. Returns the number asked."""
        self.limit = min(self.limit, self.asked)
        return self.limit

    def advance(self) -> int:
        """Lets every event happen whose outcomes are known, in order; returns how many did."""
        happened = 0
        while self._events:
            event = self._events[0]
            if event.stage == ASK:
                heapq.heappop(self._events)
                if event.trial >= self.limit:
                    continue
                self._ask(event)
            else:
                if not self._rules.ready(event.trial, event.stage):
                    break
                heapq.heappop(self._events)
                self._judge(event)
            self.now = event.time
            happened += 1
        return happened

    def wanted(self) -> list[tuple[int, int]]:
        """(trial, stage) pairs whose outcomes are to be computed now, by trial.

        A trial's next stage is wanted when its event is the next one of that trial, or when it is
        certain that the trial gets there.
        """
        found = []
        for event in sorted(self._events, key=lambda e: e.trial):
            if event.stage == ASK:
                continue
            stage, stages = event.stage, len(self._starts[event.trial][1])
            while (
                stage + 1 < stages
                and self._rules.ready(event.trial, stage)
                and self._rules.certain(event.trial, stage)
            ):
                stage += 1
            if not self._rules.ready(event.trial, stage):
                found.append((event.trial, stage))
        return found

    def _ask(self, event: Event) -> None:
        steps = self._rules.ask(event)
        self.asked = event.trial + 1
        if not steps:
            self._free(event.time)
            return
        self._starts[event.trial] = (event.time, steps)
        self._push(event.trial, 0)

    def _judge(self, event: Event) -> None:
        stages = len(self._starts[event.trial][1])
        last = event.stage == stages - 1
        if self._rules.judge(event, last) and not last:
            self._push(event.trial, event.stage + 1)
            return
        del self._starts[event.trial]
        self._free(event.time)

    def _push(self, trial: int, stage: int) -> None:
        start, steps = self._starts[trial]
        heapq.heappush(self._events, Event(start + steps[stage], trial, stage))

    def _free(self, time: int) -> None:
        heapq.heappush(self._events, Event(time, self._numbered, ASK))
        self._numbered += 1
