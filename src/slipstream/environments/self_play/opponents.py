"""What a shard keeps of its members' opponents: results, and when the next snapshot is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.environments.self_play.config import SelfPlayConfig
from slipstream.environments.self_play.snapshot_pool import SnapshotPool
from slipstream.vector.vector_env import Episodes

RECENT = 100  # games that shares of wins, draws and losses are of


class Opponents:
    """Of M members.

    Args:
        members: M.
        config: when snapshots are taken.
        pool: of snapshots; None where none play.
        decided: the game says who won.

    Attributes:
        results: float64 [M, RECENT], 1, 0 or -1 of the last games; NaN before them.
        played: int64 [M], games so far.
        iterations, episodes, games: int64 [M], since the last snapshot; of `games` the result is
            known. points: float64 [M], won in those.
    """

    def __init__(
        self, members: int, config: SelfPlayConfig, pool: SnapshotPool | None, decided: bool
    ) -> None:
        self._config, self.pool, self._decided = config, pool, decided
        self.results = np.full((members, RECENT), np.nan)
        self.played, self.iterations, self.episodes, self.games = np.zeros((4, members), np.int64)
        self.points = np.zeros(members)

    def learn(self, ended: Episodes, copies: int) -> None:
        """Takes an iteration's games in, in the order (t, e).

        Args:
            ended: of all members; copies: of each.
        """
        serials = ended.metrics["snapshot"].astype(np.int64).tolist()
        members = ended.e // copies
        np.add.at(self.episodes, members, 1)
        if not self._decided:
            return
        results = ended.metrics["won"] - ended.metrics["lost"]
        for i, m in enumerate(members.tolist()):
            result = float(results[i])
            points = 0.5 * (result + 1.0)
            self.results[m, self.played[m] % RECENT] = result
            self.played[m] += 1
            self.games[m] += 1
            self.points[m] += points
            if self.pool is not None and serials[i] >= 0:
                self.pool.learn(m, serials[i], points)

    def advance(self) -> None:
        """Ends an iteration: snapshots of the weights as they are now, where they are due."""
        self.iterations += 1
        if self.pool is None:
            return
        due = self._due()
        for since in (self.iterations, self.episodes, self.games, self.points):
            since[due] = 0
        self.pool.snapshot(due)

    def _due(self) -> NDArray[np.bool_]:
        config = self._config
        due = np.zeros(len(self.iterations), np.bool_)
        if config.snapshot_iterations is not None:
            due |= self.iterations >= config.snapshot_iterations
        if config.snapshot_episodes is not None:
            due |= self.episodes >= config.snapshot_episodes
        if config.snapshot_win_rate is not None:
            enough = self.games >= config.gate_episodes
            due |= enough & (self.points >= config.snapshot_win_rate * self.games)
        return due

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Shares of recent games [M] by name, NaN before the first; and snapshots taken."""
        found = {}
        if self._decided:
            found = outcome_shares(self.results)
        if self.pool is not None:
            found["snapshots"] = self.pool.taken.astype(np.float64)
        return found

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from, member axis first."""
        state = {name: getattr(self, name).copy() for name in _STATE}
        if self.pool is not None:
            state |= {f"pool.{name}": value for name, value in self.pool.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        for name in _STATE:
            getattr(self, name)[:] = state[name]
        if self.pool is not None:
            own = {k.removeprefix("pool."): v for k, v in state.items() if k.startswith("pool.")}
            self.pool.load_state_dict(own)


_STATE = ("results", "played", "iterations", "episodes", "games", "points")


def outcome_shares(results: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Shares [M] of wins, draws and losses among results [M, n]; NaN counts as no game."""
    known = np.isfinite(results).sum(axis=1)
    games = np.where(known > 0, known, np.nan)
    names = {"wins": results > 0, "draws": results == 0, "losses": results < 0}
    return {name: where.sum(axis=1) / games for name, where in names.items()}
