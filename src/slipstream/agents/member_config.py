"""A config of many members: some of its fields may list one number for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError

_Joined = TypeVar("_Joined", bound="MemberConfig")


class MemberConfig(Config):
    """Settings of M members.

    Attributes:
        PER_MEMBER: fields that may list one number for each member; all others are the same for
            members that are trained side by side.
    """

    PER_MEMBER: ClassVar[tuple[str, ...]] = ()

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
        self.check_length(name, members)
        value = getattr(self, name)
        if value is None:
            return np.full(members, default)
        return np.broadcast_to(np.asarray(value, np.float64), (members,)).copy()

    def check_length(self, name: str, members: int) -> None:
        """Refuses a list in field `name` of another length; nothing is allocated.

        Raises:
            ConfigError: with both numbers.
        """
        value = getattr(self, name)
        if isinstance(value, tuple) and len(value) != members:
            raise ConfigError(
                f"`agent.{name}` lists {len(value)} numbers for {members} members. "
                "Give one number, or one for each member."
            )

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
    def join(configs: Sequence[_Joined]) -> _Joined:
        """One config of members of equal `shape`: its lists have a number for each."""
        changes: dict[str, Any] = {}
        for name in configs[0].PER_MEMBER:
            if any(getattr(config, name) is not None for config in configs):
                values = [config.per_member(name, 1) for config in configs]
                changes[name] = tuple(float(value[0]) for value in values)
        return configs[0].model_copy(update=changes)
