"""Members that act and learn together in torch, and what of them lies on the device."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.dqn.base import BaseDQN
from slipstream.agents.dqn.torch_form import (
    Coefficients,
    Online,
    Transitions,
    Weights,
    dueling,
    update,
)
from slipstream.core.random import stream
from slipstream.experience.replay.replay import Replay
from slipstream.nets.dueling import blocks
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT
from slipstream.nets.torch_adam import Moving
from slipstream.nets.torch_networks import make_network, named
from slipstream.vector.draws import REPLAY


class Group:
    """Members `members` of an agent.

    Args:
        agent: of all members; its arrays are what counts between iterations.
        members: which of them.
        device: where torch calculates.
    """

    def __init__(self, agent: BaseDQN, members: slice, device: torch.device) -> None:
        self.members, self._agent, self._device = members, agent, device
        policy, config = agent.policy, agent.config
        self._network = make_network(policy)
        own = policy.parameters.rows(members).arrays
        host = (own.weights, own.first, own.second, own.steps, own.failed)
        self._host = [torch.from_numpy(array) for array in host]
        self._host.append(torch.from_numpy(agent.targets["values"][members]))
        moving, target = self._carried()
        gradient = torch.zeros_like(moving.weights)
        # The network of images has a critic, too, which has no part in the values of choices.
        weights = self._named(moving.weights).items()
        leaves = {k: v.requires_grad_() for k, v in weights if not k.startswith("critic.")}
        self._online = Online(
            moving, target, leaves, self._named(target), (gradient, self._named(gradient))
        )
        self._allowed: Tensor | None = None  # of the last matrix, between streams
        if isinstance(policy.network, MlpNetwork) and policy.network.stream:
            self._last = f"actor.{len(config.widths)}.weight"
            shape = policy.parameters.shapes[self._last]
            self._allowed = torch.from_numpy(
                blocks(shape, policy.network.stream, agent.choices)
            ).to(device)

    def _carried(self) -> tuple[Moving, Tensor]:
        tensors = [host.to(self._device) for host in self._host]
        return Moving(*tensors[:5]), tensors[5]

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parameters = self._agent.policy.parameters
        return named(flat.detach(), parameters.shapes, parameters.offsets)

    def fetch(self) -> None:
        """Weights, moments, scales and settings as the agent has them now."""
        agent, members = self._agent, self.members
        ours = (*self._online.moving, self._online.target)
        for tensor, host in zip(ours, self._host, strict=True):
            tensor.copy_(host)
        scale = agent.policy.scale
        if scale is not None:
            arrays = np.asarray(scale.mean), np.asarray(scale.inverse_std)
            self._mean, self._inverse_std = (self._column(x[members])[:, None] for x in arrays)
        self._factor = self._column(agent.reward_factor[members].astype(np.float32))[:, None]
        config, total = agent.config, agent.members
        names = ("adam_eps", "max_grad_norm", "target_rate")
        own = (agent.learning_rate, *(config.per_member(name, total) for name in names))
        self._settings = Coefficients(*(self._column(x[members].astype(np.float32)) for x in own))

    def bring_back(self) -> None:
        """Into the agent's own arrays."""
        for host, ours in zip(self._host, (*self._online.moving, self._online.target), strict=True):
            host.copy_(ours)

    def _column(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _inputs(self, obs: NDArray[np.generic]) -> Tensor:
        """What the networks take of observations [g, R, ...]."""
        x = self._column(obs)
        if self._agent.policy.scale is None:
            return x
        return ((x.flatten(2) - self._mean) * self._inverse_std).clamp(-LIMIT, LIMIT)

    def _model(self, weights: Weights, x: Tensor) -> Tensor:
        choices = self._agent.choices
        if self._allowed is not None:
            weights = {**weights, self._last: weights[self._last] * self._allowed}
        outputs = self._network.head(weights, self._network.features(weights, x))
        return outputs[..., :choices] if self._allowed is None else dueling(outputs, choices)

    @torch.no_grad()
    def values(self, obs: NDArray[np.generic]) -> NDArray[np.float32]:
        """Values of all choices [g, R, n] of observations [g R, ...]."""
        rows = obs.reshape(self.members.stop - self.members.start, -1, *obs.shape[1:])
        values: NDArray[np.float32] = (
            self._model(self._online.leaves, self._inputs(rows)).cpu().numpy()
        )
        return values

    def learn(self, replay: Replay, updates: NDArray[np.int64]) -> None:
        """Updates of these members, int64 [g], the first of all before the second of any."""
        agent, config, device = self._agent, self._agent.config, self._device
        numbers = np.arange(self.members.start, self.members.stop)
        for k in range(int(updates.max())):
            chosen = updates > k
            made = self._online.moving.steps.cpu().numpy().astype(np.uint64)
            with np.errstate(over="ignore"):
                keys = stream(agent.seeds[self.members], np.uint64(REPLAY), made)
            sample = replay.sample(
                *(numbers, keys, config.batch, config.n_step),
                *(agent.discount[self.members], agent.importance[self.members]),
            )
            batch, column = sample.batch, self._column
            mask = column(batch.mask_next) if batch.mask_next.size else None
            rows = Transitions(
                *(self._inputs(batch.obs), self._inputs(batch.obs_next), mask),
                column(batch.action[..., 0]).long(),
                *(column(batch.reward) * self._factor, column(batch.discount)),
                column(sample.weight),
            )
            learn = partial(update, self._online, self._model, rows)
            before = self._online.moving.steps.clone()
            statistics, size = learn(
                torch.from_numpy(chosen).to(device), self._settings, config.double,
                config.target_every,
            )  # fmt: skip
            learned = (self._online.moving.steps > before).cpu().numpy()
            agent.sums[self.members][learned] += statistics.cpu().numpy()[learned]
            agent.updates[self.members] += learned
            errors = size.cpu().numpy()
            for i in np.flatnonzero(chosen).tolist():
                replay.reprioritise(int(numbers[i]), sample.index[i], errors[i])
