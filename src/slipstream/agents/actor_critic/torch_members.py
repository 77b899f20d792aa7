"""Members that act and learn together in torch, with an actor and two critics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.actor_critic.learned import VALUE
from slipstream.agents.actor_critic.torch_form import Members, Networks
from slipstream.agents.off_policy.torch_form import Target, Transitions
from slipstream.agents.off_policy.torch_group import ReplayGroup
from slipstream.machine import draws
from slipstream.nets import torch_draws
from slipstream.nets.torch_adam import Group, Weights


class TorchMembers(ReplayGroup):
    """Members of an ActorCritic; what they draw and learn is the agent's.

    Attributes:
        DRAWS: normal numbers that an update takes for each number of an action in its batch.
    """

    DRAWS: ClassVar[int] = 1

    def __init__(self, agent: ActorCritic, members: slice, device: torch.device) -> None:
        super().__init__(agent, members, device)
        self._width = agent.policy.actions.width
        actor = self.group(agent.policy.parameters)
        critics = [self.group(group) for group in agent.critics.groups]
        targets = [
            self.target(target, group)
            for target, group in zip(agent.critics.targets, agent.critics.groups, strict=True)
        ]
        self.acting, self.counting = actor, critics[0]
        self.learned = Members(actor, critics, targets, self.others(agent))
        network, head_width = self.network, agent.policy.actions.head_width

        def value(weights: Weights, x: Tensor, action: Tensor) -> Tensor:
            return network.value(weights, torch.cat([action, x], -1))

        def head(weights: Weights, x: Tensor) -> Tensor:
            return network.head(weights, x)[..., :head_width]

        self.networks = Networks(head, value)

    @abstractmethod
    def others(self, agent: Any) -> Mapping[str, Group | Target]:
        """Of `Members`, made by `group` and `target`."""

    @abstractmethod
    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        """Actions [g, N, K] in [-1, 1] from the actor's head and standard normal noise."""

    @abstractmethod
    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """One update of those that want one, bool [g].

        Args:
            noise: standard normal [g, B, K], DRAWS of them.

        Returns:
            Statistics [g] by name, bool [g] of who was updated, of whose actor was moved, and the
            critics' mean absolute error [g, B].
        """

    @torch.no_grad()
    def act(self, obs: NDArray[np.float32], keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Actions [g N, K] for observations [g N, *shape] from streams uint64 [g]."""
        agent, shape = self._agent, (self.count, self.num_envs, self._width)
        x = self.inputs(self.carried(obs).view(*shape[:2], -1))
        streams = torch_draws.keys_of(keys, self.device)
        noise = torch_draws.normal(streams, 0, self.num_envs * self._width).view(shape)
        action = self.explore(self.networks.head(self.learned.actor.leaves, x), noise)
        warm = agent.steps[self.members] < agent.config.learning_starts
        uniform = torch.erf(noise.double() * 0.5**0.5).float()
        action = torch.where(self.carried(warm)[:, None, None], uniform, action)
        return action.flatten(0, 1).cpu().numpy()

    def update(self, rows: Transitions, made: NDArray[np.int64], wanted: Tensor) -> Tensor:
        agent, own = self._agent, self.members
        streams = torch_draws.keys_of(
            draws.own_keys(agent.seeds[own], draws.LEARN, made), self.device
        )
        shape = (self.count, self.DRAWS, *rows.action.shape[1:])
        noise = torch_draws.normal(streams, 0, int(np.prod(shape[1:]))).view(shape)
        statistics, updated, moved, error = self.improve(rows, noise.unbind(1), wanted)
        counted = np.stack([x.cpu().numpy() for x in (updated, moved)])
        sums = np.stack([column.cpu().numpy() for column in statistics.values()], 1)
        counts = np.where(np.arange(sums.shape[1]) <= VALUE, *counted[..., None])
        agent.tally.sums[own] += np.where(counts, sums, 0.0)
        agent.tally.updates[own] += counted[0]
        agent.tally.moves[own] += counted[1]
        return error
