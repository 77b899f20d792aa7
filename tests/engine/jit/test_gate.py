"""Tasks of an update that threads share: each is done once, and the lead waits for all."""

import os
import sys
import threading

import numpy as np

from slipstream.jit import work_sharing as gates
from slipstream.jit.work_sharing import help_out, make_gate, share
from slipstream.rl.compiled_loops import compile_loops, i8

TASKS = 3


def note(done, m, phase, task):
    done[phase * TASKS + task] += 1


def lead(gate, done, late, rounds):
    """Shares TASKS tasks so many times; counts rounds that went on before all were done."""
    for r in range(rounds):
        share(gate, done, 0, r, TASKS)
        for i in range((r + 1) * TASKS):
            if done[i] != 1:
                late[0] += 1


def help_along(gate, done):
    help_out(gate, done)


def test_every_task_is_done_once():
    one = i8(1)
    functions = {lead: (one, one, one, 1), help_along: (one, one)}
    loops = compile_loops("gate_test", functions, {"work": note})
    rounds = 300
    for helpers in (0, 1, 3):
        gate, done, late = make_gate(), np.zeros(rounds * TASKS, np.int64), np.zeros(1, np.int64)
        gates.admit_helpers(gate)
        threads = [
            threading.Thread(target=loops["help_along"], args=(gate, done)) for _ in range(helpers)
        ]
        for thread in threads:
            thread.start()
        loops["lead"](gate, done, late, rounds)
        gates.dismiss_helpers(gate)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert (done == 1).all() and late[0] == 0
        assert sys.platform != "linux" or gate[gates._CORE] in os.sched_getaffinity(0)
        loops["help_along"](gate, done)  # closed: it leaves at once


def test_the_definition_is_one_threads(monkeypatch):
    monkeypatch.setattr(gates, "work", note)
    gate, done, late = make_gate(), np.zeros(2 * TASKS, np.int64), np.zeros(1, np.int64)
    lead(gate, done, late, 2)
    assert (done == 1).all() and late[0] == 0 and gates.claim(gate) == -1
