"""Agents with an actor and two critics that act and learn in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.off_policy.torch_agent import TorchLearning
from slipstream.experience.rollout import Rollout
from slipstream.machine import draws
from slipstream.nets.torch_threads import one_thread


class TorchActorCritic(TorchLearning, ActorCritic):
    """See `TorchLearning`."""

    _groups: Sequence[TorchMembers]

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        keys = draws.own_keys(self.seeds, draws.ACT, self.steps)
        with one_thread():
            for group in self._groups:
                e = group.environments
                rollout.actions[t, e] = group.act(rollout.obs[t, e], keys[group.members])
        self.steps += self.num_envs
        self.policy.actions.to_environment(rollout.actions[t], self._env_actions)
        return self._env_actions
