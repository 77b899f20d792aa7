"""A block of consecutive experience from one policy version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.vector.vector_env import Finals, StepOut


@dataclass(frozen=True)
class RolloutArrays:
    """NumPy views of a rollout's tensors: the same memory, for the environments to write into."""

    obs: NDArray[Any]
    actions: NDArray[Any]
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    mask: NDArray[np.bool_] | None


class Rollout:
    """T steps of E = M * N environments, member after member: environment e = m * N + n.

    The environments write their observation, reward and flags straight into these rows, the policy
    its actions; nothing is copied between the two.

    Args:
        horizon: T, steps.
        members: M.
        num_envs: N, environments of one member.
        obs_shape, obs_dtype: of one observation row (float32 or uint8).
        action_width, action_dtype: K numbers of one action, int64 or float32.
        mask_width: choices covered by the environment's action mask, 0 where it has none.

    Attributes:
        obs: [T + 1, E, *obs_shape]; row T is what the next rollout begins with.
        actions: [T, E, K], the policy's own (a Gaussian's before clipping), as log_prob needs it.
        log_prob: float32 [T, E], of those actions when they were taken.
        reward: float32 [T, E], unscaled.
        terminated, truncated, valid: bool [T, E].
        mask: bool [T + 1, E, mask_width] of allowed choices, or None.
        final_obs, final_index: observations [n, *obs_shape] before the reset of truncated rows, and
            their (t, e), int64 [n, 2].
        numpy: the same memory as NumPy arrays.
    """

    def __init__(
        self,
        horizon: int,
        members: int,
        num_envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype[Any],
        action_width: int,
        action_dtype: np.dtype[Any],
        mask_width: int = 0,
    ) -> None:
        self.horizon, self.members, self.num_envs = horizon, members, num_envs
        t, e = horizon, members * num_envs
        self.obs = torch.zeros((t + 1, e, *obs_shape), dtype=_torch_dtype(obs_dtype))
        self.actions = torch.zeros((t, e, action_width), dtype=_torch_dtype(action_dtype))
        self.log_prob = torch.zeros((t, e))
        self.reward = torch.zeros((t, e))
        self.terminated = torch.zeros((t, e), dtype=torch.bool)
        self.truncated = torch.zeros((t, e), dtype=torch.bool)
        self.valid = torch.ones((t, e), dtype=torch.bool)
        self.mask = torch.ones((t + 1, e, mask_width), dtype=torch.bool) if mask_width else None
        self.final_obs = self.obs.new_zeros((0, *obs_shape))
        self.final_index = torch.zeros((0, 2), dtype=torch.int64)
        self.numpy = RolloutArrays(
            self.obs.numpy(),
            self.actions.numpy(),
            self.log_prob.numpy(),
            self.reward.numpy(),
            self.terminated.numpy(),
            self.truncated.numpy(),
            self.valid.numpy(),
            None if self.mask is None else self.mask.numpy(),
        )

    @classmethod
    def of(
        cls, spec: Spec, horizon: int, members: int, num_envs: int, mask_width: int = 0
    ) -> Rollout:
        """A rollout that fits the environment `spec`."""
        return cls(
            horizon,
            members,
            num_envs,
            spec.observation_shape,
            spec.observation_dtype,
            spec.action_width,
            spec.action_dtype,
            mask_width,
        )

    @property
    def steps(self) -> int:
        """Environment steps held, T * E."""
        return self.horizon * self.members * self.num_envs

    def step_out(self, t: int, lo: int = 0, hi: int | None = None) -> StepOut:
        """Where step t of environments lo..hi writes: its observation goes to row t + 1."""
        to = self.numpy
        return StepOut(
            to.obs[t + 1, lo:hi],
            to.reward[t, lo:hi],
            to.terminated[t, lo:hi],
            to.truncated[t, lo:hi],
            to.valid[t, lo:hi],
            None if to.mask is None else to.mask[t + 1, lo:hi],
        )

    def set_finals(self, *finals: Finals) -> None:
        """Keeps truncated rows' final observations, of the environments that filled this block."""
        self.final_obs = torch.from_numpy(np.concatenate([part.obs for part in finals]))
        self.final_index = torch.from_numpy(np.concatenate([part.index for part in finals]))

    def carry_over(self) -> None:
        """Begins the next block with the last observation, and forgets final observations."""
        self.obs[0].copy_(self.obs[self.horizon])
        if self.mask is not None:
            self.mask[0].copy_(self.mask[self.horizon])
        self.final_obs, self.final_index = self.final_obs[:0], self.final_index[:0]


def rollout_bytes(
    horizon: int,
    members: int,
    num_envs: int,
    obs_shape: tuple[int, ...],
    obs_dtype: np.dtype[Any],
    action_width: int,
    action_dtype: np.dtype[Any],
    mask_width: int = 0,
) -> int:
    """Bytes that a `Rollout` of this size allocates (final observations apart)."""
    e = members * num_envs
    obs = int(np.prod(obs_shape, dtype=np.int64)) * np.dtype(obs_dtype).itemsize + mask_width
    step = action_width * np.dtype(action_dtype).itemsize + 4 + 4 + 3
    return (horizon + 1) * e * obs + horizon * e * step


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype
