"""Members that learn from a replay together in torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.off_policy.torch_form import Coefficients, Target, Transitions
from slipstream.agents.torch_group import TorchGroup
from slipstream.experience.replay.replay import Replay
from slipstream.machine import draws
from slipstream.nets.parameters import Parameters
from slipstream.nets.torch_adam import Group


class ReplayGroup(TorchGroup, ABC):
    """Members `members` of an agent, which says by `update` what they learn.

    Args:
        agent: an OffPolicyAgent; its arrays are what counts between iterations.

    Attributes:
        acting: group of the network that acts: its failures are the members'.
        counting: group whose steps name a member's draws.
        coefficients: of this iteration.
    """

    acting: Group
    counting: Group

    def __init__(self, agent: Any, members: slice, device: torch.device) -> None:
        super().__init__(agent.policy, agent.num_envs, members, device)
        self._agent = agent

    @abstractmethod
    def update(self, rows: Transitions, made: NDArray[np.int64], wanted: Tensor) -> Tensor:
        """One update of those that want one, bool [g]; counted by the agent.

        Args:
            made: updates that each has made.

        Returns:
            Sizes of the errors, [g, B].
        """

    def target(self, target: NDArray[np.float32], parameters: Parameters) -> Target:
        """Their part of a target that follows these parameters."""
        flat = self.ours(target)
        return flat, self.named(parameters, flat)

    def fetch(self) -> None:
        super().fetch()
        self.coefficients = Coefficients(*map(self.column, self._agent.step_settings))
        self._factor = self.column(self._agent.reward_factor)[:, None]

    def learn(self, replay: Replay, wanted: NDArray[np.bool_]) -> None:
        """One update of those members that want one, bool [g], and have not failed."""
        agent, config, own = self._agent, self._agent.config, self.members
        wanted = wanted & ~self.acting.moving.failed.cpu().numpy()
        if not wanted.any():
            return
        made = self.counting.moving.steps.cpu().numpy()
        keys = draws.own_keys(agent.seeds[own], draws.REPLAY, made)
        sample = replay.sample(
            *(np.arange(own.start, own.stop), keys, config.batch, config.n_step),
            *(agent.discount[own], agent.importance[own]),
        )
        batch = sample.batch
        rows = Transitions(
            x=self.inputs(self.carried(batch.obs)),
            action=self.carried(batch.action),
            reward=self.carried(batch.reward) * self._factor,
            discount=self.carried(batch.discount),
            x_next=self.inputs(self.carried(batch.obs_next)),
            weight=self.carried(sample.weight),
            mask_next=self.carried(batch.mask_next) if batch.mask_next.size else None,
        )
        errors = self.update(rows, made, self.carried(wanted)).cpu().numpy()
        for i in np.flatnonzero(wanted).tolist():
            replay.reprioritise(own.start + i, sample.index[i], errors[i])
