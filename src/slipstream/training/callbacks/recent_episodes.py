"""The last training episodes of each member: what progress is shown by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import Episodes

RECENT = 100  # training episodes that the score is the mean of
PREFIX = "episode/"  # of the columns with an environment's own metrics


class RecentEpisodes:
    """Returns, lengths and metrics of the last `RECENT` episodes, oldest overwritten.

    Args:
        spec: of the environment; each of its metrics becomes a column ``episode/NAME``.
        members: m.
        num_envs: copies of each.

    Attributes:
        counts: int64 [m], training episodes ended so far.
    """

    def __init__(self, spec: Spec, members: int, num_envs: int) -> None:
        self._names = [metric.name for metric in spec.metrics]
        self._num_envs = num_envs
        # [m, RECENT, 2 + metrics]: return, length, the environment's own.
        self._rows = np.full((members, RECENT, 2 + len(self._names)), np.nan)
        self.counts = np.zeros(members, np.int64)
        self._before = self.counts.copy()  # the last `add`
        self._cut = np.full(members * num_envs, spec.stagger)  # first episodes, of a drawn length

    def add(self, ended: Episodes) -> None:
        """Takes what ended, but for what a fault cut or a length that was drawn."""
        unknown = np.full(len(ended.e), np.nan)
        own = (ended.metrics.get(name, unknown) for name in self._names)
        columns = [ended.ret, ended.length, *own]
        rows = np.stack(columns, axis=1).astype(np.float64) if len(ended.e) else np.zeros((0, 0))
        self._before[:] = self.counts
        lost = ended.lost
        for k, e in enumerate(ended.e.tolist()):
            if lost is not None and lost[k]:
                continue
            if self._cut[e]:  # its return says little
                self._cut[e] = False
                continue
            m = e // self._num_envs
            self._rows[m, self.counts[m] % RECENT] = rows[k]
            self.counts[m] += 1

    def added(self, m: int) -> list[dict[str, float]]:
        """What the last `add` took of a member: ``return``, ``length`` and metrics of each episode.

        Of more than `RECENT` the last ones.
        """
        first = max(int(self._before[m]), int(self.counts[m]) - RECENT)
        rows = self._rows[m, np.arange(first, int(self.counts[m])) % RECENT]
        names = ("return", "length", *self._names)
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the recent episodes, [m, RECENT]; NaN where there are none yet."""
        return self._rows[..., 0]

    def scores(self) -> NDArray[np.float64]:
        """Mean return of each member's recent episodes, [m]; NaN before the first."""
        return self._mean(0)

    def means(self) -> dict[str, NDArray[np.float64]]:
        """Means of recent episodes, [m] each: ``length``, and ``episode/NAME`` of each metric."""
        own = {f"{PREFIX}{name}": self._mean(2 + k) for k, name in enumerate(self._names)}
        return {"length": self._mean(1), **own}

    def _mean(self, column: int) -> NDArray[np.float64]:
        values = self._rows[:, :, column]
        known = ~np.isnan(values)
        sums, counts = np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """The first axis of every array counts members or copies."""
        own = {"metrics": self._rows[:, :, 2:].copy()} if self._names else {}
        return {
            **own,
            "recent": self._rows[:, :, 0].copy(),
            "lengths": self._rows[:, :, 1].copy(),
            "episodes": self.counts.copy(),
            "cut": self._cut.copy(),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from it; older states have no metrics, whose means begin anew."""
        self._rows[:, :, 0], self._rows[:, :, 1] = state["recent"], state["lengths"]
        kept = state.get("metrics")
        if kept is not None and kept.shape == self._rows[:, :, 2:].shape:
            self._rows[:, :, 2:] = kept
        self.counts[:] = state["episodes"]
        self._cut[:] = state["cut"]
