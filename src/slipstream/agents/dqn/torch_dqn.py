"""DQN that acts and learns in torch: for images, for GPUs, and to compare the compiled form with.

Environments and replay stay on the processor. Weights are carried to the device when an iteration
begins and back when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.dqn.act import explore_choices
from slipstream.agents.dqn.base import BaseDQN
from slipstream.agents.dqn.config import DQNConfig
from slipstream.agents.dqn.torch_group import Group
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.torch_device import device_of, together
from slipstream.nets.torch_threads import one_thread
from slipstream.vector import draws


class TorchDQN(BaseDQN):
    """As `DQN`, whose state it can go on from, and the other way round; its bits are other ones.

    On a processor members are handled one after another, since a batched product's bits would
    depend on their number; on a GPU all together.

    Args:
        config, specs, seeds, num_envs: as for `DQN`.
        device: where torch calculates.
    """

    def __init__(
        self,
        config: DQNConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        self.device = device_of(device)
        self._groups = [
            Group(self, own, self.device) for own in together(self.members, self.device)
        ]
        self.refresh()

    def refresh(self) -> None:
        for group in self._groups:
            group.fetch()

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        choice = rollout.actions[t]
        allowed = None if rollout.mask is None else rollout.mask[t]
        for group in self._groups:
            own = slice(group.members.start * self.num_envs, group.members.stop * self.num_envs)
            with one_thread():
                values = group.values(rollout.obs[t, own]).reshape(-1, self.choices)
            if allowed is not None:
                values = np.where(allowed[own], values, -np.inf)
            choice[own, 0] = values.argmax(1)
        keys = draws.own_keys(self.seeds, draws.ACT, self.steps)
        explore_choices(keys, self.epsilon, self.num_envs, self.choices, allowed, choice)
        self.steps += self.num_envs
        self.policy.actions.to_environment(choice, self._env_actions)
        return self._env_actions

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run: RunTasks = in_sequence
    ) -> None:
        with one_thread():
            for group in self._groups:
                if updates[group.members].any():
                    group.learn(replay, updates[group.members])

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        for group in self._groups:
            group.bring_back()
        return self.finished(rollout, progress)


Agent = TorchDQN
