"""A block of consecutive experience from one policy version."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.fused import RolloutRows
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs, StepBuffers


class Rollout:
    """T steps of E = M * N environments, member by member: environment e = m * N + n.

    Environments write observations, rewards and flags directly into these rows, and the policy
    writes its actions. No copies are made.

    Args:
        spec: Spec of the environment.
        n_steps: T, number of steps.
        members: M, number of members.
        num_envs: N, environments per member.
        mask_size: Width of the environment's action mask; 0 if it has none.

    Attributes:
        obs: [T + 1, E, *shape], float32 or uint8. Row T is the first row of the next rollout.
        actions: [T, E, K], the policy's actions as log_prob uses them (before clipping).
        log_prob: float32 [T, E], log probability of the actions when they were taken.
        reward: float32 [T, E], unscaled.
        terminated, truncated, valid: bool [T, E].
        mask: bool [T + 1, E, mask_size] of allowed actions, or None.
        final_obs, final_index: Observations [n, *shape] of truncated rows before the reset, and
            their (t, e), int64 [n, 2].
    """

    def __init__(
        self, spec: EnvSpec, n_steps: int, members: int, num_envs: int, mask_size: int = 0
    ) -> None:
        self.n_steps, self.members, self.num_envs = n_steps, members, num_envs
        t, e = n_steps, members * num_envs
        shape, action_dim = spec.observation_shape, spec.action_dim
        self.obs: NDArray[Any] = np.zeros((t + 1, e, *shape), spec.observation_dtype)
        self.actions: NDArray[Any] = np.zeros((t, e, action_dim), spec.action_dtype)
        self.log_prob = np.zeros((t, e), np.float32)
        self.reward = np.zeros((t, e), np.float32)
        self.terminated = np.zeros((t, e), np.bool_)
        self.truncated = np.zeros((t, e), np.bool_)
        self.valid = np.ones((t, e), np.bool_)
        self.mask = np.ones((t + 1, e, mask_size), np.bool_) if mask_size else None
        self.final_obs = self.obs[0, :0]
        self.final_index = np.zeros((0, 2), np.int64)

    @property
    def steps(self) -> int:
        """Number of environment steps, T * E."""
        return self.n_steps * self.members * self.num_envs

    @property
    def rows(self) -> RolloutRows:
        """The arrays for compiled loops that act and step."""
        mask = np.zeros((0, 0), np.bool_) if self.mask is None else self.mask
        flat = self.obs.reshape(*self.obs.shape[:2], -1)
        return RolloutRows(
            self.obs,
            flat,
            mask,
            self.actions,
            self.log_prob,
            self.reward,
            self.terminated,
            self.truncated,
        )

    def step_buffers(self, t: int, lo: int = 0, hi: int | None = None) -> StepBuffers:
        """Return the buffers of step t for environments lo..hi-1; observations go to row t + 1."""
        return StepBuffers(
            self.obs[t + 1, lo:hi],
            self.reward[t, lo:hi],
            self.terminated[t, lo:hi],
            self.truncated[t, lo:hi],
            self.valid[t, lo:hi],
            None if self.mask is None else self.mask[t + 1, lo:hi],
        )

    def set_final_obs(self, *finals: FinalObs) -> None:
        """Store the final observations of truncated rows of all environments."""
        self.final_obs = np.concatenate([part.obs for part in finals])
        index = np.concatenate([part.index for part in finals])
        self.final_index = np.ascontiguousarray(index, np.int64)

    def start_next(self) -> None:
        """Start the next block with the last observation and drop final observations."""
        self.obs[0] = self.obs[self.n_steps]
        if self.mask is not None:
            self.mask[0] = self.mask[self.n_steps]
        self.final_obs, self.final_index = self.final_obs[:0], self.final_index[:0]


def rollout_bytes(
    spec: EnvSpec, n_steps: int, members: int, num_envs: int, mask_size: int = 0
) -> int:
    """Return the bytes that a `Rollout` of this size allocates, without final observations."""
    e = members * num_envs
    obs_size = int(np.prod(spec.observation_shape, dtype=np.int64))
    obs_bytes = obs_size * spec.observation_dtype.itemsize + mask_size
    # log_prob and reward are float32; terminated, truncated and valid are bool.
    step_bytes = spec.action_dim * spec.action_dtype.itemsize + 4 + 4 + 3
    return (n_steps + 1) * e * obs_bytes + n_steps * e * step_bytes
