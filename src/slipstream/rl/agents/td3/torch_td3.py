"""Reference implementation of TD3 in torch (autograd, any device).

The update follows Fujimoto, van Hoof, Meger 2018, "Addressing function approximation error in
actor-critic methods", algorithm 1. The compiled implementation (`td3.py`, `actor_critic/`) is
faster on the CPU; `tests/engine/rl/test_actor_critic_forms.py` compares whole iterations of both.
All tensors have a leading member axis.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.rl.agents.actor_critic.torch_actor_critic import (
    Members,
    Networks,
    TorchActorCritic,
    TorchMembers,
    learn_values,
    td_targets,
)
from slipstream.rl.agents.off_policy.torch_off_policy import (
    Coefficients,
    Target,
    Transitions,
    optimizer_step,
    polyak_update,
)
from slipstream.rl.agents.td3.td3 import BaseTD3, Smoothing
from slipstream.rl.nets.torch_adam import ParamGroup


def perturbed(head: Tensor, shift: Tensor) -> Tensor:
    """Return tanh(head) + shift, clipped to [-1, 1]; all [M, B, K]."""
    return (head.tanh() + shift).clamp(-1.0, 1.0)


def learn(
    members: Members,
    networks: Networks,
    rows: Transitions,
    noise: Tensor,
    active: Tensor,
    every: int,
    c: Coefficients,
    smoothing: Smoothing,
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Update both critics, and at every `every`-th update the actor and all targets.

    Args:
        members: parameter groups; `others` has the target `actor`.
        networks: forward functions.
        rows: batch of each member.
        noise: standard normal [M, B, K], for the actions at x_next.
        active: bool [M], members to update.
        every: critic updates per update of the actor and the targets.
        c: settings of the members.
        smoothing: target policy smoothing of the members.

    Returns:
        Statistics [M] by name; bool [M], members that were updated; bool [M], members whose actor
        was updated; and the mean absolute error of both critics [M, B].
    """
    actor, (target, slow) = members.actor, members.others["actor"]
    active = active & ~actor.state.failed

    with torch.no_grad():
        limit = smoothing.limit[:, None, None]
        shift = (smoothing.noise[:, None, None] * noise).clamp(-limit, limit)
        action = perturbed(networks.head(slow, rows.x_next), shift)
        td_target = td_targets(members, networks, rows, action, 0.0)
    statistics, active, error = learn_values(members, networks, rows, td_target, active, every, c)

    first = members.critics[0]
    due = active & (first.state.steps % every == 0)
    action = networks.head(actor.leaves, rows.x).tanh()
    actor_loss = -networks.value(first.leaves, rows.x, action).mean(1)
    norm = optimizer_step(actor, actor_loss, due, c)
    finite = ~actor.state.failed
    polyak_update(target, actor.state.weights.detach(), due & finite, c)

    actor_metrics = {"actor_loss": actor_loss.detach(), "gradient_norm": norm}
    return statistics | actor_metrics, active & finite, due & finite, error


class TD3Members(TorchMembers):
    """Members that add noise to their policies' actions."""

    def others(self, agent: BaseTD3) -> Mapping[str, ParamGroup | Target]:
        return {"actor": self.target(agent.targets["actor"], agent.policy.parameters)}

    def fetch(self) -> None:
        super().fetch()
        self._smoothing = Smoothing(*map(self.member_column, self._agent.smoothing))
        self._noise = self.member_column(self._agent.noise)[:, None, None]

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return perturbed(head, self._noise * noise)

    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        return learn(
            *(self.learned, self.networks, rows, noise[0], wanted),
            *(self._agent.config.target_update_interval, self.coefficients, self._smoothing),
        )


class TorchTD3(TorchActorCritic, BaseTD3):
    """Torch implementation of `TD3`; see `TorchActorCritic`."""

    group = TD3Members


Agent = TorchTD3
