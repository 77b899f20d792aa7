"""Members that act and learn together in torch, by values of choices."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.dqn.base import BaseDQN
from slipstream.agents.dqn.torch_form import dueling, update
from slipstream.agents.off_policy.torch_form import Transitions
from slipstream.agents.off_policy.torch_group import ReplayGroup
from slipstream.nets.dueling import blocks
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.torch_adam import Weights


class DQNGroup(ReplayGroup):
    """Members of a BaseDQN."""

    def __init__(self, agent: BaseDQN, members: slice, device: torch.device) -> None:
        super().__init__(agent, members, device)
        policy, config = agent.policy, agent.config
        online = self.group(policy.parameters)
        # The network of images has a critic, too, which has no part in the values of choices.
        leaves = {k: v for k, v in online.leaves.items() if not k.startswith("critic.")}
        self.acting = self.counting = self._online = online._replace(leaves=leaves)
        self._target = self.target(agent.targets["values"], policy.parameters)
        self._allowed: Tensor | None = None  # of the last matrix, between streams
        if isinstance(policy.network, MlpNetwork) and policy.network.stream:
            self._last = f"actor.{len(config.widths)}.weight"
            shape = policy.parameters.shapes[self._last]
            allowed = blocks(shape, policy.network.stream, agent.choices)
            self._allowed = torch.from_numpy(allowed).to(device)

    def _model(self, weights: Weights, x: Tensor) -> Tensor:
        choices = self._agent.choices
        if self._allowed is not None:
            weights = {**weights, self._last: weights[self._last] * self._allowed}
        outputs = self.network.head(weights, self.network.features(weights, x))
        return outputs[..., :choices] if self._allowed is None else dueling(outputs, choices)

    @torch.no_grad()
    def values(self, obs: NDArray[np.generic]) -> NDArray[np.float32]:
        """Values of all choices [g N, n] of observations [g N, ...]."""
        rows = self.carried(obs.reshape(self.count, -1, *obs.shape[1:]))
        values = self._model(self._online.leaves, self.inputs(rows)).flatten(0, 1)
        found: NDArray[np.float32] = values.cpu().numpy()
        return found

    def update(self, rows: Transitions, made: NDArray[np.int64], wanted: Tensor) -> Tensor:
        agent, config, own = self._agent, self._agent.config, self.members
        statistics, size = update(
            *(self._online, self._target, self._model, rows, wanted, self.coefficients),
            *(config.double, config.target_every),
        )
        learned = (wanted & ~self._online.moving.failed).cpu().numpy()
        agent.sums[own] += np.where(learned[:, None], statistics.cpu().numpy(), 0.0)
        agent.updates[own] += learned
        return size
