"""What both forms of soft actor-critic have besides an actor and two critics: the temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.actor_critic.base import ActorCritic
from slipstream.agents.sac.config import SACConfig
from slipstream.agents.sac.gradients import STATISTICS, Entropy
from slipstream.core.spec import Spec
from slipstream.nets.parameters import Parameters


class BaseSAC(ActorCritic):
    """M members; a form adds how they act and learn.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        temperature: group of log alpha, which stays where it is unless `automatic`.
        entropy: what is wanted of it.
    """

    config: SACConfig
    head = "squashed_gaussian"
    statistics = STATISTICS
    state_version = 2  # of markets it has the rewards' scale

    def __init__(
        self,
        config: SACConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts)
        self.temperature = Parameters({"log_alpha": (1,)}, self.members)
        fixed = config.per_member("temperature", self.members)
        automatic = np.isinf(fixed)
        first = config.per_member("initial_temperature", self.members)
        self.temperature.weights["log_alpha"][:, 0] = np.log(np.where(automatic, first, fixed))
        self.groups["temperature"] = self.temperature
        width = float(self.policy.actions.width)
        target = config.per_member("target_entropy", self.members, -width)
        self.entropy = Entropy(target, automatic)

    def own_metrics(self) -> dict[str, NDArray[Any]]:
        log_alpha = self.temperature.weights["log_alpha"][:, 0].astype(np.float64)
        return {"temperature": np.exp(log_alpha)}
