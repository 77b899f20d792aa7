"""Base class of built-in agents: policy, running scales, learning rates and named state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.storage.checkpoint import strip_prefix
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.agent import Agent
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.experience.running_mean_std import RewardScaler
from slipstream.rl.nets.actions import Head
from slipstream.rl.nets.optimizer import Parameters
from slipstream.rl.nets.policy import Policy


class PopulationAgent(Agent):
    """M members with a policy; subclasses add further networks, acting and learning.

    Args:
        config: agent config whose per-member lists have length M.
        specs: the environment's EnvSpec, or one per member (they may differ in fixed scales).
        seeds: [M].
        num_envs: N, environments per member.
        parts: number of gradient buffers of the policy.
        network: further arguments of `Policy`.

    Attributes:
        head: type of the policy's head; None for the default of `ActionMap`.
        policy: weights, observation scaling, action mapping.
        groups: saved `Parameters` by name; `parameters` are the policy's.
        targets: saved target networks, float32 [M, P] by name.
        counts: further saved arrays [M] by name.
        gamma: float64 [M], discount factor.
        reward_scale: running scale of rewards; None if rewards are not scaled.
    """

    config: Any
    head: ClassVar[Head | None] = None

    def __init__(
        self,
        config: Any,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
        **network: Any,
    ) -> None:
        specs = [specs] * len(seeds) if isinstance(specs, EnvSpec) else list(specs)
        config.check_spaces(specs[0])
        self.seeds = np.asarray([int(seed) % 2**64 for seed in seeds], np.uint64)
        self.config, self.members, self.num_envs = config, len(self.seeds), num_envs
        self.policy = policy = Policy(
            specs,
            [int(seed) for seed in seeds],
            net_arch=config.net_arch,
            activation=config.activation,
            observation_normalization=config.observation_normalization,
            parts=parts,
            head=self.head,
            **network,
        )
        self.groups: dict[str, Parameters] = {"parameters": policy.parameters}
        self.targets: dict[str, NDArray[np.float32]] = {}
        self.counts: dict[str, NDArray[Any]] = {}
        self.gamma = config.per_member("gamma", self.members)
        self._rates: NDArray[np.float64] = config.per_member("learning_rate", self.members)
        scaled = config.reward_scaling == "on" or (
            config.reward_scaling == "auto" and specs[0].scale_reward
        )
        self.reward_scale = RewardScaler(self.members, num_envs) if scaled else None
        if policy.scale is not None:
            policy.scale.prepare()
        shape = self.members * num_envs, policy.actions.width
        self._env_actions = np.zeros(shape, policy.actions.dtype)

    def learning_rate_at(self, progress: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return learning rates [M] for the fraction of the budget that is used."""
        if self.config.learning_rate_schedule == "linear":
            return self._rates * np.maximum(0.0, 1.0 - np.asarray(progress))
        return self._rates.copy()

    def scaled_reward(self, rollout: Rollout) -> NDArray[np.float32]:
        """Return rewards for learning, float32 [T, E], divided by an updated scale, if any."""
        if self.reward_scale is None:
            return rollout.reward
        ended = rollout.terminated | rollout.truncated
        gamma = np.repeat(self.gamma.astype(np.float32), self.num_envs)
        return self.reward_scale.scale(rollout.reward, ended, rollout.valid, gamma)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the small part of the training state; the first axis is the member.

        A range of members is a range of rows of each array, so shards are joined by concatenation.
        """
        state = {
            f"{group}.{name}": value
            for group, parameters in self.groups.items()
            for name, value in parameters.state_dict().items()
        }
        state |= {f"target.{name}": target.copy() for name, target in self.targets.items()}
        for prefix, scale in self._scales().items():
            state |= {f"{prefix}.{name}": value for name, value in scale.state_dict().items()}
        return state | {name: count.copy() for name, count in self.counts.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""
        for name, part in {**self.groups, **self._scales()}.items():
            part.load_state_dict(strip_prefix(f"{name}.", state))
        for name, target in self.targets.items():
            target[:] = state[f"target.{name}"]
        for name, count in self.counts.items():
            count[:] = state[name]
        self.refresh()

    def refresh(self) -> None:
        """Adopt replaced settings, scales or weights, between two iterations."""

    def _scales(self) -> dict[str, Any]:
        """Running scales by name in the state."""
        scales = {"observation": self.policy.scale, "reward": self.reward_scale}
        return {name: scale for name, scale in scales.items() if scale is not None}
