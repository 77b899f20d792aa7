"""Soft actor-critic that acts and learns in torch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from slipstream.agents.actor_critic.torch_agent import TorchActorCritic
from slipstream.agents.actor_critic.torch_form import Group, Rows, Target
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.sac.base import BaseSAC
from slipstream.agents.sac.learned import Entropy
from slipstream.agents.sac.torch_form import draw, learn


class SACMembers(TorchMembers):
    """Members that draw from their policies."""

    DRAWS = 2

    def others(self, agent: BaseSAC) -> Mapping[str, Group | Target]:
        return {"temperature": self._group(agent.temperature)}

    def fetch_own(self, agent: BaseSAC) -> None:
        self._entropy = Entropy(*(self.column(x) for x in agent.entropy))
        self._target_every = agent.config.target_every

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return draw(head, noise)[0]

    def update(
        self, rows: Rows, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        following, here = noise
        statistics, updated, error = learn(
            *(self.learned, self.networks, rows, (following, here), wanted),
            *(self._target_every, self.coefficients, self._entropy),
        )
        return statistics, updated, updated, error


class TorchSAC(TorchActorCritic, BaseSAC):
    """As `SAC`; see `TorchActorCritic`."""

    group = SACMembers


Agent = TorchSAC
