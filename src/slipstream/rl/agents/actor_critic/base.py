"""What both forms of agents with an actor and two critics have: networks, settings and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import Spec
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig
from slipstream.rl.agents.actor_critic.update import CRITICS, STATISTICS, VALUE, Settings, Tally
from slipstream.rl.agents.off_policy.base import OffPolicyAgent
from slipstream.rl.agents.population import spec_of_each
from slipstream.rl.nets.actions import Head
from slipstream.rl.nets.networks import Activation, Mlp, MlpNetwork
from slipstream.rl.nets.parameters import Parameters, places
from slipstream.rl.nets.policy import Policy


class Critics:
    """Q(s, a) of M members, twice (Fujimoto et al. 2018, "Addressing function approximation error
    in actor-critic methods": the smaller of two values is overestimated less).

    Args:
        numbers: D of an observation; width: K of an action.
        widths: hidden layers.
        activation: between layers.
        seeds: [M]; a member's first weights follow from its seed alone.
        first: number of the first matrix, those before it being the actor's.

    Attributes:
        groups: weights of each critic; targets: float32 [M, P] of each, equal to them at first.
        table: int64 [L, 7], as `layers.py` reads it.
        mlp: layers; the input is the action, and after it the observation.
    """

    def __init__(
        self,
        numbers: int,
        width: int,
        widths: Sequence[int],
        activation: Activation,
        seeds: Sequence[int],
        first: int,
    ) -> None:
        sizes = (width + numbers, *widths, 1)
        self.mlp = Mlp("critic", sizes, activation, None)
        self.groups = [Parameters(self.mlp.shapes(), len(seeds)) for _ in range(CRITICS)]
        self.table = self.mlp.table(places(self.mlp.shapes())[0])
        for c, group in enumerate(self.groups):
            self.mlp.initialise(group.weights, seeds, first + c * len(self.mlp.layers))
        self.targets: list[NDArray[np.float32]] = [group.flat.copy() for group in self.groups]


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
        tally: what the updates of this iteration saw.
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

    @property
    def made(self) -> NDArray[np.int64]:
        return self.critics.groups[0].arrays.steps

    @property
    def actor_every(self) -> int:
        """Updates of the critics between two of the actor."""
        return 1

    @property
    def settings(self) -> Settings:
        """What the updates of this iteration take of the config, [M] each."""
        return Settings(
            *self.step_settings,
            reward_factor=self.reward_factor,
            target_every=self.config.target_every,
            actor_every=self.actor_every,
        )

    def finished(self) -> dict[str, NDArray[Any]]:
        """The metrics of an iteration, [M] by name, which are counted anew from here on.

        Returns:
            critic_loss, value (of what was chosen), actor_loss, gradient_norm (the actor's, before
            it was shortened), means over updates; and those of the agent.
        """
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
