"""The contract's other half: what a user may write under `agent:`, and the sizes that follow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.experience.replay.plan import ReplayPlan


class AgentConfig(Config):
    """Base of the `agent` section; a subclass declares the fields, and what follows from them.

    Sizes follow from the fields and from N, the copies per member: never from the number of
    members, nor from the machine. M members, B rows of an update.

    Attributes:
        PER_MEMBER: fields that may list one number for each member; all others are the same for
            members that are trained side by side.
        LENGTHS: fields that `iteration_steps` follows from.
        SIZES: fields that `bytes` follows from.
        MOST_COPIES: the most copies of a member that `num_envs: auto` chooses; None: no bound.
        FITTED: sizes that `fit` makes agree; those that are no fields are for searches only.
    """

    PER_MEMBER: ClassVar[tuple[str, ...]] = ()
    LENGTHS: ClassVar[tuple[str, ...]] = ()
    SIZES: ClassVar[tuple[str, ...]] = ()
    FITTED: ClassVar[tuple[str, ...]] = ()
    MOST_COPIES: ClassVar[int | None] = None

    @abstractmethod
    def iteration_steps(self, num_envs: int) -> int:
        """Steps of each copy in one iteration."""

    @abstractmethod
    def updates(self, num_envs: int) -> int:
        """Optimiser updates of a member in one iteration."""

    @abstractmethod
    def rows(self, num_envs: int) -> int:
        """Rows B that a member learns from in one update."""

    @abstractmethod
    def bytes(self, spec: Spec, members: int, num_envs: int) -> int:
        """Memory that learners and experience of M members need, apart from what `replay` says."""

    @abstractmethod
    def weight_bytes(self, spec: Spec) -> int:
        """Of one member's networks; what acting costs is in proportion to it."""

    def check_spaces(self, spec: Spec) -> None:
        """Refuses an environment that the agent cannot act in.

        Raises:
            ConfigError: with agents that can.
        """

    def replay(self, num_envs: int) -> ReplayPlan | None:
        """What is kept of each member, and when it learns from it; None: it wants rollouts."""
        return None

    def check(self, num_envs: int) -> None:
        """Refuses sizes that do not fit together.

        Raises:
            ConfigError: with sizes that do.
        """

    def parts(self, num_envs: int) -> int:
        """Tasks that may run side by side for a lone member."""
        return 1

    def give_way(self, num_envs: int, given: Container[str]) -> Self:
        """The config without suggested sizes that do not fit; those `given` are the user's."""
        return self

    def among_many(self, given: Container[str]) -> Self:
        """The config of a study's member, of which hundreds are saved again and again.

        Args:
            given: names of fields that are the user's, which stay.
        """
        return self

    def fit(self, sizes: dict[str, Any], num_envs: int) -> tuple[str, ...]:
        """Makes sizes that a study suggests agree, in place; this config has what they lack.

        Args:
            sizes: by name, some of FITTED; only fields are left of them.
            num_envs: N.

        Returns:
            Sentences about what was rounded.
        """
        return ()

    def fits(self, num_envs: int) -> bool:
        """Whether `check` has nothing against this number of copies."""
        try:
            self.check(num_envs)
        except ConfigError:
            return False
        return True

    @property
    def shape(self) -> dict[str, Any]:
        """What members must have in common to be trained side by side, as plain values."""
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if name not in self.PER_MEMBER}

    def per_member(self, name: str, members: int, default: float = np.inf) -> NDArray[np.float64]:
        """Field `name` as float64 [M]; `default` where it is null.

        Raises:
            ConfigError: when a list has another length.
        """
        value = getattr(self, name)
        if value is None:
            return np.full(members, default)
        if isinstance(value, tuple) and len(value) != members:
            raise ConfigError(
                f"`agent.{name}` lists {len(value)} numbers for {members} members. "
                "Give one number, or one for each member."
            )
        return np.broadcast_to(np.asarray(value, np.float64), (members,)).copy()

    def select(self, members: slice | Iterable[int], total: int) -> Self:
        """The config of some of `total` members: nothing but their lists changes."""
        chosen = list(range(total))[members] if isinstance(members, slice) else list(members)
        changes = {}
        for name in self.PER_MEMBER:
            if isinstance(getattr(self, name), tuple):
                column = self.per_member(name, total)
                changes[name] = tuple(float(column[m]) for m in chosen)
        return self.model_copy(update=changes)

    @staticmethod
    def join(configs: Sequence[AgentConfig]) -> AgentConfig:
        """One config of members of equal `shape`: its lists have a number for each."""
        changes: dict[str, Any] = {}
        for name in configs[0].PER_MEMBER:
            if any(getattr(config, name) is not None for config in configs):
                values = [config.per_member(name, 1) for config in configs]
                changes[name] = tuple(float(value[0]) for value in values)
        return configs[0].model_copy(update=changes)
