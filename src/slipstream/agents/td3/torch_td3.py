"""TD3 that acts and learns in torch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from slipstream.agents.actor_critic.torch_agent import TorchActorCritic
from slipstream.agents.actor_critic.torch_members import TorchMembers
from slipstream.agents.off_policy.torch_form import Target, Transitions
from slipstream.agents.td3.base import BaseTD3, Smoothing
from slipstream.agents.td3.torch_form import learn, perturbed
from slipstream.nets.torch_adam import Group


class TD3Members(TorchMembers):
    """Members that add noise to their policies' actions."""

    def others(self, agent: BaseTD3) -> Mapping[str, Group | Target]:
        return {"actor": self.target(agent.targets["actor"], agent.policy.parameters)}

    def explore(self, head: Tensor, noise: Tensor) -> Tensor:
        return perturbed(head, self.column(self._agent.noise)[:, None, None] * noise)

    def improve(
        self, rows: Transitions, noise: tuple[Tensor, ...], wanted: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        smoothing = Smoothing(*map(self.column, self._agent.smoothing))
        return learn(
            *(self.learned, self.networks, rows, noise[0], wanted),
            *(self._agent.config.target_every, self.coefficients, smoothing),
        )


class TorchTD3(TorchActorCritic, BaseTD3):
    """As `TD3`; see `TorchActorCritic`."""

    group = TD3Members


Agent = TorchTD3
