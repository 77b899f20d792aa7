"""What agents that learn from a replay have in common, in both forms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import Agent
from slipstream.agents.off_policy.config import OffPolicyConfig
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.experience.scaling import RewardScale
from slipstream.nets.parameters import Parameters
from slipstream.nets.policy import Policy

Column: TypeAlias = NDArray[np.float64]  # [M]


class OffPolicyAgent(Agent):
    """M members with their counts and schedules; an agent adds networks, acting and learning.

    Args:
        config: its per-member lists have length M.
        spec: of the environment; it says whether its rewards are to be scaled.
        seeds: [M].
        num_envs: N, copies per member.
        policy: what acts.

    Attributes:
        groups: `Parameters` by name; `parameters` are the policy's. All are saved.
        targets: float32 [M, P] by name, copies of groups that follow them. All are saved.
        steps: int64 [M], environment steps that each member has acted in.
        progress: float64 [M], share of the budget that was spent before the last iteration: what
            schedules follow during the next one.
        discount: float64 [M].
        updates: int64 [M], how many there were in this iteration.
        reward_scale: of all rewards that were seen, where they are scaled. The replay keeps them
            as they were.
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
        self.seeds = np.asarray([int(seed) % 2**64 for seed in seeds], np.uint64)
        self.config, self.members, self.num_envs = config, len(self.seeds), num_envs
        self.policy = policy
        self.groups: dict[str, Parameters] = {"parameters": policy.parameters}
        self.targets: dict[str, NDArray[np.float32]] = {}
        self.steps = np.zeros(self.members, np.int64)
        self.progress = np.zeros(self.members)
        self.updates = np.zeros(self.members, np.int64)
        self.discount = config.per_member("discount", self.members)
        scaled = config.reward_scaling == "on" or (
            config.reward_scaling == "auto" and spec.scale_reward
        )
        self.reward_scale = RewardScale(self.members, num_envs) if scaled else None
        self._rates = config.per_member("learning_rate", self.members)
        self._importance = config.per_member("importance_exponent", self.members)

    @property
    def made(self) -> NDArray[np.int64]:
        """int64 [M], updates that each member has made: they name its draws."""
        return self.policy.parameters.arrays.steps

    @property
    def learning_rate(self) -> NDArray[np.float64]:
        """[M], of this iteration."""
        if self.config.learning_rate_schedule == "linear":
            return self._rates * np.maximum(0.0, 1.0 - self.progress)
        return self._rates.copy()

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
        run: RunTasks = in_sequence,
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
        if self.reward_scale is not None:
            ended = rollout.terminated | rollout.truncated
            gamma = np.repeat(self.discount.astype(np.float32), self.num_envs)
            self.reward_scale.scale(rollout.reward, ended, rollout.valid, gamma)
        self.progress[:] = progress
        self.refresh()
        return metrics

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything small that training goes on from; the first axis is the member."""
        state = {
            f"{group}.{name}": value
            for group, parameters in self.groups.items()
            for name, value in parameters.state_dict().items()
        }
        state |= {f"target.{name}": target.copy() for name, target in self.targets.items()}
        if self.policy.scale is not None:
            state |= {f"observation.{k}": v for k, v in self.policy.scale.state_dict().items()}
        if self.reward_scale is not None:
            state |= {f"reward.{k}": v for k, v in self.reward_scale.state_dict().items()}
        return {**state, "steps": self.steps.copy(), "progress": self.progress.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""

        def under(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        for group, parameters in self.groups.items():
            parameters.load_state_dict(under(f"{group}."))
        for name, target in self.targets.items():
            target[:] = state[f"target.{name}"]
        if self.policy.scale is not None:
            self.policy.scale.load_state_dict(under("observation."))
        if self.reward_scale is not None:
            self.reward_scale.load_state_dict(under("reward."))
        self.steps[:] = state["steps"]
        self.progress[:] = state["progress"]
        self.refresh()

    def refresh(self) -> None:
        """Called where settings, scales or weights were replaced: between two iterations."""


def spec_of_each(specs: Spec | Sequence[Spec], members: int) -> list[Spec]:
    """A Spec for each member."""
    return [specs] * members if isinstance(specs, Spec) else list(specs)
