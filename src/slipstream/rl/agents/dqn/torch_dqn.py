"""Reference implementation of DQN in torch (autograd, any device, images).

The update follows deep Q-learning (Mnih et al. 2015, "Human-level control through deep
reinforcement learning"), double (van Hasselt, Guez, Silver 2016, "Deep reinforcement learning with
double Q-learning") and dueling (Wang et al. 2016), with importance weights (Schaul et al. 2016).
The compiled implementation (`dqn.py`) is faster on the CPU; `tests/engine/rl/test_dqn_forms.py`
compares whole iterations of both. All tensors have a leading member axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.jit import rng
from slipstream.rl.agents.dqn.dqn import BaseDQN, explore_discrete
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
from slipstream.rl.nets.networks import MlpNetwork, dueling_mask
from slipstream.rl.nets.torch_adam import ParamGroup, Weights

Model = Callable[[Weights, Tensor], Tensor]
"""Function from network inputs [M, B, ...] to the values of all actions, [M, B, n]."""


def dueling_values(outputs: Tensor, num_actions: int) -> Tensor:
    """Return Q = V + A - mean(A) for outputs [..., > n]: advantages, then the value."""
    advantage = outputs[..., :num_actions]
    return outputs[..., num_actions, None] + advantage - advantage.mean(-1, keepdim=True)


@torch.no_grad()
def td_targets(
    online: Weights, target: Weights, model: Model, rows: Transitions, double: bool
) -> Tensor:
    """Compute r + discount Q_target(s', a'), [M, B].

    a' has the highest value according to the online network (double) or the target network. After a
    termination the discount is 0, and the mask may allow no action.
    """
    value = model(target, rows.x_next)
    judge = model(online, rows.x_next) if double else value
    if rows.mask_next is not None:
        judge = torch.where(rows.mask_next, judge, -torch.inf)
    following = value.gather(-1, judge.argmax(-1, keepdim=True))[..., 0]
    return rows.reward + torch.where(rows.discount > 0, rows.discount * following, 0.0)


def update(
    online: ParamGroup,
    target: Target,
    model: Model,
    rows: Transitions,
    active: Tensor,
    c: Coefficients,
    double: bool,
    target_update_interval: int,
) -> tuple[Tensor, Tensor]:
    """Update the active members, bool [M], that have not failed.

        e = Q(s, a) - td_target,  L = mean(w h(e)),  h(e) = e^2 / 2 if |e| <= 1, else |e| - 1/2

    Returns:
        Loss, mean value of the batch's actions and gradient norm, [M, 3]; and |e|, [M, B].
    """
    td_target = td_targets(online.leaves, target[1], model, rows, double)
    value = model(online.leaves, rows.x).gather(-1, rows.action.long())[..., 0]
    error = value - td_target
    size = error.abs()
    loss = (rows.weight * torch.where(size <= 1.0, 0.5 * error**2, size - 0.5)).mean(1)
    norm = optimizer_step(online, loss, active, c)
    state = online.state
    due = active & ~state.failed & (state.steps % target_update_interval == 0)
    polyak_update(target[0], state.weights, due, c)
    return torch.stack([loss.detach(), value.detach().mean(1), norm], 1), size.detach()


class DQNGroup(ReplayGroup):
    """Members of a BaseDQN."""

    def __init__(self, agent: BaseDQN, members: slice, device: torch.device) -> None:
        super().__init__(agent, members, device)
        policy, config = agent.policy, agent.config
        online = self.group(policy.parameters)
        # The network of images has a critic, too, which has no part in the values of choices.
        leaves = {k: v for k, v in online.leaves.items() if not k.startswith("critic.")}
        self.acting = self._online = online._replace(leaves=leaves)
        self._sums, self._updates = self.mirror(agent.sums), self.mirror(agent.updates)
        self._target = self.target(agent.targets["values"], policy.parameters)
        self._allowed: Tensor | None = None  # of the last matrix, between streams
        if isinstance(policy.network, MlpNetwork) and policy.network.stream:
            self._last = f"actor.{len(config.net_arch)}.weight"
            shape = policy.parameters.shapes[self._last]
            allowed = dueling_mask(shape, policy.network.stream, agent.num_actions)
            self._allowed = torch.from_numpy(allowed).to(device)

    def _model(self, weights: Weights, x: Tensor) -> Tensor:
        num_actions = self._agent.num_actions
        if self._allowed is not None:
            weights = {**weights, self._last: weights[self._last] * self._allowed}
        outputs = self.network.head(weights, self.network.features(weights, x))
        return (
            outputs[..., :num_actions]
            if self._allowed is None
            else dueling_values(outputs, num_actions)
        )

    @torch.no_grad()
    def values(self, obs: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the values of all actions [g N, n] for observations [g N, ...]."""
        rows = self.to_device(obs.reshape(self.count, -1, *obs.shape[1:]))
        values = self._model(self._online.leaves, self.inputs(rows)).flatten(0, 1)
        q_values: NDArray[np.float32] = self.to_numpy(values)[0]
        return q_values

    def update(self, rows: Transitions, num_updates: NDArray[np.int64], wanted: Tensor) -> Tensor:
        config = self._agent.config
        statistics, size = update(
            *(self._online, self._target, self._model, rows, wanted, self.coefficients),
            *(config.double, config.target_update_interval),
        )
        learned = wanted & ~self._online.state.failed
        self._sums += torch.where(learned[:, None], statistics, 0.0)
        self._updates += learned
        return size


class TorchDQN(TorchLearning, BaseDQN):
    """Torch implementation of `DQN`; see `TorchLearning`."""

    group = DQNGroup

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        choice = rollout.actions[t]
        allowed = None if rollout.mask is None else rollout.mask[t]

        def act(group: DQNGroup) -> None:
            env_range = group.environments
            values = group.values(rollout.obs[t, env_range])
            if allowed is not None:
                values = np.where(allowed[env_range], values, -np.inf)
            choice[env_range, 0] = values.argmax(1)

        self.map_groups(act, DQNGroup.device_state)
        keys = rng.keys_at_steps(self.seeds, rng.ACT, self.steps)
        explore_discrete(keys, self.epsilon, self.num_envs, self.num_actions, allowed, choice)
        self.steps += self.num_envs
        self.policy.actions.to_environment(choice, self._env_actions)
        return self._env_actions


Agent = TorchDQN
