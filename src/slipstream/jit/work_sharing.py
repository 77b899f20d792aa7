"""Lock-free work sharing: helper threads execute the tasks of one update, as plain loops.

The leader thread opens a set of independent tasks, takes part in them and waits until all are done.
Any number of helpers, including none, claim tasks from the same gate; the assignment does not
affect results. A task is a ticket, and ticket numbers are never reused, so a stale task cannot be
mistaken for a new one. Tasks must not raise: their ticket would never finish.

An update calls `share` for each of its phases, and its helpers call `help_out`. Both call `work`,
which the update's module binds (`bound_globals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import alignment, atomics
from slipstream.jit.atomics import add, core, load, pause, replace, sleep, yield_cpu

# Bound by the code generator to the update's function when it compiles `share` and `help_out`
# (`bound_globals`): (job, m, phase, task) executes one task of member m's phase.
work: Any = None

RunTasks: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks in parallel or in order. A task may wait for an earlier one only."""


def in_sequence(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks one after another; a thread pool gives the same results."""
    for task in tasks:
        task()


# Entries of a gate; each that is written often has its own cache line.
_NEXT = 0  # next unclaimed ticket
_LIMIT = 8  # tickets that have been opened
_DONE = 16  # tickets whose task is done
_CLOSED = 24  # helpers leave
# Description of the open tasks, their first ticket, the leader's core.
_MEMBER, _PHASE, _FIRST, _CORE = 32, 33, 34, 35
_NUMBERS = 40

_PATIENCE = 300  # spins, about 10 us, after which a waiting thread yields
_REST = _PATIENCE + 2_000  # spins, about 1 ms, after which a helper sleeps


def make_gate() -> NDArray[np.int64]:
    """Return a gate without tasks, closed to helpers."""
    gate = alignment.aligned_zeros((_NUMBERS,), np.int64)
    gate[_CLOSED], gate[_CORE] = 1, -1
    return gate


def admit_helpers(gate: NDArray[np.int64]) -> None:
    """Let helpers wait for tasks, until `dismiss_helpers`; called outside a loop."""
    atomics.store(gate, _CLOSED, 0)


def dismiss_helpers(gate: NDArray[np.int64]) -> None:
    """Stop all helpers; called outside a loop, when all tasks are done."""
    atomics.store(gate, _CLOSED, 1)


def run_with_helpers(
    gate: NDArray[np.int64],
    lead: Callable[[], None],
    help_out: Callable[[], None],
    helpers: int,
    run_tasks: RunTasks,
) -> None:
    """Run `lead`, which opens tasks, and `help_out` in `helpers` threads; outside a loop."""
    if helpers == 0:
        lead()
        return

    def led() -> None:
        try:
            lead()
        finally:
            dismiss_helpers(gate)

    admit_helpers(gate)
    try:
        run_tasks([led, *[help_out] * helpers])
    finally:
        dismiss_helpers(gate)  # in case a signal came before `lead` started


def open_tasks(gate: Any, m: int, phase: int, tasks: int) -> int:
    """Open tasks of a member's phase; return the ticket after the last one."""
    limit = load(gate, _LIMIT) + tasks
    gate[_MEMBER], gate[_PHASE], gate[_FIRST], gate[_CORE] = m, phase, limit - tasks, core()
    add(gate, _LIMIT, tasks)
    return limit


def claim(gate: Any) -> int:
    """Return a ticket that the caller must execute, or -1 if all are claimed."""
    ticket = load(gate, _NEXT)
    while ticket < load(gate, _LIMIT):
        if replace(gate, _NEXT, ticket, ticket + 1):
            return ticket
        ticket = load(gate, _NEXT)
    return -1


def finish(gate: Any) -> None:
    """Mark a task of the caller as done."""
    add(gate, _DONE, 1)


def wait_for(gate: Any, limit: int) -> None:
    """Wait until the tasks of all tickets below `limit` are done."""
    looks = 0
    while load(gate, _DONE) < limit:
        looks += 1
        if looks > _PATIENCE:
            yield_cpu()
        else:
            pause()


def beside_leader(gate: Any) -> bool:
    """Return true if the leader opened the newest tasks on this core; False if unknown."""
    return bool(gate[_CORE] >= 0 and gate[_CORE] == core())


def next_of_others(gate: Any) -> int:
    """Wait for a ticket as a helper; -1 when the gate is closed.

    A helper on its leader's core competes with it. It sleeps, and wakes up on an idle core. Two
    threads that only yield to each other would stay on one core, with half of the machine idle.
    """
    looks = 0
    while load(gate, _CLOSED) == 0:
        ticket = claim(gate)
        if ticket >= 0:
            return ticket
        looks += 1
        # The leader may be stepping environments for long, or be waiting for this core.
        if looks > _REST or (looks > _PATIENCE and beside_leader(gate)):
            sleep()
        elif looks > _PATIENCE:
            yield_cpu()
        else:
            pause()
    return -1


def share(gate: Any, job: Any, m: int, phase: int, tasks: int) -> None:
    """Execute the tasks 0, 1, ... of a phase together with helpers.

    Args:
        job: argument of `work`; m: the member.
    """
    limit = open_tasks(gate, m, phase, tasks)
    ticket = claim(gate)
    while ticket >= 0:
        work(job, m, phase, ticket - (limit - tasks))
        finish(gate)
        ticket = claim(gate)
    wait_for(gate, limit)


def help_out(gate: Any, job: Any) -> None:
    """Execute tasks of another thread's phases until its gate closes."""
    ticket = next_of_others(gate)
    while ticket >= 0:
        work(job, gate[_MEMBER], gate[_PHASE], ticket - gate[_FIRST])
        finish(gate)
        ticket = next_of_others(gate)
