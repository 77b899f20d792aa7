"""Pace: how fast batches of different sizes train, and so how large the next ones may be.

Larger batches are assembled more rarely, smaller ones stay in nearer memory; which is faster
depends on networks and machine, so it is measured while the study runs. Results do not depend on
it: a member's numbers are the same in any company.
"""

from __future__ import annotations

SIZES = (64, 32, 16)  # members at most, the largest first: more than 64 were nowhere faster
_TRIES = 3  # batches of a size before the next smaller one is tried
_ENOUGH = 8  # iterations of a batch that say something: in fewer, assembling it is what counts
_NEAR = 0.95  # of the best speed: what comes so close is as good, and the largest such is taken


class Pace:
    """Remembers speeds by machine, shape and size."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[int, list[float]]] = {}

    def add(
        self, machine: str, shape: str, members: int, iterations: int, steps: int, seconds: float
    ) -> None:
        """A batch was trained.

        Args:
            machine: where.
            shape: of its members.
            members: how many they were.
            iterations: of the one that did fewest.
            steps: of all members together.
            seconds: spent on training them, the time to assemble and save them among it.
        """
        size = next((size for size in reversed(SIZES) if members <= size), None)
        if size is None or members <= size // 2 or iterations < _ENOUGH or seconds <= 0.0:
            return
        found = self._known.setdefault((machine, shape), {size: [] for size in SIZES})
        found[size].append(steps / seconds)

    def most(self, machine: str, shape: str) -> int:
        """Members of the next batch of a shape at most."""
        found = self._known.get((machine, shape), {})
        for size in SIZES:
            if len(found.get(size, ())) < _TRIES:
                return size
        # The fastest of each: what slows one batch down is mostly somebody else at work.
        best = {size: max(speeds) for size, speeds in found.items()}
        fastest = max(best.values())
        return next(size for size in SIZES if best[size] >= _NEAR * fastest)
