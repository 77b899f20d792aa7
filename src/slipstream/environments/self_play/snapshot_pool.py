"""Frozen weights that a population's members meet: [M, K, P], a pool of K for each member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.memory import zeros
from slipstream.environments.self_play.brains import Brains
from slipstream.environments.self_play.config import SelfPlayConfig
from slipstream.environments.self_play.networks import brains_of, images
from slipstream.nets.policy import Policy

WINDOW = 100  # games that an estimate remembers, once there were more


class SnapshotPool:
    """Snapshots of M members, K of each at most. The first one is of the untrained weights.

    Nothing changes while a rollout is collected: results and snapshots enter between iterations. A
    snapshot takes the place of the oldest one where all K are taken; an episode under way then goes
    on against what is in that place, and says nothing about either.

    Args:
        policy: of the members, as it is trained.
        config: how many, and which of them play.

    Attributes:
        weights: float32 [M, K, P]; mean, inverse_std: float32 [M, K, D], observation scales.
        serial: int64 [M, K], number of the snapshot in a place; -1: empty.
        taken: int64 [M], snapshots taken so far.
        rate: float64 [M, K], estimated share of points that the member wins against each.
        games: int64 [M, K], results that the estimate follows from.
        shares: float64 [M, K], how often each is met, summed up.
    """

    def __init__(self, policy: Policy, config: SelfPlayConfig) -> None:
        if policy.scale is None:
            raise images()
        self._policy, self._config = policy, config
        m, k = policy.members, config.slots
        self.weights: NDArray[np.float32] = zeros((m, k, policy.parameters.flat.shape[1]))
        self.mean = np.zeros((m, k, policy.scale.mean.shape[1]), np.float32)
        self.inverse_std = self.mean.copy()
        self.serial = np.full((m, k), -1, np.int64)
        self.taken = np.zeros(m, np.int64)
        self.rate = np.full((m, k), 0.5)
        self.games = np.zeros((m, k), np.int64)
        self.shares = np.zeros((m, k))
        self.snapshot(np.ones(m, np.bool_))

    @property
    def members(self) -> int:
        """M."""
        return len(self.weights)

    @property
    def brains(self) -> Brains:
        """All M x K networks, member after member; they change with the pool."""
        m, k = self.serial.shape
        return brains_of(
            self._policy,
            self.weights.reshape(m * k, -1),
            self.mean.reshape(m * k, -1),
            self.inverse_std.reshape(m * k, -1),
            not self._config.deterministic,
        )

    def snapshot(self, members: NDArray[np.bool_]) -> None:
        """Freezes the weights that some members have now, [M]."""
        scale, flat = self._policy.scale, self._policy.parameters.flat
        assert scale is not None
        for m in np.flatnonzero(members).tolist():
            k = int(self.taken[m]) % self.serial.shape[1]
            self.weights[m, k] = flat[m]
            self.mean[m, k], self.inverse_std[m, k] = scale.mean[m], scale.inverse_std[m]
            self.serial[m, k] = self.taken[m]
            self.rate[m, k], self.games[m, k] = 0.5, 0
            self.taken[m] += 1
        self.close_books()

    def learn(self, member: int, serial: int, points: float) -> None:
        """Takes one game into the estimate: `points` is 1 for a win, 1/2 for a draw, 0.

        rate += (points - rate) / (n + 2) after n games: their mean and one game at 1/2; from WINDOW
        games on older ones fade.
        """
        slot = serial % self.serial.shape[1]
        if self.serial[member, slot] != serial:
            return  # another one sits there now
        n = min(int(self.games[member, slot]), WINDOW)
        self.rate[member, slot] += (points - self.rate[member, slot]) / (n + 2)
        self.games[member, slot] += 1

    def close_books(self) -> None:
        """Makes the shares of the next iteration from the estimates.

        The weights of `pfsp` are those of Vinyals et al. 2019, "Grandmaster level in StarCraft II
        using multi-agent reinforcement learning".
        """
        config, there = self._config, self.serial >= 0
        if config.sampling == "latest":
            weight = (self.serial == self.taken[:, None] - 1).astype(np.float64)
        elif config.sampling == "uniform":
            weight = there.astype(np.float64)
        else:
            hard = config.pfsp_weighting == "hard"
            lost = 1.0 - self.rate
            weight = np.where(there, lost**2.0 if hard else self.rate * lost, 0.0)
            weight += np.where(there, 1e-6, 0.0)  # who is always beaten is still met at times
        self.shares[:] = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from, member axis first."""
        names = ("weights", "mean", "inverse_std", "serial", "taken", "rate", "games")
        return {name: getattr(self, name).copy() for name in names}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        for name, values in state.items():
            getattr(self, name)[:] = values
        self.close_books()
