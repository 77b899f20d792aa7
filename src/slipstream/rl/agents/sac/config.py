"""What a user may say about soft actor-critic."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from slipstream.core.bounds import Positive
from slipstream.core.config import searched
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig

Nats = Annotated[float, Field(ge=-1e6, le=1e6)]


class SACConfig(ActorCriticConfig):
    """Soft actor-critic (Haarnoja et al. 2018); where each default is from: docs/agents.md."""

    NAME: ClassVar[str] = "sac"
    HEAD_WIDTH: ClassVar[int] = 2
    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        *ActorCriticConfig.PER_MEMBER,
        "temperature",
        "initial_temperature",
        "target_entropy",
    )

    temperature: Positive | tuple[Positive, ...] | None = Field(
        None,
        description="alpha: what a nat of entropy is worth, in units of the (scaled) reward; null: "
        "learned",
        json_schema_extra=searched(1e-3, 1.0, log=True, by_default=False),
    )
    initial_temperature: Positive | tuple[Positive, ...] = Field(
        1.0, description="alpha at first, where it is learned"
    )
    target_entropy: Nats | tuple[Nats, ...] | None = Field(
        None,
        description="entropy that a learned temperature keeps, of actions in [-1, 1]; null: minus "
        "the numbers of an action",
    )


Config = SACConfig
