"""Configuration of soft actor-critic."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from slipstream.core.bounds import Positive
from slipstream.core.config import tunable
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig

Nats = Annotated[float, Field(ge=-1e6, le=1e6)]


class SACConfig(ActorCriticConfig):
    """Soft actor-critic (Haarnoja et al. 2018). Sources of defaults: docs/reference/agents.md."""

    NAME: ClassVar[str] = "sac"
    HEAD_WIDTH: ClassVar[int] = 2
    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        *ActorCriticConfig.PER_MEMBER,
        "ent_coef",
        "init_ent_coef",
        "target_entropy",
    )

    ent_coef: Literal["auto"] | Positive | tuple[Positive, ...] = Field(
        "auto",
        description="Entropy coefficient (temperature alpha) in units of the scaled reward; auto "
        "learns it.",
        json_schema_extra=tunable(1e-3, 1.0, log=True, by_default=False),
    )
    init_ent_coef: Positive | tuple[Positive, ...] = Field(
        1.0, description="Initial entropy coefficient if it is learned."
    )
    target_entropy: Nats | tuple[Nats, ...] | None = Field(
        None,
        description="Target entropy of actions in [-1, 1]; null uses minus the action dimension.",
    )


Config = SACConfig
