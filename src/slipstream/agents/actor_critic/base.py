"""What both forms of agents with an actor and two critics have: networks, settings and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.actor_critic.config import ActorCriticConfig
from slipstream.agents.actor_critic.critics import Critics
from slipstream.agents.actor_critic.learned import STATISTICS, VALUE, Settings, Tally
from slipstream.agents.off_policy.base import OffPolicyAgent, spec_of_each
from slipstream.core.spec import Spec
from slipstream.nets.actions import Head
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.policy import Policy


class ActorCritic(OffPolicyAgent):
    """M members; an agent adds what its policy is, a form how it acts and learns.

    Args:
        config: its per-member lists have length M.
        specs: the environment's Spec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.
        parts: gradient buffers of the actor.

    Attributes:
        head: of the policy; statistics: names of what an update counts, STATISTICS first.
        critics: both, with their targets.
        noise: of `Explorer`, where there is any.
        tally: of this iteration.
    """

    head: ClassVar[Head]
    statistics: ClassVar[tuple[str, ...]] = STATISTICS
    config: ActorCriticConfig

    def __init__(
        self,
        config: ActorCriticConfig,
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
            head=self.head,
        )
        super().__init__(config, specs[0], seeds, num_envs, policy)
        assert isinstance(policy.network, MlpNetwork)
        self.numbers = int(np.prod(specs[0].observation_shape))
        self.critics = Critics(
            *(self.numbers, policy.actions.width, config.widths, config.activation, seeds),
            *(len(policy.network.mlps[0].layers),),
        )
        for c, group in enumerate(self.critics.groups):
            self.groups[f"critic_{c}"] = group
            self.targets[f"critic_{c}"] = self.critics.targets[c]
        sums = np.zeros((self.members, len(self.statistics) + 1))
        self.tally = Tally(sums, self.updates, np.zeros(self.members, np.int64))
        self.noise = np.zeros(0)
        self._env_actions = np.zeros((self.members * num_envs, policy.actions.width), np.float32)

    @property
    def made(self) -> NDArray[np.int64]:
        return self.critics.groups[0].arrays.steps

    @property
    def actor_every(self) -> int:
        """Updates of the critics between two of the actor."""
        return 1

    @property
    def settings(self) -> Settings:
        """Of this iteration."""
        return Settings(
            *self.step_settings,
            reward_factor=self.reward_factor,
            target_every=self.config.target_every,
            actor_every=self.actor_every,
        )

    def finished(self) -> dict[str, NDArray[Any]]:
        """critic_loss, value (of what was chosen), actor_loss, gradient_norm (the actor's, before
        it was shortened), means over updates; and those of the agent."""
        sums, updates, moves = self.tally
        counts = np.where(np.arange(sums.shape[1]) <= VALUE, updates[:, None], moves[:, None])
        means = sums / np.maximum(counts, 1)
        metrics = {
            **dict(zip((*self.statistics, "gradient_norm"), means.T.copy(), strict=True)),
            **self.own_metrics(),
        }
        sums[:], moves[:] = 0.0, 0
        return metrics

    def own_metrics(self) -> dict[str, NDArray[Any]]:
        """What an agent adds to the metrics of an iteration, [M] by name."""
        return {}
