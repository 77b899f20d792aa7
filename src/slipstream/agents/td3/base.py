"""What both forms of TD3 have besides an actor and two critics: the actor's target, and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.td3.config import TD3Config
from slipstream.core.spec import Spec


class Smoothing(NamedTuple):
    """Of the target's actions: deviation of the noise, and where it is cut; [M], or as tensors."""

    noise: Any
    limit: Any


class BaseTD3(ActorCritic):
    """M members; a form adds how they act and learn.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        noise: float64 [M], deviation of what is added to actions in training.
        smoothing: of targets.
    """

    config: TD3Config
    head = "tanh"

    def __init__(
        self,
        config: TD3Config,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts)
        self.noise = config.per_member("exploration_noise", self.members)
        names = ("smoothing_noise", "smoothing_limit")
        self.smoothing = Smoothing(*(config.per_member(name, self.members) for name in names))
        self.targets["actor"] = self.policy.parameters.flat.copy()

    @property
    def actor_every(self) -> int:
        return self.config.target_every
