"""TD3 that acts and learns in torch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from slipstream.agents.actor_critic.torch_agent import TorchActorCritic
from slipstream.agents.actor_critic.torch_form import Group, Rows, Target
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.td3.base import BaseTD3, Smoothing
from slipstream.agents.td3.torch_form import learn, perturbed


class TD3Members(TorchMembers):
    """Members that add noise to their policies' actions."""

    def others(self, agent: BaseTD3) -> Mapping[str, Group | Target]:
        return {"actor": self._target(agent.targets["actor"], agent.policy.parameters)}

    def fetch_own(self, agent: BaseTD3) -> None:
        self._noise = self.column(agent.noise)[:, None, None]
        self._smoothing = Smoothing(*(self.column(x) for x in agent.smoothing))
        self._every = agent.config.target_every

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return perturbed(head, self._noise * noise)

    def update(
        self, rows: Rows, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        return learn(
            *(self.learned, self.networks, rows, noise[0], wanted),
            *(self._every, self.coefficients, self._smoothing),
        )


class TorchTD3(TorchActorCritic, BaseTD3):
    """As `TD3`; see `TorchActorCritic`."""

    group = TD3Members


Agent = TorchTD3
