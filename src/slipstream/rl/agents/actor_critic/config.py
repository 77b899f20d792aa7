"""Shared configuration of agents with an actor and two critics."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slipstream.core.bounds import Count, Positive, Share
from slipstream.core.config import tunable
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.off_policy.config import OffPolicyConfig, UpdatesPerStep


class ActorCriticConfig(OffPolicyConfig):
    """Fields shared by soft actor-critic and TD3.

    Attributes:
        NAME: name of the agent, for messages.
        HEAD_WIDTH: outputs of the actor per number of an action.
    """

    NAME: ClassVar[str]
    HEAD_WIDTH: ClassVar[int] = 1

    tau: Share | tuple[Share, ...] = Field(
        0.005,
        description="Polyak factor tau of a target update; 1 copies the weights.",
        json_schema_extra=tunable(0.001, 0.05, log=True),
    )
    max_grad_norm: Positive | tuple[Positive, ...] | None = Field(
        None,
        description="Maximum gradient norm per network; null disables clipping.",
        json_schema_extra=tunable(0.5, 20.0, log=True, by_default=False),
    )
    observation_normalization: bool = Field(
        False,
        description="Normalize observation columns without a fixed scale by running statistics.",
    )
    buffer_size: Count = Field(
        1_000_000, description="Replay buffer size per member, in transitions."
    )
    batch_size: Count = Field(
        256,
        description="Batch size of an update.",
        json_schema_extra=tunable(6, 9, power_of=2, by_default=False),
    )
    utd_ratio: UpdatesPerStep = Field(
        1.0,
        description="Gradient updates per environment step, the same for any num_envs; "
        "vector_step makes one per step of all environments.",
        json_schema_extra=tunable(0.125, 1.0, log=True, by_default=False),
    )
    net_arch: tuple[Count, ...] = Field(
        (256, 256),
        min_length=1,
        description="Hidden layer widths of actor and critics.",
        json_schema_extra=tunable(choices=[[64, 64], [128, 128], [256, 256]], by_default=False),
    )

    def check_spaces(self, spec: EnvSpec) -> None:
        """Check for bounded continuous actions and flat observations."""
        super().check_spaces(spec)
        if spec.is_image:
            raise ConfigError(
                f"{self.NAME} does not support image observations, which this environment has. "
                "Choose ppo (`agent: {name: ppo}`)."
            )
        if isinstance(spec.action_space, spaces.Box):
            if np.isfinite([spec.action_space.low, spec.action_space.high]).all():
                return
            raise ConfigError(
                f"{self.NAME} needs bounded actions, got {spec.action_space} with a component "
                "without bounds. Choose ppo (`agent: {name: ppo}`), or set finite "
                "bounds in a function, where SIZE is the largest useful action: `lambda: "
                "gymnasium.wrappers.TransformAction(make(), lambda a: SIZE * a, "
                f"gymnasium.spaces.Box(-1.0, 1.0, {spec.action_space.shape}))`."
            )
        fit = "dqn or ppo" if len(spec.nvec) == 1 else "ppo"
        raise ConfigError(
            f"{self.NAME} needs continuous (Box) actions, got {spec.action_space}. "
            f"Agents that fit: {fit} (`agent: {{name: {fit.partition(' ')[0]}}}`)."
        )

    def weight_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of the actor, float32, with biases."""
        inputs = int(np.prod(spec.observation_shape)) + 1
        return 4 * _products(inputs, self.net_arch, self.HEAD_WIDTH * spec.action_dim)

    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the bytes of an iteration's rows, weights, gradients, moments and targets."""
        from slipstream.rl.experience.rollout import rollout_bytes

        rollout = rollout_bytes(spec, self.iteration_steps(num_envs), members, num_envs)
        arrays = 4  # weights, two moments and transposed matrices; gradients and targets follow
        actor = (arrays + self.parts(num_envs)) * self.weight_bytes(spec)
        return rollout + members * (actor + (arrays + 2) * self._critic_bytes(spec))

    def state_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of weights, two moments, and the critics' targets."""
        return 3 * self.weight_bytes(spec) + 4 * self._critic_bytes(spec)

    def _critic_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of both critics."""
        inputs = int(np.prod(spec.observation_shape)) + 1 + spec.action_dim
        return 2 * 4 * _products(inputs, self.net_arch, 1)


def _products(inputs: int, widths: tuple[int, ...], outputs: int) -> int:
    return sum(a * b for a, b in itertools.pairwise((inputs, *widths, outputs)))
