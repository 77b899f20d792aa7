"""A worker that steps its copies one by one, as they are asked for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from slipstream.vector.process.layout import RING, SEQUENCE, STEP
from slipstream.vector.process.scheduler import LongestWaiting, Scheduler

_FORGET = 0.9  # of a copy's measured cost that a new measurement leaves


def serve(worker: Any, scheduler: Scheduler | None, order: int) -> None:
    """Steps copies whose `wanted` is ahead of `served`, until something else is ordered.

    The parent is woken when nothing is left to do; after every copy where it says so (RING).

    Args:
        worker: whose copies.
        scheduler: which is next.
        order: the number of the order that this follows.
    """
    scheduler = scheduler or LongestWaiting()
    words, copies = worker.words, worker.copies
    asked = -1
    queue: list[int] = []
    since: dict[int, float] = {}
    cost = [0.0] * len(copies.rows)
    while words[SEQUENCE] == order:
        if words[STEP] != asked:  # more was asked for
            asked = words[STEP]
            now = time.monotonic()
            wanted, served = copies.at["wanted"][copies.index], copies.at["served"][copies.index]
            waiting = np.flatnonzero(wanted != served).tolist()
            since = {i: since.get(i, now) for i in waiting}
            waited = [now - since[i] for i in waiting]
            chosen = scheduler.order(waiting, waited, [cost[i] for i in waiting])
            queue = _whole(chosen, waiting)[::-1]
        if not queue:
            worker.done.ring()
            if words[STEP] == asked and words[SEQUENCE] == order:
                worker.sleep()
            continue
        i = queue.pop()
        began = time.perf_counter()
        copies.step_one(i)
        spent = time.perf_counter() - began
        cost[i] = spent if cost[i] == 0.0 else _FORGET * cost[i] + (1.0 - _FORGET) * spent
        since.pop(i, None)
        row = copies.rows[i]
        copies.at["served"][row] = copies.at["wanted"][row]
        if words[RING]:
            worker.done.ring()


def _whole(chosen: Any, waiting: list[int]) -> list[int]:
    """What a scheduler said, without strangers, and with those that it forgot at the end."""
    left = dict.fromkeys(waiting)
    known = [int(i) for i in chosen if left.pop(int(i), 0) is None]
    return [*known, *left]
