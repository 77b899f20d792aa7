"""Running scales of rewards and observations, one per member, kept in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.experience.compiled import loops


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
        self.count = torch.zeros(members, dtype=torch.float64)
        self.mean = torch.zeros((members, width), dtype=torch.float64)
        self.m2 = torch.zeros((members, width), dtype=torch.float64)
        self._column_moments = loops()["column_moments"]

    def merge(self, rows: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Adds the valid ones of rows [T, M * N, D], valid [T, M * N], to each member's sample."""
        count_b, mean_b, m2_b = (np.zeros(x.shape) for x in (self.count, self.mean, self.m2))
        self._column_moments(rows, valid, count_b, mean_b, m2_b)
        n, n_b = self.count[:, None], torch.from_numpy(count_b)[:, None]
        together = (n + n_b).clamp_(min=1.0)
        d = torch.from_numpy(mean_b) - self.mean
        self.m2 += torch.where(
            n_b > 0, torch.from_numpy(m2_b) + d.square() * (n * n_b / together), 0.0
        )
        self.mean += torch.where(n_b > 0, d * (n_b / together), 0.0)
        self.count += n_b[:, 0]

    @property
    def std(self) -> Tensor:
        """Population standard deviation, float64 [M, D]; 1 before the second sample."""
        n = self.count.clamp(min=1.0)[:, None]
        return torch.where(self.count[:, None] > 1, (self.m2 / n).sqrt(), 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """The three arrays, member axis first."""
        return {"count": self.count.clone(), "mean": self.mean.clone(), "m2": self.m2.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from `state_dict()`."""
        self.count.copy_(state["count"])
        self.mean.copy_(state["mean"])
        self.m2.copy_(state["m2"])


class RewardScale:
    """Divides rewards by a running standard deviation of the discounted return.

    Each environment accumulates R_t = gamma R_{t-1} + r_t, begun anew where an episode ends; a
    member's scale is the deviation of all its R so far (the scheme of Engstrom et al. 2020,
    "Implementation matters in deep policy gradients"). It changes the size of rewards, never their
    sign or mean. Reported returns are not scaled.

    Args:
        members: M; num_envs: N per member.
    """

    def __init__(self, members: int, num_envs: int) -> None:
        self.moments = RunningMoments(members, 1)
        self.accumulated = torch.zeros((members, num_envs))
        self.num_envs = num_envs

    def scale(self, reward: Tensor, ended: Tensor, valid: Tensor, gamma: Tensor) -> Tensor:
        """Scaled copy of a rollout's rewards, after taking them into account.

        Args:
            reward: float32 [T, E]; ended: bool [T, E], terminated or truncated; valid: bool [T, E].
            gamma: float32 [E].

        Returns:
            float32 [T, E].
        """
        members, discounted = len(self.accumulated), np.empty(reward.shape, np.float32)
        flags, carried = valid.numpy(), self.accumulated.view(-1).numpy()
        loops()["discounted_returns"](
            reward.numpy(), ended.numpy(), flags, gamma.numpy(), carried, discounted
        )
        self.moments.merge(discounted[..., None], flags)
        scale = 1.0 / self.moments.std.clamp(min=1e-8).to(torch.float32)
        return reward * scale.expand(members, self.num_envs).reshape(-1)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments [M, ...] and accumulators [M, N]."""
        return {**self.moments.state_dict(), "accumulated": self.accumulated.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from `state_dict()`."""
        self.moments.load_state_dict(state)
        self.accumulated.copy_(state["accumulated"])
