"""What a user may say about any agent that learns from a replay."""

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

ITERATION_STEPS = 1024  # of a member, where `iteration_steps` is null
VECTOR_STEP = "vector_step"  # one update for each step of all environments together
UpdatesPerStep = Positive | Literal["vector_step"]
STUDY_REPLAY = 100_000  # transitions of a study's member, where the user gives no number


class OffPolicyConfig(AgentConfig):
    """Fields that do not depend on what is learned.

    *Steps* are environment steps of a member, all its copies together; *updates* are optimiser
    updates. One update draws `batch` transitions.

    Attributes:
        WORK_TO_SHARE: multiplications between hidden layers in one pass of a batch, from which on
            two cores gain more by sharing it than they wait for each other.
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
    # Acting is not paced by Python, and more copies learn no better by steps (docs/agents.md).
    MAX_NUM_ENVS: ClassVar[int | None] = 1
    LENGTHS: ClassVar[tuple[str, ...]] = ("iteration",)
    SIZES: ClassVar[tuple[str, ...]] = ("buffer_size", "net_arch")

    learning_rate: StepSize | tuple[StepSize, ...] = Field(
        3e-4, description="Adam's step size", json_schema_extra=tunable(1e-4, 3e-3, log=True)
    )
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="linear: falls to 0 at the end of the budget",
        json_schema_extra=tunable(choices=["constant", "linear"], by_default=False),
    )
    gamma: Fraction | tuple[Fraction, ...] = Field(
        0.99,
        description="gamma, per step",
        json_schema_extra=tunable(choices=[0.8, 0.9, 0.95, 0.98, 0.99, 0.995]),
    )
    max_grad_norm: Positive | tuple[Positive, ...] | None = Field(
        10.0,
        description="a member's gradient is shortened to this length; null: never",
        json_schema_extra=tunable(0.5, 20.0, log=True, by_default=False),
    )
    adam_eps: Epsilon | tuple[Epsilon, ...] = Field(
        1e-8,
        description="keeps Adam's step finite where gradients vanish",
        json_schema_extra=tunable(1e-8, 1e-4, log=True, by_default=False),
    )
    tau: Share | tuple[Share, ...] = Field(
        1.0, description="tau: how far a target update moves the target; 1 copies the weights"
    )
    observation_normalization: bool = Field(
        True, description="running mean and deviation of observation columns without a fixed scale"
    )
    reward_scaling: Literal["auto", "on", "off"] = Field(
        "auto",
        description="divide rewards by a running deviation of the return; auto: on markets",
    )
    prioritised: bool = Field(
        False,
        description="draw transitions by their last error, not uniformly",
        json_schema_extra=tunable(choices=[False, True], by_default=False),
    )
    priority_exponent: Fraction = Field(
        0.6,
        description="alpha: 0 draws uniformly",
        json_schema_extra=tunable(0.3, 0.8, when={"prioritised": True}, by_default=False),
    )
    importance_exponent: Fraction | tuple[Fraction, ...] = Field(
        0.4,
        description="beta: how far weights undo the preference at first; 1 at the budget's end",
        json_schema_extra=tunable(0.2, 1.0, when={"prioritised": True}, by_default=False),
    )

    buffer_size: Count = Field(100_000, description="transitions kept, per member")
    batch_size: Count = Field(
        64,
        description="transitions of an update",
        json_schema_extra=tunable(5, 8, power_of=2, by_default=False),
    )
    learning_starts: Natural = Field(
        1000, description="environment steps of random actions before the first update"
    )
    utd_ratio: UpdatesPerStep = Field(
        0.25,
        description="optimiser updates for each environment step, the same for any num_envs; "
        "vector_step: one for each step of all copies together",
        json_schema_extra=tunable(0.0625, 1.0, log=True, by_default=False),
    )
    train_freq: Count = Field(
        1, description="environment steps between two rounds of updates; num_envs at least"
    )
    target_update_interval: Count = Field(
        1, description="updates between two of the target network"
    )
    n_step: Count = Field(
        1,
        description="rewards summed before bootstrapping",
        json_schema_extra=tunable(choices=[1, 3, 5], by_default=False),
    )
    reflect: bool = Field(
        False,
        description="half of what is learned from is turned into its mirror image, where the "
        "environment says what that is (hockey)",
    )
    iteration: Count | None = Field(
        None,
        description="steps of each copy between two looks at metrics and validation; null: 1,024 "
        "steps of a member",
    )
    net_arch: tuple[Count, ...] = Field(
        (64, 64),
        min_length=1,
        description="hidden layers",
        json_schema_extra=tunable(choices=[[64, 64], [128, 128], [256, 256]], by_default=False),
    )
    activation: Literal["tanh", "relu"] = Field(
        "relu",
        description="between layers",
        json_schema_extra=tunable(choices=["tanh", "relu"], by_default=False),
    )

    def iteration_steps(self, num_envs: int) -> int:
        """Steps of each copy, acting, stepping and learning interleaved."""
        return self.iteration or max(1, ITERATION_STEPS // num_envs)

    def updates(self, num_envs: int) -> int:
        """Once learning has begun, rounded up."""
        return math.ceil(self.iteration_steps(num_envs) * num_envs * self._pace(num_envs))

    def _pace(self, num_envs: int) -> float | fractions.Fraction:
        if self.utd_ratio == VECTOR_STEP:
            return fractions.Fraction(1, num_envs)
        return float(self.utd_ratio)

    def parts(self, num_envs: int) -> int:
        """Parts that a gradient is summed from, which two cores may share.

        They follow from the member's own sizes alone: a batch's multiplications between hidden
        layers.
        """
        work = self.batch_size * sum(a * b for a, b in itertools.pairwise(self.net_arch))
        return 2 if work >= self.WORK_TO_SHARE else 1

    def check_spaces(self, spec: EnvSpec) -> None:
        """Refuses to reflect what has no mirror image."""
        if self.reflect:
            check_symmetry(spec)

    def replay(self, num_envs: int) -> ReplayConfig:
        """What is kept, and when it is learned from."""
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
        """B."""
        return self.batch_size

    def for_study(self, user_set: Container[str]) -> Self:
        """With a replay of STUDY_REPLAY at most, unless its size is the user's."""
        if "buffer_size" in user_set or self.buffer_size <= STUDY_REPLAY:
            return self
        return self.model_copy(update={"buffer_size": max(STUDY_REPLAY, self.batch_size)})

    def check(self, num_envs: int) -> None:
        """Refuses a replay that holds less than a batch, or rings shorter than a return."""
        self.replay(num_envs).check(num_envs)
