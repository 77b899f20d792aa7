"""A worker that steps its copies one by one, as they are asked for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from slipstream.vector.process.layout import ASKED, HALF_DONE, HALF_WANTED, ORDER, STEP
from slipstream.vector.process.patience import spin
from slipstream.vector.process.scheduler import CopyScheduler, LongestWaiting

_FORGET = 0.9  # of a copy's measured cost that a new measurement leaves


def serve(worker: Any, scheduler: CopyScheduler | None, order: int) -> None:
    """Steps copies whose `wanted` is ahead of `served`, until something else is ordered.

    Args:
        worker: whose copies; it rings after each.
        scheduler: which is next.
        order: the number of the order that this follows.
    """
    scheduler = scheduler or LongestWaiting()
    words, copies = worker.words, worker.copies
    rows = np.array(copies.rows)
    asked = -1
    queue: list[int] = []
    since: dict[int, float] = {}
    cost = [0.0] * len(rows)
    while words[ORDER] == order:
        if words[ASKED] != asked:
            asked = words[ASKED]
            now = time.monotonic()
            missing = copies.at["wanted"][rows] != copies.at["served"][rows]
            waiting = np.flatnonzero(missing).tolist()
            since = {i: since.get(i, now) for i in waiting}
            waited = [now - since[i] for i in waiting]
            chosen = scheduler.order(waiting, waited, [cost[i] for i in waiting])
            queue = _whole(chosen, waiting)[::-1]
        if not queue:
            worker.sleep(lambda seen=asked: words[ASKED] != seen or words[ORDER] != order)
            continue
        i = queue.pop()
        began = time.perf_counter()
        copies.step_one(i)
        spent = time.perf_counter() - began
        cost[i] = spent if cost[i] == 0.0 else _FORGET * cost[i] + (1.0 - _FORGET) * spent
        since.pop(i, None)
        row = copies.rows[i]
        copies.at["served"][row] = copies.at["wanted"][row]
        worker.done.ring()


def serve_halves(worker: Any, order: int, spin_seconds: float) -> None:
    """Steps either half of the copies when it is ordered, until something else is ordered."""
    words, copies = worker.words, worker.copies

    def due() -> bool:
        return bool(
            words[ORDER] != order
            or words[HALF_WANTED] != words[HALF_DONE]
            or words[HALF_WANTED + 1] != words[HALF_DONE + 1]
        )

    first = 0  # in turn, where both are wanted
    while words[ORDER] == order:
        for half in (first, 1 - first):
            wanted = words[HALF_WANTED + half]
            if wanted != words[HALF_DONE + half]:
                copies.step_part(half, words[STEP])
                words[HALF_DONE + half] = wanted
                worker.done.ring()
                first = 1 - half
                break
        else:
            while not spin(due, spin_seconds):
                worker.sleep(due)


def _whole(chosen: Any, waiting: list[int]) -> list[int]:
    """What a scheduler said, without strangers, and with those that it forgot at the end."""
    left = dict.fromkeys(waiting)
    known = [int(i) for i in chosen if left.pop(int(i), 0) is None]
    return [*known, *left]
