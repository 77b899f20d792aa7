"""Running scales of rewards and observations, one per member, kept in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class RunningMoments:
    """Mean and variance of a growing sample, per member and column.

    Batches are merged by Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm
    for computing sample variances":

        d = mean_b - mean,  n' = n + n_b,  mean' = mean + d n_b / n',  M2' = M2 + M2_b + d^2 n n_b / n'

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

    def merge(self, member: int, rows: Tensor) -> None:
        """Adds float rows [n, D] to one member's sample. A member at a time: its bits then depend on no other's."""
        n_b = float(len(rows))
        if n_b == 0:
            return
        batch = rows.to(torch.float64)
        mean_b = batch.mean(0)
        m2_b = (batch - mean_b).square_().sum(0)
        n = float(self.count[member])
        d = mean_b - self.mean[member]
        self.count[member] = n + n_b
        self.mean[member] += d * (n_b / (n + n_b))
        self.m2[member] += m2_b + d.square() * (n * n_b / (n + n_b))

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
    "Implementation matters in deep policy gradients"). It changes the size of rewards and never their
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
        members = len(self.accumulated)
        discounted = reward.masked_fill(~valid, 0.0)
        keep = torch.where(ended, 0.0, gamma)  # what step t hands on to t + 1
        row = self.accumulated.view(-1)
        rows = discounted.unbind(0)
        rows[0].addcmul_(row, gamma)
        for previous, factor, now in zip(rows, keep.unbind(0), rows[1:], strict=False):
            now.addcmul_(factor, previous)
        row.copy_(rows[-1].masked_fill(ended[-1], 0.0))
        by_member = discounted.view(-1, members, self.num_envs)
        real = valid.view(-1, members, self.num_envs)
        for m in range(members):
            self.moments.merge(m, by_member[:, m][real[:, m]][:, None])
        scale = 1.0 / self.moments.std.clamp(min=1e-8).to(torch.float32)
        return reward * scale.expand(members, self.num_envs).reshape(-1)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments [M, ...] and accumulators [M, N]."""
        return {**self.moments.state_dict(), "accumulated": self.accumulated.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from `state_dict()`."""
        self.moments.load_state_dict(state)
        self.accumulated.copy_(state["accumulated"])
