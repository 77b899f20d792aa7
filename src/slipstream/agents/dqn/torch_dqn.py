"""DQN that acts and learns in torch, from images, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.dqn.act import explore_choices
from slipstream.agents.dqn.base import BaseDQN
from slipstream.agents.dqn.torch_group import DQNGroup
from slipstream.agents.off_policy.torch_agent import TorchLearning
from slipstream.experience.rollout import Rollout
from slipstream.machine import draws
from slipstream.nets.torch_threads import one_thread


class TorchDQN(TorchLearning, BaseDQN):
    """As `DQN`; see `TorchLearning`."""

    group = DQNGroup
    _groups: Sequence[DQNGroup]

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        choice = rollout.actions[t]
        allowed = None if rollout.mask is None else rollout.mask[t]
        for group in self._groups:
            own = group.environments
            with one_thread():
                values = group.values(rollout.obs[t, own])
            if allowed is not None:
                values = np.where(allowed[own], values, -np.inf)
            choice[own, 0] = values.argmax(1)
        keys = draws.own_keys(self.seeds, draws.ACT, self.steps)
        explore_choices(keys, self.epsilon, self.num_envs, self.choices, allowed, choice)
        self.steps += self.num_envs
        self.policy.actions.to_environment(choice, self._env_actions)
        return self._env_actions


Agent = TorchDQN
