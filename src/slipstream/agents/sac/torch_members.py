"""Members that act and learn together in torch, and what of them lies on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.sac.torch_form import (
    Coefficients,
    Group,
    Members,
    Networks,
    Rows,
    draw,
    learn,
)
from slipstream.experience.replay.replay import Replay
from slipstream.nets import torch_draws
from slipstream.nets.observations import LIMIT
from slipstream.nets.parameters import Parameters
from slipstream.nets.torch_adam import Moving
from slipstream.nets.torch_device import carried
from slipstream.nets.torch_networks import TorchMlp, Weights, named
from slipstream.vector import draws

if TYPE_CHECKING:
    from slipstream.agents.sac.base import BaseSAC


class TorchMembers:
    """Members `members` of an agent.

    Args:
        agent: whose arrays are what counts between iterations.
        members: which of them.
        device: where torch calculates.

    Attributes:
        environments: theirs, a slice of all.
    """

    def __init__(self, agent: BaseSAC, members: slice, device: torch.device) -> None:
        self.members, self._agent, self._device = members, agent, device
        n = agent.num_envs
        self.environments = slice(members.start * n, members.stop * n)
        self._count, self._width = members.stop - members.start, agent.policy.actions.width
        groups = (agent.policy.parameters, *agent.critics.groups, agent.temperature)
        self._hosts: list[tuple[Tensor, Tensor]] = []  # theirs, ours
        actor, *critics, temperature = (self._group(group) for group in groups)
        targets = []
        for target, group in zip(agent.critics.targets, agent.critics.groups, strict=True):
            flat = self._ours(target)
            targets.append((flat, self._named(group, flat)))
        self._learned = Members(actor, critics, temperature, targets)
        mlp = TorchMlp(agent.config.activation)

        def value(weights: Weights, x: Tensor, action: Tensor) -> Tensor:
            return mlp.value(weights, torch.cat([action, x], -1))

        def head(weights: Weights, x: Tensor) -> Tensor:
            return mlp.head(weights, x)[..., : 2 * self._width]

        self._networks = Networks(head, value)
        self.fetch()

    def _ours(self, array: NDArray[np.generic]) -> Tensor:
        """The device's form of an agent's array [M, ...]."""
        host = torch.from_numpy(array[self.members])
        ours = host.to(self._device, copy=True)
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

    @torch.no_grad()
    def fetch(self) -> None:
        """Weights, moments, settings and scales as the agent has them now."""
        for host, ours in self._hosts:
            ours.copy_(host)
        own = self._agent.settings
        columns = (np.asarray(column)[self.members] for column in own[: len(Coefficients._fields)])
        self._coefficients = Coefficients(
            *(self._carried(x if x.dtype == np.bool_ else x.astype(np.float32)) for x in columns)
        )
        factor = self._agent.reward_factor[self.members].astype(np.float32)
        self._factor = self._carried(factor)[:, None]
        scale = self._agent.policy.scale
        assert scale is not None
        mean, inverse = np.asarray(scale.mean), np.asarray(scale.inverse_std)
        self._mean, self._inverse_std = (
            self._carried(x[self.members].copy())[:, None] for x in (mean, inverse)
        )

    @torch.no_grad()
    def put_back(self) -> None:
        """Weights and moments for everybody else."""
        for host, ours in self._hosts:
            host.copy_(ours)

    def _carried(self, array: NDArray[np.generic]) -> Tensor:
        return carried(np.ascontiguousarray(array), self._device)

    def _inputs(self, obs: Tensor) -> Tensor:
        """What the networks take of observations [g, R, ...]."""
        return ((obs.flatten(2) - self._mean) * self._inverse_std).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def act(self, obs: NDArray[np.float32], keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Actions [g N, K] for observations [g N, *shape] from streams uint64 [g]."""
        agent = self._agent
        copies, k = agent.num_envs, self._width
        x = self._inputs(self._carried(obs).view(self._count, copies, -1))
        streams = torch_draws.keys_of(keys, self._device)
        noise = torch_draws.normal(streams, 0, copies * k).view(self._count, copies, k)
        action, _ = draw(self._networks.head(self._learned.actor.leaves, x), noise)
        warm = agent.steps[self.members] < agent.config.learning_starts
        uniform = torch.erf(noise.double() * 0.5**0.5).float()
        action = torch.where(self._carried(warm)[:, None, None], uniform, action)
        return action.flatten(0, 1).cpu().numpy()

    def learn(self, replay: Replay, wanted: NDArray[np.bool_]) -> None:
        """One update of those members that want one, bool [g]."""
        agent, config, own = self._agent, self._agent.config, self.members
        failed = self._learned.actor.moving.failed.cpu().numpy()
        wanted = wanted & ~failed
        if not wanted.any():
            return
        steps = self._learned.actor.moving.steps.cpu().numpy()
        everyone = np.arange(own.start, own.stop)
        keys = draws.own_keys(agent.seeds[own], draws.REPLAY, steps)
        beta = float(agent.importance[own][0])
        sample = replay.sample(
            everyone, keys, config.batch, config.n_step, agent.discount[own], beta
        )
        streams = draws.own_keys(agent.seeds[own], draws.LEARN, steps)
        size = config.batch * self._width
        drawn = torch_draws.normal(torch_draws.keys_of(streams, self._device), 0, 2 * size)
        noise = drawn.view(self._count, 2, config.batch, self._width)
        batch = sample.batch
        rows = Rows(
            self._inputs(self._carried(batch.obs)),
            self._carried(batch.action),
            self._carried(batch.reward) * self._factor,
            self._carried(batch.discount),
            self._inputs(self._carried(batch.obs_next)),
            self._carried(sample.weight),
        )
        statistics, updated, error = learn(
            *(self._learned, self._networks, rows, (noise[:, 0], noise[:, 1])),
            *(self._carried(wanted), config.target_every, self._coefficients),
        )
        counted = updated.cpu().numpy()
        sums = np.stack([column.cpu().numpy() for column in statistics.values()], 1)
        agent.tally.sums[own] += np.where(counted[:, None], sums, 0.0)
        agent.tally.updates[own] += counted
        errors = error.cpu().numpy()
        for i in np.flatnonzero(wanted).tolist():
            replay.reprioritise(own.start + i, sample.index[i], errors[i])
