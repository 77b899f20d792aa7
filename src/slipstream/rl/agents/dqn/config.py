"""Configuration of DQN."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
from pydantic import Field

from slipstream.core.bounds import Count, Fraction, Natural, StepSize
from slipstream.core.config import tunable
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.off_policy.config import OffPolicyConfig


class DQNConfig(OffPolicyConfig):
    """Deep Q-learning (Mnih et al. 2015). Sources of defaults: docs/reference/agents.md."""

    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        *OffPolicyConfig.PER_MEMBER,
        "exploration_initial_eps",
        "exploration_final_eps",
        "exploration_steps",
    )

    learning_rate: StepSize | tuple[StepSize, ...] = Field(
        5e-4, description="Learning rate of Adam.", json_schema_extra=tunable(1e-4, 3e-3, log=True)
    )
    double: bool = Field(
        True,
        description="Double DQN: the online network selects the next action.",
        json_schema_extra=tunable(choices=[False, True], by_default=False),
    )
    dueling: bool = Field(
        False,
        description="Dueling network with a hidden layer per stream.",
        json_schema_extra=tunable(choices=[False, True], by_default=False),
    )
    exploration_initial_eps: Fraction | tuple[Fraction, ...] = Field(
        1.0, description="Initial probability of a random action."
    )
    exploration_final_eps: Fraction | tuple[Fraction, ...] = Field(
        0.05,
        description="Final probability of a random action.",
        json_schema_extra=tunable(0.01, 0.2, log=True),
    )
    exploration_steps: Natural | tuple[Natural, ...] = Field(
        10_000,
        description="Environment steps over which epsilon decays linearly.",
        json_schema_extra=tunable(1_000, 50_000, log=True),
    )
    target_update_interval: Count = Field(
        250,
        description="Gradient updates between target-network updates.",
        json_schema_extra=tunable(choices=[100, 250, 500, 1000], by_default=False),
    )

    def check_spaces(self, spec: EnvSpec) -> None:
        """Check for a Discrete action space. Image networks do not support dueling."""
        super().check_spaces(spec)
        if self.dueling and spec.is_image:
            raise ConfigError(
                "agent.dueling does not support image observations, which this environment has. "
                "Set it to false."
            )
        if len(spec.nvec) == 1:
            return
        fit = "ppo" if spec.nvec else "sac, td3 or ppo"
        raise ConfigError(
            f"dqn needs Discrete actions, got {spec.action_space}. Agents that fit: {fit} (`agent: "
            f"{{name: {fit.partition(' ')[0].rstrip(',')}}}`)."
        )

    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the bytes of an iteration's rows, weights, target, gradients and moments."""
        from slipstream.rl.experience.rollout import rollout_bytes

        rollout = rollout_bytes(spec, self.iteration_steps(num_envs), members, num_envs)
        return rollout + (4 + self.parts(num_envs)) * self.weight_bytes(spec) * members

    def state_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of weights, target and two moments."""
        return 4 * self.weight_bytes(spec)

    def weight_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of one network, float32, with biases."""
        inputs, width = int(np.prod(spec.observation_shape)) + 1, self.net_arch[-1]
        hidden = (*self.net_arch[:-1], 2 * width) if self.dueling else self.net_arch
        widths = (inputs, *hidden, spec.num_actions + self.dueling)
        return 4 * sum(a * b for a, b in itertools.pairwise(widths))


Config = DQNConfig
