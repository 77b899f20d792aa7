"""A gate through which threads come by the tasks of an update, as plain loops.

One thread leads: it opens some tasks that do not depend on each other, takes part in them and waits
until all are done. Any number of helpers, none as well, claim tasks from the same gate; who does
which changes no bit. A task is a ticket, and tickets are never counted anew, so no thread can
mistake an old task for a new one. A task must not raise: nobody would finish its ticket.

An update calls `share` for each of its phases, and its helpers `help_out`; both call `work`, which
the update's module binds (`given`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import alignment, atomics
from slipstream.jit.atomics import add, core, give_way, load, pause, replace, rest

# Bound by the renderer to the update's own, where it compiles `share` and `help_out` with it
# (`given` of `compile_loops`): (job, m, phase, task) does one task of member m's phase.
work: Any = None

RunTasks: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks side by side, or in turn in their order: a later one may wait for an earlier one."""


def in_sequence(tasks: Sequence[Callable[[], None]]) -> None:
    """Runs tasks one after another; a crew of threads gives the same results."""
    for task in tasks:
        task()


# Numbers of a gate; each that is written often has a cache line of its own.
_NEXT = 0  # ticket that nobody has claimed yet
_LIMIT = 8  # tickets that have been opened
_DONE = 16  # tickets whose task is done
_CLOSED = 24  # helpers leave
# What the tasks are, the first one's ticket, the core of the thread that opened them.
_MEMBER, _PHASE, _FIRST, _CORE = 32, 33, 34, 35
_NUMBERS = 40

_PATIENCE = 300  # looks, about ten microseconds, after which a waiting thread lets others run
_REST = _PATIENCE + 2_000  # looks, about a millisecond, after which a helper sleeps between looks


def make_gate() -> NDArray[np.int64]:
    """A gate without tasks, closed to helpers."""
    gate = alignment.aligned_zeros((_NUMBERS,), np.int64)
    gate[_CLOSED], gate[_CORE] = 1, -1
    return gate


def admit_helpers(gate: NDArray[np.int64]) -> None:
    """Lets helpers wait for tasks, until `dismiss_helpers`; called outside a loop."""
    atomics.store(gate, _CLOSED, 0)


def dismiss_helpers(gate: NDArray[np.int64]) -> None:
    """Sends helpers away; called outside a loop, when all tasks are done."""
    atomics.store(gate, _CLOSED, 1)


def run_with_helpers(
    gate: NDArray[np.int64],
    lead: Callable[[], None],
    help_out: Callable[[], None],
    helpers: int,
    run_tasks: RunTasks,
) -> None:
    """Runs `lead`, which opens tasks, and beside it as many times `help_out`; outside a loop."""
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
        dismiss_helpers(gate)  # a signal may have come before `lead` began


def open_tasks(gate: Any, m: int, phase: int, tasks: int) -> int:
    """Opens so many tasks of a member's phase; the ticket after the last one."""
    limit = load(gate, _LIMIT) + tasks
    gate[_MEMBER], gate[_PHASE], gate[_FIRST], gate[_CORE] = m, phase, limit - tasks, core()
    add(gate, _LIMIT, tasks)
    return limit


def claim(gate: Any) -> int:
    """A ticket whose task the caller now has to do, or -1 if all are claimed."""
    ticket = load(gate, _NEXT)
    while ticket < load(gate, _LIMIT):
        if replace(gate, _NEXT, ticket, ticket + 1):
            return ticket
        ticket = load(gate, _NEXT)
    return -1


def finish(gate: Any) -> None:
    """The caller has done its task."""
    add(gate, _DONE, 1)


def wait_for(gate: Any, limit: int) -> None:
    """Waits until the tasks of all tickets below `limit` are done."""
    looks = 0
    while load(gate, _DONE) < limit:
        looks += 1
        if looks > _PATIENCE:
            give_way()
        else:
            pause()


def beside_leader(gate: Any) -> bool:
    """Whether the thread that opened the newest tasks ran on this core; False if nobody knows."""
    return bool(gate[_CORE] >= 0 and gate[_CORE] == core())


def next_of_others(gate: Any) -> int:
    """Waits for a ticket as a helper; -1 when the gate has closed.

    A helper on its leader's core takes that from it. It sleeps, and wakes on another that is idle;
    two threads that only give way to each other stay where they are, with half of the machine idle.
    """
    looks = 0
    while load(gate, _CLOSED) == 0:
        ticket = claim(gate)
        if ticket >= 0:
            return ticket
        looks += 1
        # The leader acts and steps, and no task may come for long; or it waits for this core.
        if looks > _REST or (looks > _PATIENCE and beside_leader(gate)):
            rest()
        elif looks > _PATIENCE:
            give_way()
        else:
            pause()
    return -1


def share(gate: Any, job: Any, m: int, phase: int, tasks: int) -> None:
    """Does the tasks 0, 1, ... of a phase, together with whoever helps.

    Args:
        job: what `work` takes; m: the member.
    """
    limit = open_tasks(gate, m, phase, tasks)
    ticket = claim(gate)
    while ticket >= 0:
        work(job, m, phase, ticket - (limit - tasks))
        finish(gate)
        ticket = claim(gate)
    wait_for(gate, limit)


def help_out(gate: Any, job: Any) -> None:
    """Takes part in another thread's phases until its gate closes."""
    ticket = next_of_others(gate)
    while ticket >= 0:
        work(job, gate[_MEMBER], gate[_PHASE], ticket - gate[_FIRST])
        finish(gate)
        ticket = next_of_others(gate)
