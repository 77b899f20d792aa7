"""Agents with an actor and two critics in torch: for GPUs, and to compare the compiled form with.

Environments, replay and running statistics stay where environments are, on the processor. Weights
lie on the device, and are carried back when an iteration ends, so that policy, checkpoints and
studies know no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.actor_critic.config import ActorCriticConfig
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.torch_device import device_of, together
from slipstream.nets.torch_threads import one_thread
from slipstream.vector import draws


class TorchActorCritic(ActorCritic):
    """As the compiled form, whose state it can go on from, and the other way round; its bits are
    other ones.

    On a processor members are handled one after another, since a batched product's bits would
    depend on their number; on a GPU all together.

    Args:
        config, specs, seeds, num_envs: as for the compiled form.
        device: where torch calculates.

    Attributes:
        group: what members that are handled together are.
    """

    group: ClassVar[type[TorchMembers]]

    def __init__(
        self,
        config: ActorCriticConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        self.device = device_of(device)
        self._groups = [
            self.group(self, own, self.device) for own in together(self.members, self.device)
        ]

    def refresh(self) -> None:
        for group in self._groups:
            group.fetch()

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        keys = draws.own_keys(self.seeds, draws.ACT, self.steps)
        with one_thread():
            for group in self._groups:
                e = group.environments
                rollout.actions[t, e] = group.act(rollout.obs[t, e], keys[group.members])
        self.steps += self.num_envs
        self.policy.actions.to_environment(rollout.actions[t], self._env_actions)
        return self._env_actions

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run: RunTasks = in_sequence
    ) -> None:
        with one_thread():
            for group in self._groups:
                own = updates[group.members]
                for number in range(int(own.max(initial=0))):
                    group.learn(replay, number < own)

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        for group in self._groups:
            group.put_back()
        return self.finished(rollout, progress)
