"""What agents that learn from a replay have in common, in both forms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.gate import RunTasks, in_sequence
from slipstream.kernels.spec import Spec
from slipstream.rl.agents.off_policy.config import OffPolicyConfig
from slipstream.rl.agents.population import PopulationAgent
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.policy import Policy

Column: TypeAlias = NDArray[np.float64]  # [M]


class OffPolicyAgent(PopulationAgent):
    """M members with their counts and schedules; an agent adds networks, acting and learning.

    Args:
        config: its per-member lists have length M.
        spec: of the environment; it says whether its rewards are to be scaled.
        seeds: [M].
        num_envs: N, copies per member.
        policy: what acts.

    Attributes:
        steps: int64 [M], environment steps that each member has acted in.
        progress: float64 [M], share of the budget that was spent before the last iteration: what
            schedules follow during the next one.
        updates: int64 [M], how many there were in this iteration.
    """

    wants: ClassVar[Literal["rollout", "replay"]] = "replay"

    def __init__(
        self,
        config: OffPolicyConfig,
        spec: Spec,
        seeds: Sequence[int],
        num_envs: int,
        policy: Policy,
    ) -> None:
        super().__init__(config, spec, seeds, num_envs, policy)
        self.steps = np.zeros(self.members, np.int64)
        self.progress = np.zeros(self.members)
        self.updates = np.zeros(self.members, np.int64)
        self.counts |= {"steps": self.steps, "progress": self.progress}
        self._importance = config.per_member("importance_exponent", self.members)

    @property
    def made(self) -> NDArray[np.int64]:
        """int64 [M], updates that each member has made: they name its draws."""
        return self.policy.parameters.arrays.steps

    @property
    def learning_rate(self) -> NDArray[np.float64]:
        """[M], of this iteration."""
        return self.rate_at(self.progress)

    @property
    def step_settings(self) -> tuple[Column, Column, Column, Column]:
        """[M] each, of this iteration: learning_rate, adam_eps, max_grad_norm and target_rate."""
        names = ("adam_eps", "max_grad_norm", "target_rate")
        epsilon, norm, target = (self.config.per_member(name, self.members) for name in names)
        return self.learning_rate, epsilon, norm, target

    @property
    def importance(self) -> NDArray[np.float64]:
        """[M], the exponent beta of importance weights: linear to 1 (Schaul et al. 2016, 3.4)."""
        return self._importance + (1.0 - self._importance) * np.minimum(self.progress, 1.0)

    @property
    def reward_factor(self) -> NDArray[np.float64]:
        """[M], what rewards are multiplied by when they are learned from."""
        if self.reward_scale is None:
            return np.ones(self.members)
        return 1.0 / self.reward_scale.divisor

    @abstractmethod
    def finished(self) -> dict[str, NDArray[Any]]:
        """Metrics [M] by name of this iteration's updates, whose sums then begin anew."""

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        """Ends an iteration: its observations and rewards count for the next one's scales.

        Returns:
            Metrics as `finished` says, learning_rate, updates and failed, [M].
        """
        metrics = {
            **self.finished(),
            "learning_rate": self.learning_rate,
            "updates": self.updates.copy(),
            "failed": self.policy.parameters.failed.copy(),
        }
        self.updates[:] = 0
        if self.policy.scale is not None:
            self.policy.scale.learn(rollout)
        self.scaled_reward(rollout)  # a replay keeps rewards as they were
        self.progress[:] = progress
        self.refresh()
        return metrics
