"""Ratings of players by openskill's Plackett-Luce model (Weng and Lin 2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.extras import install, require
from slipstream.training.track import Track

MEAN, DEVIATION = 25.0, 25.0 / 3.0  # of who has not played yet: openskill's own


def lacking() -> str | None:
    """Why there is no curve of ratings here; None where there is."""
    if find_spec("openskill") is not None:
        return None
    return (
        "The learner is not rated against its snapshots in validations: openskill is not "
        f"installed. {install('rating')}"
    )


def load_model() -> Any:
    """openskill's model.

    Raises:
        ResourceError: it is not installed.
    """
    return require("openskill.models", "A rating", "rating").PlackettLuce()


def rated(model: Any, one: Any, two: Any, result: float) -> tuple[Any, Any]:
    """Both ratings after a game that `one` won (above 0), lost (below 0) or drew."""
    # A lower rank is better; equal ones are a draw.
    ranks = [float(result < 0), float(result > 0)]
    [[one], [two]] = model.rate([[one], [two]], ranks=ranks)
    return one, two


class Ratings:
    """Of M learners and the K snapshots of each, by games among themselves.

    The policy of a validation is a new player, and so is a snapshot: both begin with the learner's
    mean so far and openskill's first deviation. Ratings of different members do not compare.

    Args:
        members: M; slots: K.

    Attributes:
        learner: float64 [M, 2], mean and deviation after the last validation; snapshots: float64
            [M, K, 2].
    """

    def __init__(self, members: int, slots: int) -> None:
        self.learner = np.tile([MEAN, DEVIATION], (members, 1))
        self.snapshots = np.tile([MEAN, DEVIATION], (members, slots, 1))

    def freeze(self, members: NDArray[np.bool_], slots: NDArray[np.int64]) -> None:
        """Takes in a new snapshot of some members, [M], in the place `slots` of each."""
        m = np.flatnonzero(members)
        self.snapshots[m, slots[m], 0] = self.learner[m, 0]
        self.snapshots[m, slots[m], 1] = DEVIATION

    def learn(self, games: Sequence[Sequence[Track]]) -> dict[str, NDArray[np.float64]]:
        """Rates the policies as they are now by games [M][J] against snapshots.

        Returns:
            Mean and deviation of each member, [M] by the name of their column.
        """
        model, slots = load_model(), self.snapshots.shape[1]
        for m, own in enumerate(games):
            one = model.rating(mu=self.learner[m, 0], sigma=DEVIATION)
            for metrics in (track.metrics for track in own if track.metrics["snapshot"] >= 0):
                at = m, int(metrics["snapshot"]) % slots
                two = model.rating(mu=self.snapshots[at][0], sigma=self.snapshots[at][1])
                one, two = rated(model, one, two, metrics["won"] - metrics["lost"])
                self.snapshots[at] = two.mu, two.sigma
            self.learner[m] = one.mu, one.sigma
        columns = self.learner.T.copy()
        return {"rating": columns[0], "rating_deviation": columns[1]}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that rating goes on from, member axis first."""
        return {"learner": self.learner.copy(), "snapshots": self.snapshots.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`; a state of before there were ratings has nothing."""
        for name, values in state.items():
            getattr(self, name)[:] = values
