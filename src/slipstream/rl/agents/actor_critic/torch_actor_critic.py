"""Reference implementation (torch) of the critics' update, shared by SAC and TD3.

All tensors have a leading member axis.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.jit import rng
from slipstream.rl.agents.actor_critic.actor_critic import ActorCritic
from slipstream.rl.agents.actor_critic.actor_critic_update import VALUE, UpdateStats
from slipstream.rl.agents.off_policy.torch_off_policy import (
    Coefficients,
    ReplayGroup,
    Target,
    TorchLearning,
    Transitions,
    optimizer_step,
    polyak_update,
)
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_distributions
from slipstream.rl.nets.torch_adam import ParamGroup, Weights


class Networks(NamedTuple):
    """Forward functions: the actor's head [M, B, outputs] and a critic's values [M, B]."""

    head: Callable[[Weights, Tensor], Tensor]
    value: Callable[[Weights, Tensor, Tensor], Tensor]


class Members(NamedTuple):
    """Parameter groups and targets of M members.

    Attributes:
        actor, critics: Parameter groups.
        targets: Target of each critic.
        others: Additional groups and targets of an agent, by name.
    """

    actor: ParamGroup
    critics: Sequence[ParamGroup]
    targets: Sequence[Target]
    others: Mapping[str, Any]


def td_targets(
    members: Members, networks: Networks, rows: Transitions, action: Tensor, cost: Tensor | float
) -> Tensor:
    """Compute TD targets of both critics, [M, B]: y = r + discount (min_c Q'_c(s', a') - cost).

    (Fujimoto et al. 2018, equation 10.) After a termination the future counts 0.
    """
    values = (networks.value(target, rows.x_next, action) for _, target in members.targets)
    worth = torch.minimum(*values) - cost
    return rows.reward + torch.where(rows.discount > 0, rows.discount * worth, 0.0)


def learn_values(
    members: Members, networks: Networks, rows: Transitions, td_target: Tensor, active: Tensor,
    target_update_interval: int, c: Coefficients,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:  # fmt: skip
    """Update both critics towards their TD targets [M, B], then their target networks.

    Args:
        members: parameter groups and targets.
        networks: forward functions.
        rows: batch of each member.
        td_target: [M, B].
        active: bool [M], members to update.
        target_update_interval: critic updates per target update.
        c: settings of the members.

    Returns:
        Statistics [M] by name; bool [M], active members that have not failed; and the mean absolute
        error of both critics [M, B].
    """
    predictions = [networks.value(critic.leaves, rows.x, rows.action) for critic in members.critics]
    errors = [value - td_target for value in predictions]
    losses = [(0.5 * rows.weight * error**2).mean(1) for error in errors]
    for critic, (follower, _), loss in zip(members.critics, members.targets, losses, strict=True):
        optimizer_step(critic, loss, active, c)
        due = active & ~critic.state.failed & (critic.state.steps % target_update_interval == 0)
        polyak_update(follower, critic.state.weights.detach(), due, c)
        members.actor.state.failed.logical_or_(critic.state.failed)
    loss, value = (
        torch.stack(losses).sum(0).detach(),
        torch.stack(predictions).mean((0, 2)).detach(),
    )
    error = torch.stack(errors).detach().abs().mean(0)
    finite = active & ~members.actor.state.failed
    return {"critic_loss": loss, "value": value}, finite, error


class TorchMembers(ReplayGroup):
    """Members of an ActorCritic; subclasses define exploration and updates.

    Attributes:
        DRAWS: Normal numbers per action component and update.
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
        self.acting = actor
        mirror: list[Any] = [self.mirror(array) for array in agent.stats]
        self._stats: Any = UpdateStats(*mirror)  # as tensors
        self.learned = Members(actor, critics, targets, self.others(agent))
        network, head_width = self.network, agent.policy.actions.head_width

        def value(weights: Weights, x: Tensor, action: Tensor) -> Tensor:
            return network.value(weights, torch.cat([action, x], -1))

        def head(weights: Weights, x: Tensor) -> Tensor:
            return network.head(weights, x)[..., :head_width]

        self.networks = Networks(head, value)

    @abstractmethod
    def others(self, agent: Any) -> Mapping[str, ParamGroup | Target]:
        """Return additional parameter groups and targets, for `Members.others`.

        Returns:
            By name, each from `group` (has an optimizer) or `target` (follows another group).
        """

    @abstractmethod
    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        """Return actions [g, N, K] in [-1, 1] for the actor's head and standard normal noise."""

    @abstractmethod
    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Update the given members, bool [g], once.

        Args:
            noise: standard normal [g, B, K], DRAWS of them.

        Returns:
            Statistics [g] by name; bool [g], members that were updated; bool [g], members whose
            actor was updated; and the mean absolute error of the critics [g, B].
        """

    @torch.no_grad()
    def act(self, obs: NDArray[np.float32], keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return actions [g N, K] for observations [g N, *shape] and random streams, uint64 [g]."""
        agent, shape = self._agent, (self.count, self.num_envs, self._width)
        x = self.inputs(self.to_device(obs).view(*shape[:2], -1))
        streams = torch_distributions.keys_to_tensor(keys, self.device)
        noise = torch_distributions.normal(streams, 0, self.num_envs * self._width).view(shape)
        action = self.explore(self.networks.head(self.learned.actor.leaves, x), noise)
        warm = agent.steps[self.members] < agent.config.learning_starts
        uniform = torch.erf(noise.double() * 0.5**0.5).float()
        action = torch.where(self.to_device(warm)[:, None, None], uniform, action)
        actions: NDArray[np.float32] = self.to_numpy(action.flatten(0, 1))[0]
        return actions

    def update(self, rows: Transitions, num_updates: NDArray[np.int64], wanted: Tensor) -> Tensor:
        agent, members = self._agent, self.members
        streams = torch_distributions.keys_to_tensor(
            rng.keys_at_steps(agent.seeds[members], rng.LEARN, num_updates), self.device
        )
        shape = (self.count, self.DRAWS, *rows.action.shape[1:])
        noise = torch_distributions.normal(streams, 0, int(np.prod(shape[1:]))).view(shape)
        statistics, updated, actor_updated, error = self.improve(rows, noise.unbind(1), wanted)
        columns, stats = torch.stack(list(statistics.values()), 1), self._stats
        places = torch.arange(columns.shape[1], device=self.device)
        counts = torch.where(places <= VALUE, updated[:, None], actor_updated[:, None])
        stats.sums.add_(torch.where(counts, columns, 0.0))
        stats.updates.add_(updated)
        stats.actor_updates.add_(actor_updated)
        return error


class TorchActorCritic(TorchLearning, ActorCritic):
    """M members with actor and critics that torch updates; see `TorchLearning`."""

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        keys = rng.keys_at_steps(self.seeds, rng.ACT, self.steps)

        def act(group: TorchMembers) -> None:
            e = group.environments
            rollout.actions[t, e] = group.act(rollout.obs[t, e], keys[group.members])

        self.map_groups(act, TorchMembers.device_state)
        self.steps += self.num_envs
        self.policy.actions.to_environment(rollout.actions[t], self._env_actions)
        return self._env_actions
