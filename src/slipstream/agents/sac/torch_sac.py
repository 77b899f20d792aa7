"""Soft actor-critic that acts and learns in torch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from slipstream.agents.actor_critic.torch_agent import TorchActorCritic
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.off_policy.torch_form import Target, Transitions
from slipstream.agents.sac.base import BaseSAC
from slipstream.agents.sac.gradients import Entropy
from slipstream.agents.sac.torch_form import draw, learn
from slipstream.nets.torch_adam import Group


class SACMembers(TorchMembers):
    """Members that draw from their policies."""

    DRAWS = 2

    def others(self, agent: BaseSAC) -> Mapping[str, Group | Target]:
        return {"temperature": self.group(agent.temperature)}

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return draw(head, noise)[0]

    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        following, here = noise
        entropy = Entropy(*map(self.column, self._agent.entropy))
        statistics, updated, error = learn(
            *(self.learned, self.networks, rows, (following, here), wanted),
            *(self._agent.config.target_every, self.coefficients, entropy),
        )
        return statistics, updated, updated, error


class TorchSAC(TorchActorCritic, BaseSAC):
    """As `SAC`; see `TorchActorCritic`."""

    group = SACMembers


Agent = TorchSAC
