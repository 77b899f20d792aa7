"""Equal moments of a training at which both sides' scores are read."""

from __future__ import annotations

from collections.abc import Sequence

MOMENTS = 10
TESTS = 25  # of a training that stops at a score


def next_moment(curve: Sequence[float], steps: int, budget: int) -> bool:
    """Whether another of MOMENTS equal parts of the budget has passed; `curve` has those before."""
    return len(curve) < MOMENTS and steps * MOMENTS >= (len(curve) + 1) * budget
