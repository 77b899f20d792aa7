"""Tasks of an update that threads share: each is done once, and the lead waits for all."""

import threading

import numpy as np

from slipstream.agents.off_policy import gate as gates
from slipstream.agents.off_policy.gate import (
    FIRST,
    claim,
    finish,
    make_gate,
    next_of_others,
    open_tasks,
    wait_for,
)
from slipstream.experience.compiled import compile_loops, of_int64


def lead(gate, done, late, rounds, tasks):
    """Opens `tasks` tasks so many times; counts rounds that went on before all were done."""
    for r in range(rounds):
        limit = open_tasks(gate, 0, r, tasks)
        ticket = claim(gate)
        while ticket >= 0:
            done[ticket] += 1
            finish(gate)
            ticket = claim(gate)
        wait_for(gate, limit)
        for i in range(limit):
            if done[i] != 1:
                late[0] += 1


def help_along(gate, done, helped):
    """Does other threads' tasks until the gate closes."""
    ticket = next_of_others(gate)
    while ticket >= 0:
        if gate[FIRST] <= ticket:  # of the round that is open
            helped[0] += 1
        done[ticket] += 1
        finish(gate)
        ticket = next_of_others(gate)


def test_every_task_is_done_once():
    one = of_int64(1)
    loops = compile_loops("gate_test", {lead: (one, one, one, 1, 1), help_along: (one, one, one)})
    rounds, tasks = 300, 3
    for helpers in (0, 1, 3):
        gate, done, late = make_gate(), np.zeros(rounds * tasks, np.int64), np.zeros(1, np.int64)
        helped = np.zeros((helpers, 1), np.int64)
        gates.admit_helpers(gate)
        threads = [
            threading.Thread(target=loops["help_along"], args=(gate, done, own)) for own in helped
        ]
        for thread in threads:
            thread.start()
        loops["lead"](gate, done, late, rounds, tasks)
        gates.dismiss_helpers(gate)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert (done == 1).all() and late[0] == 0
        loops["help_along"](gate, done, np.zeros(1, np.int64))  # closed: it leaves at once


def test_the_definition_is_one_threads():
    gate, done, late = make_gate(), np.zeros(6, np.int64), np.zeros(1, np.int64)
    lead(gate, done, late, 2, 3)
    assert (done == 1).all() and late[0] == 0 and claim(gate) == -1
