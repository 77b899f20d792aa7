"""Configuration, update schedule and size of a replay."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.experience.replay.sum_tree import tree_levels


class UpdateSchedule(NamedTuple):
    """Schedule of updates in whole numbers, so that no fraction of an update is lost.

    Attributes:
        learning_starts: Environment steps of a member before its first update.
        train_freq: Environment steps between two rounds of updates.
        numerator, denominator: Updates per environment step as an exact fraction.
    """

    learning_starts: int
    train_freq: int
    numerator: int
    denominator: int


def updates_due(schedule: Any, steps: int) -> int:
    """Return the total number of updates of a member after `steps` environment steps.

        floor(ratio * (steps - steps mod train_freq - learning_starts)), at least 0

    The ratio of updates to data does not depend on the number of environments: a row of N steps
    causes N times the updates of one step.
    """
    counted = steps - steps % schedule.train_freq - schedule.learning_starts
    if counted <= 0:
        return 0
    due: int = counted * schedule.numerator // schedule.denominator
    return due


class ReplayConfig(NamedTuple):
    """Configuration of each member's replay.

    Attributes:
        buffer_size: Minimum number of stored transitions once the buffer is full.
        batch_size: Transitions per update.
        learning_starts: Environment steps of the member before the first update.
        train_freq: Environment steps of the member between two rounds of updates.
        utd_ratio: Gradient updates per environment step, exact in decimals.
        n_step: Number of summed rewards before bootstrapping.
        alpha: Priority exponent (Schaul et al. 2016); 0 samples uniformly.
        storage: `dense` stores observations, `fields` the STATE fields that a kernel renders them
            from. `auto` takes the smaller one, and `fields` if actions are masked.
        reflect: Reflect half of each batch; see `Reflection` in `ring.py`.
    """

    buffer_size: int
    batch_size: int
    learning_starts: int
    train_freq: int
    utd_ratio: float | Fraction
    n_step: int = 1
    alpha: float = 0.0
    storage: Literal["auto", "dense", "fields"] = "auto"
    reflect: bool = False

    @property
    def schedule(self) -> UpdateSchedule:
        """The update schedule."""
        ratio = Fraction(str(self.utd_ratio))
        return UpdateSchedule(
            self.learning_starts, self.train_freq, ratio.numerator, ratio.denominator
        )

    def length(self, num_envs: int) -> int:
        """Return the number of transitions stored per environment."""
        return -(-self.buffer_size // num_envs)

    def check(self, num_envs: int) -> None:
        """Reject sizes that cannot be learned from.

        Raises:
            ConfigError: The message suggests valid sizes.
        """
        if self.buffer_size < self.batch_size:
            raise ConfigError(
                f"A replay of {self.buffer_size:,} transitions is smaller than a batch of "
                f"{self.batch_size:,}. Set agent.buffer_size={self.batch_size} or more, or a "
                "smaller agent.batch_size."
            )
        length = self.length(num_envs)
        if self.n_step > length:
            raise ConfigError(
                f"Returns of {self.n_step} steps are longer than the replay: {self.buffer_size:,} "
                f"transitions of {num_envs} environments are {length} steps each. Set "
                f"agent.buffer_size={self.n_step * num_envs} or more, or a smaller agent.n_step."
            )


def ring_slots(config: ReplayConfig, spec: EnvSpec, num_envs: int) -> int:
    """Return S, slots per ring: transitions, head, and final observations at the time limit."""
    length, limit = config.length(num_envs), spec.max_episode_steps
    return length + 1 + (0 if limit is None else -(-length // limit) + 1)


def observation_bytes(spec: EnvSpec) -> int:
    """Return the bytes of one dense observation."""
    numbers = int(np.prod(spec.observation_shape, dtype=np.int64))
    return numbers * spec.observation_dtype.itemsize


def stores_state_fields(
    config: ReplayConfig, spec: EnvSpec, fields: int | None, masked: bool
) -> bool:
    """Return whether state fields are stored instead of observations; see `ReplayConfig.storage`.

    Args:
        config, spec: Of the replay.
        fields: Bytes of the state fields; None if no kernel can render observations again.
        masked: Whether the environment has an action mask.
    """
    if fields is None or config.storage == "dense":
        return False
    return config.storage == "fields" or masked or fields < observation_bytes(spec)


def replay_bytes(
    config: ReplayConfig, spec: EnvSpec, members: int, num_envs: int, fields: int | None = None
) -> int:
    """Return the bytes of the arrays of M members; see `Replay`.

    Args:
        config, spec: Of the replay.
        members: M.
        num_envs: N.
        fields: As for `stores_state_fields`.
    """
    slots = ring_slots(config, spec, num_envs)
    slot = 4 * (spec.action_dim + 2)
    if stores_state_fields(config, spec, fields, bool(spec.has_action_mask)):
        slot += fields or 0
    else:
        slot += observation_bytes(spec) + (spec.num_actions if spec.has_action_mask else 0)
    levels, nodes = tree_levels(num_envs * slots)
    tree = 4 * (2 * nodes - int(levels[1])) if config.alpha else 0
    return members * (num_envs * (slots * slot + 16) + tree)


def check_symmetry(spec: EnvSpec) -> None:
    """Reject environments without a mirror symmetry.

    Raises:
        ConfigError: The environment declares no symmetry, or has action masks.
    """
    if spec.symmetry is None or spec.has_action_mask:
        raise ConfigError(
            "`agent.reflect` learns from mirror images, and this environment declares no symmetry "
            "(or masks actions). Remove `agent.reflect`, or declare `EnvSpec(symmetry=...)`."
        )
