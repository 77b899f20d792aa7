"""Reference implementation of soft actor-critic in torch (autograd, any device).

The update follows Haarnoja et al. 2018, "Soft actor-critic: off-policy maximum entropy deep
reinforcement learning with a stochastic actor" and "Soft actor-critic algorithms and applications".
The compiled implementation (`sac.py`, `actor_critic/`) is faster on the CPU;
`tests/engine/rl/test_actor_critic_forms.py` compares whole iterations of both. All tensors have a
leading member axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
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
)
from slipstream.rl.agents.sac.sac import BaseSAC, Entropy
from slipstream.rl.nets.action_selection import LOG_STD_HIGH, LOG_STD_LOW
from slipstream.rl.nets.torch_adam import ParamGroup


def draw(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std noise), [M, B, K], and their log density [M, B].

    log p(a) = sum(-noise^2/2 - log std - log(2 pi)/2 - log(1 - tanh^2 u)) (appendix C). The last
    logarithm is computed as 2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = head.chunk(2, -1)
    log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    u = mean + log_std.exp() * noise
    slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    density = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi) - slope
    return u.tanh(), density.sum(-1)


def learn(
    members: Members,
    networks: Networks,
    rows: Transitions,
    noise: tuple[Tensor, Tensor],
    active: Tensor,
    target_update_interval: int,
    c: Coefficients,
    wanted: Entropy,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Update critics, targets, actor and temperature.

    Args:
        members: parameter groups; `others` has the group `ent_coef` with the tensor log_alpha
            [M, 1].
        networks: forward functions.
        rows: batch of each member.
        noise: standard normal [M, B, K], for the actions at x_next and at x.
        active: bool [M], members to update.
        target_update_interval: critic updates per target update.
        c: settings of the members.
        wanted: target entropy of the members.

    Returns:
        Statistics [M] by name, bool [M] of the members that were updated, and the mean absolute
        error of both critics [M, B].
    """
    actor, temperature = members.actor, members.others["ent_coef"]
    active = active & ~actor.state.failed
    alpha = temperature.leaves["log_alpha"].detach().exp()

    with torch.no_grad():
        action, log_prob = draw(networks.head(actor.leaves, rows.x_next), noise[0])
        td_target = td_targets(members, networks, rows, action, alpha * log_prob)
    statistics, active, error = learn_values(
        members, networks, rows, td_target, active, target_update_interval, c
    )

    action, log_prob = draw(networks.head(actor.leaves, rows.x), noise[1])
    least = torch.minimum(*(networks.value(q.leaves, rows.x, action) for q in members.critics))
    actor_loss = (alpha * log_prob - least).mean(1)
    norm = optimizer_step(actor, actor_loss, active, c)
    active, entropy = active & ~actor.state.failed, -log_prob.detach().mean(1)
    log_alpha = temperature.leaves["log_alpha"][:, 0]
    optimizer_step(temperature, log_alpha * (entropy - wanted.target), active & wanted.automatic, c)

    actor_metrics = {"actor_loss": actor_loss.detach(), "entropy": entropy, "gradient_norm": norm}
    return statistics | actor_metrics, active, error


class SACMembers(TorchMembers):
    """Members that sample from their policies."""

    DRAWS = 2

    def others(self, agent: BaseSAC) -> Mapping[str, ParamGroup | Target]:
        return {"ent_coef": self.group(agent.temperature)}

    def fetch(self) -> None:
        super().fetch()
        self._entropy = Entropy(*map(self.member_column, self._agent.entropy))

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return draw(head, noise)[0]

    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        following, here = noise
        statistics, updated, error = learn(
            *(self.learned, self.networks, rows, (following, here), wanted),
            *(self._agent.config.target_update_interval, self.coefficients, self._entropy),
        )
        return statistics, updated, updated, error


class TorchSAC(TorchActorCritic, BaseSAC):
    """Torch implementation of `SAC`; see `TorchActorCritic`."""

    group = SACMembers


Agent = TorchSAC
