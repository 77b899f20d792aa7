"""The order of a study: keys, parking, refills, cuts; equal whatever comes when."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from slipstream.studies.search.scheduler import ASK, Event, Scheduler


class Recorder:
    """Rules with known durations: trial n's stages, and which of them end it."""

    def __init__(self, stages: dict[int, list[int]], stops: set[tuple[int, int]] = frozenset()):
        self.stages, self.stops = stages, set(stops)
        self.known: set[tuple[int, int]] = set()
        self.log: list[tuple] = []
        self.prunable = True

    def ask(self, event: Event) -> Sequence[int]:
        self.log.append(("ask", event.time, event.trial))
        return self.stages[event.trial]

    def judge(self, event: Event) -> bool:
        last = event.stage + 1 == len(self.stages[event.trial])
        self.log.append(("end" if last else "rung", event.time, event.trial))
        return (event.trial, event.stage) not in self.stops

    def ready(self, trial: int, stage: int) -> bool:
        return (trial, stage) in self.known

    def certain(self, trial: int, stage: int) -> bool:
        return not self.prunable


def advance(scheduler: Scheduler, rules: Recorder) -> int:
    """Lets every event happen whose outcomes are known; says how many did."""
    happened = 0
    while (event := scheduler.pop_event(rules.ready)) is not None:
        happened += 1
        if event.stage == ASK:
            scheduler.start_trial(event, rules.ask(event))
        else:
            scheduler.finish_stage(event, rules.judge(event))
    return happened


def complete(scheduler: Scheduler, rules: Recorder, choose=lambda wanted: wanted) -> None:
    for _ in range(10_000):
        advance(scheduler, rules)
        if scheduler.is_finished:
            return
        rules.known.update(choose(scheduler.pending_stages(rules.ready, rules.certain)))
    raise AssertionError("the study never ended")


def test_two_slots_by_hand():
    """Slot times: trial 0 takes 10, trial 1 stops at its rung at 4, so 2 begins at 4."""
    rules = Recorder({0: [5, 10], 1: [4, 8], 2: [3, 6], 3: [5, 10]}, stops={(1, 0)})
    complete(Scheduler(2, 4), rules)
    assert rules.log == [
        ("ask", 0, 0),
        ("ask", 0, 1),
        ("rung", 4, 1),
        ("ask", 4, 2),
        ("rung", 5, 0),
        ("rung", 7, 2),
        ("end", 10, 0),
        ("end", 10, 2),
        ("ask", 10, 3),
        ("rung", 15, 3),
        ("end", 20, 3),
    ]


def test_ties_go_by_trial_number():
    rules = Recorder({n: [4] for n in range(6)})
    complete(Scheduler(3, 6), rules)
    ends = [row for row in rules.log if row[1] == 4]
    assert ends == [
        ("end", 4, 0),
        ("end", 4, 1),
        ("end", 4, 2),
        ("ask", 4, 3),
        ("ask", 4, 4),
        ("ask", 4, 5),
    ]


@pytest.mark.parametrize("chooser", range(20))
def test_the_order_of_outcomes_changes_nothing(chooser: int):
    draws = random.Random(7)
    stages = {n: sorted(draws.sample(range(1, 60), 3)) for n in range(40)}
    stops = {(n, draws.randrange(2)) for n in range(40) if draws.random() < 0.4}
    one_by_one = Recorder(stages, stops)
    complete(Scheduler(5, 40), one_by_one)
    shuffled = Recorder(stages, stops)
    pick = random.Random(chooser)
    complete(
        Scheduler(5, 40),
        shuffled,
        lambda wanted: pick.sample(wanted, pick.randint(1, len(wanted))),
    )
    assert shuffled.log == one_by_one.log
    assert sorted(row[2] for row in shuffled.log if row[0] == "ask") == list(range(40))
    keys = [row[1:] for row in shuffled.log]
    assert keys == sorted(keys)


def test_a_trial_that_is_ahead_is_parked():
    """Trial 1's rung at 8 cannot happen before trial 0's at 5: it is not run on."""
    rules = Recorder({0: [5, 10], 1: [8, 16]})
    scheduler = Scheduler(2, 2)
    advance(scheduler, rules)
    rules.known.add((1, 0))
    assert advance(scheduler, rules) == 0
    assert scheduler.pending_stages(rules.ready, rules.certain) == [(0, 0)]
    rules.known.add((0, 0))
    advance(scheduler, rules)
    assert scheduler.pending_stages(rules.ready, rules.certain) == [(0, 1), (1, 1)]


def test_a_trial_that_cannot_be_stopped_is_not_parked():
    rules = Recorder({0: [5, 10], 1: [8, 16]})
    rules.prunable = False
    scheduler = Scheduler(2, 2)
    advance(scheduler, rules)
    rules.known.add((1, 0))
    assert scheduler.pending_stages(rules.ready, rules.certain) == [(0, 0), (1, 1)]


def test_a_refused_trial_leaves_its_slot_to_the_next():
    rules = Recorder({0: [], 1: [3], 2: [3]})
    complete(Scheduler(1, 3), rules)
    assert rules.log == [("ask", 0, 0), ("ask", 0, 1), ("end", 3, 1), ("ask", 3, 2), ("end", 6, 2)]


def test_a_cut_lets_trials_in_flight_end_and_replays_to_the_same_study():
    stages = {n: [2 + n % 3] for n in range(30)}
    rules = Recorder(stages)
    scheduler = Scheduler(4, 30)
    for _ in range(3):
        advance(scheduler, rules)
        rules.known.update(scheduler.pending_stages(rules.ready, rules.certain)[:2])
    last = scheduler.stop_asking()
    complete(scheduler, rules)
    assert [row[2] for row in rules.log if row[0] == "ask"] == list(range(last))
    again = Recorder(stages)
    complete(Scheduler(4, last), again)
    assert again.log == rules.log
