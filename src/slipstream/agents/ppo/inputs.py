"""A rollout's observations as network inputs, by member and row: row r = t * N + n of member m."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.networks import input_width
from slipstream.nets.observations import ObservationScale
from slipstream.nets.policy import Policy

_BLOCK_NUMBERS = 4096  # rows of all members together that pass through the critic at once
_IMAGE_BLOCK = 32  # images of one member; fixed, for a convolution's bits depend on their number


class Inputs(Protocol):
    """Access to the observations of all (T + 1) * N rows of every member.

    Attributes:
        block: rows that the critic values together, per member.
        blocks: how many of them cover all rows.
    """

    block: int
    blocks: int

    def load(self, rollout: Rollout, lane: int, lanes: int) -> None:
        """Prepares share `lane` of `lanes` of the rows."""

    def rows(self, number: int) -> Tensor:
        """Block `number` as [M, block, ...]; rows beyond the last are anything."""

    def finals(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Final observations [M, rows, ...], and each one's place in the flattened [M * rows]."""


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
        self._x = policy.inputs(self.blocks * self.block)
        self._make_inputs = policy.inputs
        self.array: NDArray[np.float32] = self._x.numpy()

    def load(self, rollout: Rollout, lane: int, lanes: int) -> None:
        t = self._horizon + 1
        lo, hi = lane * t // lanes, (lane + 1) * t // lanes
        self._scale.apply(rollout.numpy.obs[lo:hi], self.array, lo * self._num_envs)

    def rows(self, number: int) -> Tensor:
        return self._x[:, number * self.block : (number + 1) * self.block]

    def finals(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        place, longest = _slots(rollout, 8)
        obs = torch.zeros((1, self._members * longest, *rollout.final_obs.shape[1:]))
        obs[0, place] = rollout.final_obs
        x = self._make_inputs(longest)
        self._scale.apply(obs.numpy(), x.numpy())
        return x, place


class ImageInputs:
    """uint8 images, left where they are."""

    def __init__(self, policy: Policy, horizon: int, num_envs: int) -> None:
        self._members, self._num_envs = policy.members, num_envs
        self._total = (horizon + 1) * num_envs
        self._shape = policy.observation_shape
        self.block = _IMAGE_BLOCK
        self.blocks = -(-self._total // self.block)
        self._flat = torch.zeros(0, dtype=torch.uint8)

    def load(self, rollout: Rollout, lane: int, lanes: int) -> None:
        self._flat = rollout.obs.view(-1, *self._shape)

    def rows(self, number: int) -> Tensor:
        r = torch.arange(number * self.block, (number + 1) * self.block).clamp_(max=self._total - 1)
        places = self._places(r.expand(self._members, -1), 0)
        return self._flat[places].view(self._members, self.block, *self._shape)

    def finals(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        place, longest = _slots(rollout, self.block)
        x = torch.zeros((self._members, longest, *self._shape), dtype=torch.uint8)
        x.view(-1, *self._shape)[place] = rollout.final_obs
        return x, place

    def gather(self, members: slice, order: NDArray[np.int64], at: int, out: Tensor) -> None:
        """Copies rows order[:, at : at + b] of some members, [g, R], into out [g, b, ...]."""
        rows = torch.from_numpy(order[:, at : at + out.shape[1]])
        places = self._places(rows, members.start)
        torch.index_select(self._flat, 0, places, out=out.view(-1, *self._shape))

    def _places(self, rows: Tensor, first_member: int) -> Tensor:
        """Where rows r, [g, b], of members from `first_member` on lie in the rollout, flattened."""
        n = self._num_envs
        t, env = torch.div(rows, n, rounding_mode="floor"), rows % n
        start = torch.arange(first_member, first_member + len(rows)) * n
        return (t * (self._members * n) + env + start[:, None]).view(-1)

    def batch(self, members: int, rows: int) -> Tensor:
        """Memory for a minibatch [g, B, ...]."""
        return torch.zeros((members, rows, *self._shape), dtype=torch.uint8)


def make_inputs(policy: Policy, horizon: int, num_envs: int) -> Inputs:
    """The inputs that fit a policy's observations."""
    if policy.scale is None:
        return ImageInputs(policy, horizon, num_envs)
    return RowInputs(policy, policy.scale, horizon, num_envs)


def _slots(rollout: Rollout, multiple: int) -> tuple[Tensor, int]:
    """Packs final observations by member: each one's place in [M * longest], and `longest`."""
    member = torch.div(rollout.final_index[:, 1], rollout.num_envs, rounding_mode="floor")
    counts = torch.bincount(member, minlength=rollout.members)
    longest = -(-int(counts.max()) // multiple) * multiple
    order = torch.argsort(member, stable=True)
    start = torch.cumsum(counts, 0) - counts
    place = torch.empty_like(member)
    place[order] = torch.arange(len(member)) - start[member[order]] + member[order] * longest
    return place, longest


def update_bytes(spec: Spec, horizon: int, members: int, num_envs: int) -> int:
    """Bytes that an update keeps beside the rollout: scaled observations, rows of the losses."""
    rows = members * num_envs * (horizon + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns, action and its float copy, reward, advantage, target and their temporaries.
    return 4 * rows * (numbers + 2 * spec.action_width + 12)
