"""Configuration of TD3."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from slipstream.core.bounds import Count, NotNegative
from slipstream.core.config import tunable
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig


class TD3Config(ActorCriticConfig):
    """TD3 (Fujimoto et al. 2018). Sources of defaults: docs/reference/agents.md.

    Noise is in units of the policy, whose actions are within [-1, 1].
    """

    NAME: ClassVar[str] = "td3"
    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        *ActorCriticConfig.PER_MEMBER,
        "exploration_noise",
        "target_policy_noise",
        "target_noise_clip",
    )

    target_update_interval: Count = Field(
        2, description="Policy delay: critic updates between updates of actor and targets."
    )
    exploration_noise: NotNegative | tuple[NotNegative, ...] = Field(
        0.1,
        description="Standard deviation of exploration noise.",
        json_schema_extra=tunable(0.03, 0.5, log=True),
    )
    target_policy_noise: NotNegative | tuple[NotNegative, ...] = Field(
        0.2,
        description="Standard deviation of target policy smoothing noise.",
        json_schema_extra=tunable(0.05, 0.5, log=True, by_default=False),
    )
    target_noise_clip: NotNegative | tuple[NotNegative, ...] = Field(
        0.5, description="Clipping range of target policy smoothing noise."
    )

    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the bytes of an actor-critic agent and of the actor's target."""
        return super().bytes(spec, members, num_envs) + members * self.weight_bytes(spec)

    def state_bytes(self, spec: EnvSpec) -> int:
        """Return the state bytes of an actor-critic agent and of the actor's target."""
        return super().state_bytes(spec) + self.weight_bytes(spec)


Config = TD3Config
