"""What both forms of DQN have: networks of choices' values, their targets, and exploration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.dqn.config import DQNConfig
from slipstream.agents.dqn.update import STATISTICS
from slipstream.agents.off_policy.base import OffPolicyAgent, spec_of_each
from slipstream.core.spec import Spec
from slipstream.nets.policy import Policy


class BaseDQN(OffPolicyAgent):
    """M members; a form adds how they act and learn.

    Args:
        config: its per-member lists have length M.
        specs: the environment's Spec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.

    Attributes:
        sums: float64 [M, S], STATISTICS summed over this iteration's updates.
    """

    config: DQNConfig

    def __init__(
        self, config: DQNConfig, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        specs = spec_of_each(specs, len(seeds))
        config.check_spaces(specs[0])
        policy = Policy(
            specs,
            [int(seed) for seed in seeds],
            widths=config.widths,
            activation=config.activation,
            observation_normalization=config.observation_normalization,
            head="q",
            dueling=config.dueling,
        )
        super().__init__(config, specs[0], seeds, num_envs, policy)
        members = self.members
        self.choices = policy.actions.head_width
        self.targets["values"] = policy.parameters.flat.copy()
        names = ("exploration_initial", "exploration_final", "exploration_steps")
        self.exploration = np.stack([config.per_member(name, members) for name in names], 1)
        self.sums = np.zeros((members, len(STATISTICS)))
        self._env_actions = np.zeros((members * num_envs, 1), np.int64)

    @property
    def epsilon(self) -> NDArray[np.float64]:
        """[M], share of random choices at each member's next step."""
        initial, final, steps = self.exploration.T
        share = np.minimum(self.steps / np.maximum(steps, 1), 1.0)
        falling = initial + (final - initial) * np.where(steps > 0, share, 1.0)
        return np.where(self.steps < self.config.learning_starts, 1.0, falling)

    def finished(self) -> dict[str, NDArray[Any]]:
        """loss, q_value (of what was chosen) and gradient_norm, means over updates; epsilon."""
        means = self.sums / np.maximum(self.updates, 1)[:, None]
        metrics = {
            **dict(zip(STATISTICS, means.T.copy(), strict=True)),
            "epsilon": self.epsilon,
        }
        self.sums[:] = 0.0
        return metrics
