"""Shared configuration of off-policy agents."""

from __future__ import annotations

import fractions
import itertools
import math
from collections.abc import Container
from typing import ClassVar, Literal, Self

from pydantic import Field

from slipstream.core.bounds import Count, Epsilon, Fraction, Natural, Positive, Share, StepSize
from slipstream.core.config import tunable
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.experience.replay.replay_config import ReplayConfig, check_symmetry

ITERATION_STEPS = 1024  # steps of a member per iteration if `iteration` is null
VECTOR_STEP = "vector_step"  # one update per step of all environments
UpdatesPerStep = Positive | Literal["vector_step"]
STUDY_REPLAY = 100_000  # default maximum buffer size of a study's member


class OffPolicyConfig(AgentConfig):
    """Fields shared by off-policy agents.

    Steps are environment steps of a member, over all its environments. Updates are gradient
    updates; each samples `batch_size` transitions.

    Attributes:
        WORK_TO_SHARE: minimum number of multiplications between hidden layers in one pass of a
            batch for which two cores are faster than one.
    """

    WORK_TO_SHARE: ClassVar[int] = 1_000_000

    PER_MEMBER: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "gamma",
        "max_grad_norm",
        "adam_eps",
        "tau",
        "importance_exponent",
    )
    # Acting is not limited by Python; more environments learn no better
    # (docs/explanation/agent-defaults.md).
    MAX_NUM_ENVS: ClassVar[int | None] = 1
    LENGTHS: ClassVar[tuple[str, ...]] = ("iteration",)
    SIZES: ClassVar[tuple[str, ...]] = ("buffer_size", "net_arch")

    learning_rate: StepSize | tuple[StepSize, ...] = Field(
        3e-4, description="Learning rate of Adam.", json_schema_extra=tunable(1e-4, 3e-3, log=True)
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="Learning rate schedule; linear decays to 0 at the end of the budget.",
        json_schema_extra=tunable(choices=["constant", "linear"], by_default=False),
    )
    gamma: Fraction | tuple[Fraction, ...] = Field(
        0.99,
        description="Discount factor per step.",
        json_schema_extra=tunable(choices=[0.8, 0.9, 0.95, 0.98, 0.99, 0.995]),
    )
    max_grad_norm: Positive | tuple[Positive, ...] | None = Field(
        10.0,
        description="Maximum gradient norm per member; null disables clipping.",
        json_schema_extra=tunable(0.5, 20.0, log=True, by_default=False),
    )
    adam_eps: Epsilon | tuple[Epsilon, ...] = Field(
        1e-8,
        description="Epsilon of Adam.",
        json_schema_extra=tunable(1e-8, 1e-4, log=True, by_default=False),
    )
    tau: Share | tuple[Share, ...] = Field(
        1.0, description="Polyak factor tau of a target update; 1 copies the weights."
    )
    observation_normalization: bool = Field(
        True,
        description="Normalize observation columns without a fixed scale by running statistics.",
    )
    reward_scaling: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Divide rewards by a running deviation of the return; auto: only on markets.",
    )
    prioritised: bool = Field(
        False,
        description="Prioritized replay: sample transitions by their last TD error.",
        json_schema_extra=tunable(choices=[False, True], by_default=False),
    )
    priority_exponent: Fraction = Field(
        0.6,
        description="Priority exponent alpha; 0 samples uniformly.",
        json_schema_extra=tunable(0.3, 0.8, when={"prioritised": True}, by_default=False),
    )
    importance_exponent: Fraction | tuple[Fraction, ...] = Field(
        0.4,
        description="Initial importance exponent beta; 1 at the end of the budget.",
        json_schema_extra=tunable(0.2, 1.0, when={"prioritised": True}, by_default=False),
    )

    buffer_size: Count = Field(
        100_000, description="Replay buffer size per member, in transitions."
    )
    batch_size: Count = Field(
        64,
        description="Batch size of an update.",
        json_schema_extra=tunable(5, 8, power_of=2, by_default=False),
    )
    learning_starts: Natural = Field(
        1000, description="Environment steps with random actions before the first update."
    )
    utd_ratio: UpdatesPerStep = Field(
        0.25,
        description="Gradient updates per environment step, the same for any num_envs; "
        "vector_step makes one per step of all environments.",
        json_schema_extra=tunable(0.0625, 1.0, log=True, by_default=False),
    )
    train_freq: Count = Field(
        1, description="Environment steps between two rounds of updates, at least num_envs."
    )
    target_update_interval: Count = Field(
        1, description="Gradient updates between target-network updates."
    )
    n_step: Count = Field(
        1,
        description="Number of rewards summed before bootstrapping.",
        json_schema_extra=tunable(choices=[1, 3, 5], by_default=False),
    )
    reflect: bool = Field(
        False,
        description="Reflect half of the transitions by the environment's symmetry (hockey).",
    )
    iteration: Count | None = Field(
        None,
        description="Steps per environment and iteration (metrics, validation); null uses 1,024 "
        "steps of a member.",
    )
    net_arch: tuple[Count, ...] = Field(
        (64, 64),
        min_length=1,
        description="Hidden layer widths.",
        json_schema_extra=tunable(choices=[[64, 64], [128, 128], [256, 256]], by_default=False),
    )
    activation: Literal["tanh", "relu"] = Field(
        "relu",
        description="Activation between layers.",
        json_schema_extra=tunable(choices=["tanh", "relu"], by_default=False),
    )

    def iteration_steps(self, num_envs: int) -> int:
        """Return the steps of each environment; acting, stepping and learning are interleaved."""
        return self.iteration or max(1, ITERATION_STEPS // num_envs)

    def updates(self, num_envs: int) -> int:
        """Return the updates of an iteration after learning has begun, rounded up."""
        return math.ceil(self.iteration_steps(num_envs) * num_envs * self._pace(num_envs))

    def _pace(self, num_envs: int) -> float | fractions.Fraction:
        if self.utd_ratio == VECTOR_STEP:
            return fractions.Fraction(1, num_envs)
        return float(self.utd_ratio)

    def parts(self, num_envs: int) -> int:
        """Return the number of parts of a gradient, which two cores may share.

        It depends only on the member's own sizes: the multiplications between hidden layers.
        """
        work = self.batch_size * sum(a * b for a, b in itertools.pairwise(self.net_arch))
        return 2 if work >= self.WORK_TO_SHARE else 1

    def check_spaces(self, spec: EnvSpec) -> None:
        """Raise ConfigError for reflection without a symmetry."""
        if self.reflect:
            check_symmetry(spec)

    def replay(self, num_envs: int) -> ReplayConfig:
        """Return the replay configuration."""
        return ReplayConfig(
            buffer_size=self.buffer_size,
            batch_size=self.batch_size,
            learning_starts=self.learning_starts,
            train_freq=self.train_freq,
            utd_ratio=self._pace(num_envs),
            n_step=self.n_step,
            alpha=self.priority_exponent if self.prioritised else 0.0,
            reflect=self.reflect,
        )

    def rows(self, num_envs: int) -> int:
        """Return the batch size B."""
        return self.batch_size

    def for_study(self, user_set: Container[str]) -> Self:
        """Return the config with a replay of at most STUDY_REPLAY unless the user set a size."""
        if "buffer_size" in user_set or self.buffer_size <= STUDY_REPLAY:
            return self
        return self.model_copy(update={"buffer_size": max(STUDY_REPLAY, self.batch_size)})

    def check(self, num_envs: int) -> None:
        """Reject a buffer that is smaller than a batch or shorter than an n-step return."""
        self.replay(num_envs).check(num_envs)
