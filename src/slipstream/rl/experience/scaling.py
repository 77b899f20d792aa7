"""Running scales of rewards and observations, one per member, kept in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.rl.experience.compiled import loops

_LARGEST = 10.0  # a scaled reward, at most: the bound of OpenAI Baselines' VecNormalize, not cut
_QUIET = np.errstate(over="ignore", invalid="ignore")  # a sick member is noticed by its gradient


class RunningMoments:
    """Mean and variance of a growing sample, per member and column.

    Batches are merged by Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise
    algorithm for computing sample variances":

        d = mean_b - mean,  n' = n + n_b,  mean' = mean + d n_b / n',  M2' = M2 + M2_b + d^2 n n_b
        / n'

    Args:
        members: M.
        width: D columns.

    Attributes:
        count: float64 [M]; mean, m2: float64 [M, D], m2 the sum of squared deviations.
    """

    def __init__(self, members: int, width: int) -> None:
        self.count = np.zeros(members)
        self.mean = np.zeros((members, width))
        self.m2 = np.zeros((members, width))

    def prepare(self) -> None:
        """Compiles what `merge` needs, where that was never done."""
        loops()["column_moments"]

    @_QUIET
    def merge(self, rows: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Adds the valid ones of rows [T, M * N, D], valid [T, M * N], to each member's sample."""
        count_b, mean_b, m2_b = (np.zeros(x.shape) for x in (self.count, self.mean, self.m2))
        loops()["column_moments"](rows, valid, count_b, mean_b, m2_b)
        n, n_b = self.count[:, None], count_b[:, None]
        together = np.maximum(n + n_b, 1.0)
        d = mean_b - self.mean
        self.m2 += np.where(n_b > 0, m2_b + d * d * (n * n_b / together), 0.0)
        self.mean += np.where(n_b > 0, d * (n_b / together), 0.0)
        self.count += n_b[:, 0]

    @property
    @_QUIET
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation, float64 [M, D]; 1 before the second sample."""
        n = np.maximum(self.count, 1.0)[:, None]
        return np.where(self.count[:, None] > 1, np.sqrt(self.m2 / n), 1.0)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The three arrays, member axis first."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self.count[:] = state["count"]
        self.mean[:] = state["mean"]
        self.m2[:] = state["m2"]


class RewardScale:
    """Divides rewards by a running standard deviation of the discounted return.

    Each environment accumulates R_t = gamma R_{t-1} + r_t, begun anew where an episode ends; a
    member's scale is the deviation of all its R so far (the scheme of Engstrom et al. 2020,
    "Implementation matters in deep policy gradients"), or a tenth of the largest reward so far
    where that is more: where rewards are rare, nearly all R are 0, and their deviation is so small
    that the first rewards would be hundreds, beside which a gradient has nothing else. It changes
    the size of rewards, never their sign or mean. Reported returns are not scaled.

    Args:
        members: M; num_envs: N per member.

    Attributes:
        largest: float32 [M], of the absolute rewards so far.
    """

    def __init__(self, members: int, num_envs: int) -> None:
        self._discounted = loops()["discounted_returns"]
        self.moments = RunningMoments(members, 1)
        self.moments.prepare()
        self.accumulated = np.zeros((members, num_envs), np.float32)
        self.largest = np.zeros(members, np.float32)
        self.num_envs = num_envs

    @property
    @_QUIET
    def divisor(self) -> NDArray[np.float64]:
        """What rewards are divided by, [M]."""
        deviation = np.maximum(self.moments.std[:, 0], 1e-8)
        return np.asarray(np.maximum(deviation, self.largest / _LARGEST))

    @_QUIET
    def scale(
        self,
        reward: NDArray[np.float32],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        gamma: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Scaled copy of a rollout's rewards, after taking them into account.

        Args:
            reward: float32 [T, E]; ended: bool [T, E], terminated or truncated; valid: bool [T, E].
            gamma: float32 [E].

        Returns:
            float32 [T, E].
        """
        discounted, carried = np.empty_like(reward), self.accumulated.reshape(-1)
        self._discounted(reward, ended, valid, gamma, carried, discounted)
        self.moments.merge(discounted[..., None], valid)
        size = np.where(valid, np.abs(reward), 0.0).reshape(len(reward), len(self.largest), -1)
        self.largest = np.maximum(self.largest, size.max(axis=(0, 2), initial=0.0))
        scale = np.float32(1.0) / self.divisor.astype(np.float32)
        return reward * np.repeat(scale, self.num_envs)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Moments [M, ...], accumulators [M, N] and largest rewards [M]."""
        own = {"accumulated": self.accumulated.copy(), "largest": self.largest.copy()}
        return {**self.moments.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self.moments.load_state_dict(state)
        self.accumulated[:] = state["accumulated"]
        self.largest = state["largest"].astype(np.float32)
