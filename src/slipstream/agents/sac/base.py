"""What both forms of soft actor-critic have: networks, temperature, settings and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.off_policy.base import OffPolicyAgent, spec_of_each
from slipstream.agents.sac.config import SACConfig
from slipstream.agents.sac.critics import Critics
from slipstream.agents.sac.learned import STATISTICS, Settings, Tally
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy


class BaseSAC(OffPolicyAgent):
    """M members; a form adds how they act and learn.

    Args:
        config: its per-member lists have length M.
        specs: the environment's Spec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.
        parts: gradient buffers of the actor.

    Attributes:
        critics: both, with their targets.
        temperature: group of log alpha, which stays where it is unless `automatic`.
        tally: of this iteration.
    """

    config: SACConfig
    state_version = 2  # of markets it has the rewards' scale

    def __init__(
        self,
        config: SACConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        specs, seeds = spec_of_each(specs, len(seeds)), [int(seed) for seed in seeds]
        config.check_spaces(specs[0])
        policy = Policy(
            specs,
            seeds,
            widths=config.widths,
            activation=config.activation,
            observation_normalization=config.observation_normalization,
            parts=parts,
            head="squashed_gaussian",
        )
        super().__init__(config, specs[0], seeds, num_envs, policy)
        assert isinstance(policy.network, MlpNetwork)
        self.numbers = int(np.prod(specs[0].observation_shape))
        self.critics = Critics(
            *(self.numbers, policy.actions.width, config.widths, config.activation, seeds),
            *(len(policy.network.mlps[0].layers),),
        )
        self.temperature = Parameters({"log_alpha": (1,)}, self.members)
        fixed = config.per_member("temperature", self.members)
        self.automatic = np.isinf(fixed)
        first = config.per_member("initial_temperature", self.members)
        alpha = np.where(self.automatic, first, fixed)
        self.temperature.weights["log_alpha"][:, 0] = np.log(alpha)
        for c, group in enumerate(self.critics.groups):
            self.groups[f"critic_{c}"] = group
            self.targets[f"critic_{c}"] = self.critics.targets[c]
        self.groups["temperature"] = self.temperature
        members = self.members
        self.tally = Tally(np.zeros((members, len(STATISTICS) + 1)), np.zeros(members, np.int64))

    @property
    def settings(self) -> Settings:
        """Of this iteration."""
        config, members = self.config, self.members
        return Settings(
            learning_rate=self.learning_rate,
            adam_eps=config.per_member("adam_eps", members),
            max_grad_norm=config.per_member("max_grad_norm", members),
            target_rate=config.per_member("target_rate", members),
            target_entropy=config.per_member(
                "target_entropy", members, -float(self.policy.actions.width)
            ),
            automatic=self.automatic,
            reward_factor=self.reward_factor,
            target_every=config.target_every,
        )

    def finished(
        self, rollout: Rollout, progress: float | NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        """Ends an iteration: metrics [M] by name."""
        sums, updates = self.tally
        means = sums / np.maximum(updates, 1)[:, None]
        metrics = {
            **dict(zip((*STATISTICS, "gradient_norm"), means.T.copy(), strict=True)),
            "temperature": np.exp(self.temperature.weights["log_alpha"][:, 0].astype(np.float64)),
            "learning_rate": self.learning_rate,
            "updates": updates.copy(),
            "failed": self.policy.parameters.failed.copy(),
        }
        sums[:], updates[:] = 0.0, 0
        self.conclude(rollout, progress)
        return metrics
