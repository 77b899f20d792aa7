"""A rollout's observations as network inputs, by member and row: row r = t * N + n of member m."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.networks import input_width
from slipstream.nets.observations import ObservationScale
from slipstream.nets.policy import Policy

_BLOCK_NUMBERS = 4096  # rows of all members together that pass through the critic at once


class RowInputs:
    """Scaled once into float32 [M, rows, D], which compiled loops pick rows from.

    Attributes:
        array: float32 [M, >= (T + 1) * N, D].
    """

    def __init__(
        self, policy: Policy, scale: ObservationScale, horizon: int, num_envs: int
    ) -> None:
        self._scale, self._horizon, self._num_envs = scale, horizon, num_envs
        total = (horizon + 1) * num_envs
        self.block = max(8, min(_BLOCK_NUMBERS // policy.members, total) // 8 * 8)
        self.blocks = -(-total // self.block)
        self._members = policy.members
        self._make_inputs = policy.inputs
        self.array = policy.inputs(self.blocks * self.block)

    def load(self, rollout: Rollout, lane: int, lanes: int) -> None:
        t = self._horizon + 1
        lo, hi = lane * t // lanes, (lane + 1) * t // lanes
        self._scale.apply(rollout.obs[lo:hi], self.array, lo * self._num_envs)

    def rows(self, number: int) -> NDArray[Any]:
        return self.array[:, number * self.block : (number + 1) * self.block]

    def finals(self, rollout: Rollout) -> tuple[NDArray[Any], NDArray[np.int64]]:
        place, longest = slots(rollout, 8)
        shape = (1, self._members * longest, *rollout.final_obs.shape[1:])
        obs = np.zeros(shape, np.float32)
        obs[0, place] = rollout.final_obs
        x = self._make_inputs(longest)
        self._scale.apply(obs, x)
        return x, place


def slots(rollout: Rollout, multiple: int) -> tuple[NDArray[np.int64], int]:
    """Packs final observations by member: each one's place in [M * longest], and `longest`."""
    member = rollout.final_index[:, 1] // rollout.num_envs
    counts = np.bincount(member, minlength=rollout.members)
    longest = -(-int(counts.max()) // multiple) * multiple
    order = np.argsort(member, kind="stable")
    start = np.cumsum(counts) - counts
    place = np.empty_like(member)
    place[order] = np.arange(len(member)) - start[member[order]] + member[order] * longest
    return place, longest


def update_bytes(spec: Spec, horizon: int, members: int, num_envs: int) -> int:
    """Bytes that an update keeps beside the rollout: scaled observations, rows of the losses."""
    rows = members * num_envs * (horizon + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns, action and its float copy, reward, advantage, target and their temporaries.
    return 4 * rows * (numbers + 2 * spec.action_width + 12)
