"""What an agent wants kept and when it learns from it, and how large that replay is."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.experience.replay.sum_tree import tree_levels


class UpdateSchedule(NamedTuple):
    """When updates are due: whole numbers, so that no fraction of an update is lost or rounded.

    Attributes:
        starts: environment steps of the member before learning begins.
        every: environment steps between two times of learning.
        numerator, denominator: updates per environment step, an exact fraction.
    """

    learning_starts: int
    train_freq: int
    numerator: int
    denominator: int


def updates_due(schedule: Any, steps: int) -> int:
    """Updates that a member has made in all when it has done `steps` environment steps.

    floor(ratio * (steps - steps mod every - starts)), none before `learning_starts`. The ratio of updates to
    data is the same for any number of copies: a row of N steps makes N times what one step makes.
    """
    counted = steps - steps % schedule.train_freq - schedule.learning_starts
    if counted <= 0:
        return 0
    due: int = counted * schedule.numerator // schedule.denominator
    return due


class ReplayConfig(NamedTuple):
    """The replay of each member.

    Attributes:
        capacity: transitions that are kept at least, once there are as many.
        batch: transitions of one update.
        starts: environment steps of the member before the first update (warm-up).
        every: environment steps of the member between two times of learning, see `updates_due`.
        utd_ratio: optimiser updates for each environment step, as it is written in decimals.
        n_step: rewards that are summed before the value of a later observation counts.
        alpha: exponent of priorities (Schaul et al. 2016); 0: all transitions are drawn alike.
        storage: `dense` keeps observations as they are, `fields` the STATE fields of a kernel that
            they are made of; `auto` is the smaller, and `fields` where actions are masked.
        reflect: batches are reflected, see `Reflection` in `ring.py`.
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
        """When updates are due."""
        ratio = Fraction(str(self.utd_ratio))
        return UpdateSchedule(
            self.learning_starts, self.train_freq, ratio.numerator, ratio.denominator
        )

    def length(self, num_envs: int) -> int:
        """Transitions that each of N copies keeps."""
        return -(-self.buffer_size // num_envs)

    def check(self, num_envs: int) -> None:
        """Refuses sizes that cannot be learned from.

        Raises:
            ConfigError: with sizes that can.
        """
        if self.buffer_size < self.batch_size:
            raise ConfigError(
                f"A replay of {self.buffer_size:,} transitions is smaller than a batch of "
                f"{self.batch_size:,}. Set agent.buffer_size={self.batch_size} or more, or a smaller "
                "agent.batch_size."
            )
        length = self.length(num_envs)
        if self.n_step > length:
            raise ConfigError(
                f"Returns of {self.n_step} steps are longer than the replay: {self.buffer_size:,} "
                f"transitions of {num_envs} copies are {length} in a row. Set agent.buffer_size="
                f"{self.n_step * num_envs} or more, or a smaller agent.n_step."
            )


def ring_slots(config: ReplayConfig, spec: EnvSpec, num_envs: int) -> int:
    """S of each ring: the transitions, the head, and final observations by the time limit."""
    length, limit = config.length(num_envs), spec.max_episode_steps
    return length + 1 + (0 if limit is None else -(-length // limit) + 1)


def observation_bytes(spec: EnvSpec) -> int:
    """Bytes of one observation as it is."""
    numbers = int(np.prod(spec.observation_shape, dtype=np.int64))
    return numbers * spec.observation_dtype.itemsize


def stores_state_fields(
    config: ReplayConfig, spec: EnvSpec, fields: int | None, masked: bool
) -> bool:
    """Whether a kernel's fields are kept in place of observations, see `ReplayConfig.storage`.

    Args:
        plan, spec: of the replay.
        fields: bytes that they take; None: there is no kernel that can show an observation again.
        masked: whether there is a mask of allowed choices.
    """
    if fields is None or config.storage == "dense":
        return False
    return config.storage == "fields" or masked or fields < observation_bytes(spec)


def replay_bytes(
    config: ReplayConfig, spec: EnvSpec, members: int, num_envs: int, fields: int | None = None
) -> int:
    """Bytes that the arrays of M members will take, see `Replay`.

    Args:
        plan, spec: of the replay; members: M; num_envs: N.
        fields: as for `stores_state_fields`.
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
    """Refuses environments without a mirror image.

    Raises:
        ConfigError: the environment declares none, or has masks.
    """
    if spec.symmetry is None or spec.has_action_mask:
        raise ConfigError(
            "`agent.reflect` learns from mirror images, and this environment does not say what its "
            "own are (or masks choices): leave it out, or declare `EnvSpec(symmetry=...)`."
        )
