"""Members that act and learn together in torch, and what of them lies on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.actor_critic.learned import VALUE
from slipstream.agents.actor_critic.torch_form import (
    Coefficients,
    Group,
    Members,
    Networks,
    Rows,
    Target,
)
from slipstream.experience.replay.replay import Replay
from slipstream.nets import torch_draws
from slipstream.nets.observations import LIMIT
from slipstream.nets.parameters import Parameters
from slipstream.nets.torch_adam import Moving
from slipstream.nets.torch_device import carried
from slipstream.nets.torch_networks import TorchMlp, Weights, named
from slipstream.vector import draws


class TorchMembers(ABC):
    """Members `members` of an agent; what they draw and learn is the agent's.

    Args:
        agent: whose arrays are what counts between iterations.
        members: which of them.
        device: where torch calculates.

    Attributes:
        DRAWS: normal numbers that an update takes for each number of an action in its batch.
        environments: theirs, a slice of all.
    """

    DRAWS: ClassVar[int] = 1

    def __init__(self, agent: Any, members: slice, device: torch.device) -> None:
        self.members, self.device = members, device
        self._agent: ActorCritic = agent
        n = agent.num_envs
        self.environments = slice(members.start * n, members.stop * n)
        self._count, self._width = members.stop - members.start, agent.policy.actions.width
        self._hosts: list[tuple[Tensor, Tensor]] = []  # theirs, ours
        actor = self._group(agent.policy.parameters)
        critics = [self._group(group) for group in agent.critics.groups]
        targets = [
            self._target(target, group)
            for target, group in zip(agent.critics.targets, agent.critics.groups, strict=True)
        ]
        self.learned = Members(actor, critics, targets, self.others(agent))
        mlp, head_width = TorchMlp(agent.config.activation), agent.policy.actions.head_width

        def value(weights: Weights, x: Tensor, action: Tensor) -> Tensor:
            return mlp.value(weights, torch.cat([action, x], -1))

        def head(weights: Weights, x: Tensor) -> Tensor:
            return mlp.head(weights, x)[..., :head_width]

        self.networks = Networks(head, value)
        self.fetch()

    @abstractmethod
    def others(self, agent: Any) -> Mapping[str, Group | Target]:
        """Of `Members`, made by `_group` and `_target`."""

    @abstractmethod
    def fetch_own(self, agent: Any) -> None:
        """Settings that only this agent has, as they are now."""

    @abstractmethod
    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        """Actions [g, N, K] in [-1, 1] from the actor's head and standard normal noise."""

    @abstractmethod
    def update(
        self, rows: Rows, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """One update of those that want one, bool [g].

        Args:
            noise: standard normal [g, B, K], DRAWS of them.

        Returns:
            Statistics [g] by name, bool [g] of who was updated, of whose actor was moved, and the
            critics' mean absolute error [g, B].
        """

    def _ours(self, array: NDArray[np.generic]) -> Tensor:
        """The device's form of an agent's array [M, ...]."""
        host = torch.from_numpy(array[self.members])
        ours = host.to(self.device, copy=True)
        self._hosts.append((host, ours))
        return ours

    def _named(self, group: Parameters, flat: Tensor) -> dict[str, Tensor]:
        return named(flat.detach(), group.shapes, group.offsets)

    def _group(self, group: Parameters) -> Group:
        arrays = (group.flat, group.first, group.second, group.steps, group.failed)
        moving = Moving(*(self._ours(array) for array in arrays))
        weights = self._named(group, moving.weights)
        leaves = {name: view.requires_grad_() for name, view in weights.items()}
        gradient = torch.zeros_like(moving.weights)
        return Group(moving, leaves, gradient, self._named(group, gradient))

    def _target(self, target: NDArray[np.float32], group: Parameters) -> Target:
        flat = self._ours(target)
        return flat, self._named(group, flat)

    @torch.no_grad()
    def fetch(self) -> None:
        """Weights, moments, settings and scales as the agent has them now."""
        agent = self._agent
        for host, ours in self._hosts:
            ours.copy_(host)
        own = agent.settings[: len(Coefficients._fields)]
        self.coefficients = Coefficients(*(self.column(np.asarray(x)) for x in own))
        self._factor = self.column(agent.reward_factor)[:, None]
        scale = agent.policy.scale
        assert scale is not None
        mean, inverse = np.asarray(scale.mean), np.asarray(scale.inverse_std)
        self._mean, self._inverse_std = (
            self._carried(x[self.members].copy())[:, None] for x in (mean, inverse)
        )
        self.fetch_own(agent)

    @torch.no_grad()
    def put_back(self) -> None:
        """Weights and moments for everybody else."""
        for host, ours in self._hosts:
            host.copy_(ours)

    def column(self, array: NDArray[Any]) -> Tensor:
        """Their part of a setting [M], float32 or bool."""
        own = array[self.members]
        return self._carried(own if own.dtype == np.bool_ else own.astype(np.float32))

    def _carried(self, array: NDArray[np.generic]) -> Tensor:
        return carried(np.ascontiguousarray(array), self.device)

    def _inputs(self, obs: Tensor) -> Tensor:
        """What the networks take of observations [g, R, ...]."""
        return ((obs.flatten(2) - self._mean) * self._inverse_std).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def act(self, obs: NDArray[np.float32], keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Actions [g N, K] for observations [g N, *shape] from streams uint64 [g]."""
        agent = self._agent
        copies, k = agent.num_envs, self._width
        x = self._inputs(self._carried(obs).view(self._count, copies, -1))
        streams = torch_draws.keys_of(keys, self.device)
        noise = torch_draws.normal(streams, 0, copies * k).view(self._count, copies, k)
        action = self.explore(self.networks.head(self.learned.actor.leaves, x), noise)
        warm = agent.steps[self.members] < agent.config.learning_starts
        uniform = torch.erf(noise.double() * 0.5**0.5).float()
        action = torch.where(self._carried(warm)[:, None, None], uniform, action)
        return action.flatten(0, 1).cpu().numpy()

    def learn(self, replay: Replay, wanted: NDArray[np.bool_]) -> None:
        """One update of those members that want one, bool [g]."""
        agent, config, own = self._agent, self._agent.config, self.members
        failed = self.learned.actor.moving.failed.cpu().numpy()
        wanted = wanted & ~failed
        if not wanted.any():
            return
        made = self.learned.critics[0].moving.steps.cpu().numpy()
        everyone = np.arange(own.start, own.stop)
        keys = draws.own_keys(agent.seeds[own], draws.REPLAY, made)
        sample = replay.sample(
            *(everyone, keys, config.batch, config.n_step),
            *(agent.discount[own], agent.importance[own]),
        )
        streams = draws.own_keys(agent.seeds[own], draws.LEARN, made)
        size = self.DRAWS * config.batch * self._width
        drawn = torch_draws.normal(torch_draws.keys_of(streams, self.device), 0, size)
        noise = drawn.view(self._count, self.DRAWS, config.batch, self._width)
        batch = sample.batch
        rows = Rows(
            self._inputs(self._carried(batch.obs)),
            self._carried(batch.action),
            self._carried(batch.reward) * self._factor,
            self._carried(batch.discount),
            self._inputs(self._carried(batch.obs_next)),
            self._carried(sample.weight),
        )
        statistics, updated, moved, error = self.update(
            rows, noise.unbind(1), self._carried(wanted)
        )
        counted = np.stack([x.cpu().numpy() for x in (updated, moved)])
        sums = np.stack([column.cpu().numpy() for column in statistics.values()], 1)
        counts = np.where(np.arange(sums.shape[1]) <= VALUE, *counted[..., None])
        agent.tally.sums[own] += np.where(counts, sums, 0.0)
        agent.tally.updates[own] += counted[0]
        agent.tally.moves[own] += counted[1]
        errors = error.cpu().numpy()
        for i in np.flatnonzero(wanted).tolist():
            replay.reprioritise(own.start + i, sample.index[i], errors[i])
