"""A rollout's images as network inputs: row r = t * N + n of member m."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.ppo.inputs import slots
from slipstream.experience.rollout import Rollout
from slipstream.nets.policy import Policy

_IMAGE_BLOCK = 32  # images of one member; fixed, for a convolution's bits depend on their number


class ImageInputs:
    """uint8 images, left where they are."""

    def __init__(self, policy: Policy, horizon: int, num_envs: int) -> None:
        self._members, self._num_envs = policy.members, num_envs
        self._total = (horizon + 1) * num_envs
        self._shape = policy.observation_shape
        self.block = _IMAGE_BLOCK
        self.blocks = -(-self._total // self.block)
        self._flat: NDArray[np.uint8] = np.zeros((0, *self._shape), np.uint8)

    def load(self, rollout: Rollout, lane: int, lanes: int) -> None:
        self._flat = rollout.obs.reshape(-1, *self._shape)

    def rows(self, number: int) -> NDArray[np.uint8]:
        r = np.arange(number * self.block, (number + 1) * self.block)
        each = np.broadcast_to(np.minimum(r, self._total - 1), (self._members, self.block))
        return self._flat[self._places(each, 0)]

    def finals(self, rollout: Rollout) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        place, longest = slots(rollout, self.block)
        x = np.zeros((self._members, longest, *self._shape), np.uint8)
        x.reshape(-1, *self._shape)[place] = rollout.final_obs
        return x, place

    def gather(
        self, members: slice, order: NDArray[np.int64], at: int, rows: int
    ) -> NDArray[np.uint8]:
        """Rows order[:, at : at + rows] of some members, [g, rows, ...]."""
        return self._flat[self._places(order[:, at : at + rows], members.start)]

    def _places(self, rows: NDArray[np.int64], first_member: int) -> NDArray[np.int64]:
        """Where rows r, [g, b], of members from `first_member` on lie in the rollout, flattened."""
        t, env = np.divmod(rows, self._num_envs)
        start = np.arange(first_member, first_member + len(rows)) * self._num_envs
        places: NDArray[np.int64] = t * (self._members * self._num_envs) + env + start[:, None]
        return places
