"""What both forms of PPO have: members with their policy, their scales and their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import Agent
from slipstream.agents.ppo.config import PPOConfig, Settings
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.experience.scaling import RewardScale
from slipstream.machine import draws
from slipstream.nets.policy import Policy


class BasePPO(Agent):
    """M members; a form adds how they act and learn.

    Args:
        config: its per-member lists have length M.
        specs: the environment's Spec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.
        parts: gradient buffers.

    Attributes:
        policy: weights, observation scaling, action mapping.
        iterations: int64 [M], rollouts that each member learned from.
    """

    def __init__(
        self,
        config: PPOConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        self.seeds = np.asarray([int(seed) % 2**64 for seed in seeds], np.uint64)
        members = len(self.seeds)
        specs = [specs] * members if isinstance(specs, Spec) else list(specs)
        self.config, self.members, self.num_envs = config, members, num_envs
        self.horizon, self.parts = config.horizon, parts
        self.policy = Policy(
            specs,
            [int(seed) for seed in seeds],
            widths=config.widths,
            activation=config.activation,
            observation_normalization=config.observation_normalization,
            initial_std=config.initial_std,
            parts=parts,
        )
        self.iterations = np.zeros(members, np.int64)
        self.settings = Settings.of(config, members)
        scaled = config.reward_scaling == "on" or (
            config.reward_scaling == "auto" and specs[0].scale_reward
        )
        self.reward_scale = RewardScale(members, num_envs) if scaled else None
        self._keys: NDArray[np.uint64] | None = None  # of this rollout's action noise
        self._env_actions = np.zeros(
            (members * num_envs, self.policy.actions.width), self.policy.actions.dtype
        )

    def _noise_keys(self) -> NDArray[np.uint64]:
        """Streams of the action noise, [T, M], by each member's own count of steps."""
        if self._keys is None:
            steps = self.iterations * self.horizon + np.arange(self.horizon)[:, None]
            self._keys = draws.own_keys(self.seeds, draws.ACT, steps)
        return self._keys

    def _spread(self, per_member: NDArray[np.float64]) -> NDArray[np.float32]:
        """[M] -> float32 [E]."""
        return np.repeat(per_member.astype(np.float32), self.num_envs)

    def _scaled_reward(self, rollout: Rollout) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """[T, E], after taking a rollout's rewards into account; and which members learn, [M].

        Until a member's first reward other than 0 its advantages are what its critic's first
        weights differ by. Brought to deviation 1 they would move its policy as much as rewards do,
        and make it sure of actions that it knows nothing of; so only its critic learns.
        """
        if self.reward_scale is None:
            return rollout.reward, np.ones(self.members, np.bool_)
        ended = rollout.terminated | rollout.truncated
        gamma = self._spread(self.settings.discount)
        reward = self.reward_scale.scale(rollout.reward, ended, rollout.valid, gamma)
        return reward, self.reward_scale.largest != 0.0

    def _learning_rate(self, progress: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """[M], for the share of the budget that is used."""
        rate = self.settings.learning_rate.copy()
        if self.config.learning_rate_schedule == "linear":
            rate *= np.maximum(0.0, 1.0 - np.asarray(progress))
        return rate

    def _finished(
        self, rollout: Rollout, results: Sequence[Mapping[str, NDArray[Any]]], **known: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        """Ends an iteration: metrics [M] of what groups of members gave, [g], and those known."""
        if self.policy.scale is not None:
            self.policy.scale.learn(rollout)
        self.iterations += 1
        self._keys = None
        metrics = {
            name: np.concatenate([result[name] for result in results]) for name in results[0]
        }
        return {**metrics, **known, "failed": self.policy.parameters.failed.copy()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from: named arrays whose first axis is the member.

        The state of some members is the same rows of each tensor: shards are joined by
        concatenation.
        """
        state = {f"parameters.{k}": v for k, v in self.policy.parameters.state_dict().items()}
        if self.policy.scale is not None:
            state |= {f"observation.{k}": v for k, v in self.policy.scale.state_dict().items()}
        if self.reward_scale is not None:
            state |= {f"reward.{k}": v for k, v in self.reward_scale.state_dict().items()}
        state["iteration"] = self.iterations.copy()
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""

        def under(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        self.policy.parameters.load_state_dict(under("parameters."))
        if self.policy.scale is not None:
            self.policy.scale.load_state_dict(under("observation."))
        if self.reward_scale is not None:
            self.reward_scale.load_state_dict(under("reward."))
        self.iterations = state["iteration"].astype(np.int64)
        self._keys = None
