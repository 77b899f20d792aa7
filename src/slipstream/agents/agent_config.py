"""What the config of every agent has: numbers for each member, and the sizes of a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError


class AgentConfig(Config):
    """Base of the `agent` section; a subclass declares the fields.

    Attributes:
        PER_MEMBER: fields that may list one number for each member.
        horizon: steps of a rollout, per environment.
        minibatch: rows of a minibatch, per member; None where it follows from the rollout.
        epochs: passes over a rollout.
        widths: hidden layers.
    """

    PER_MEMBER: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:
        horizon: int
        minibatch: int | None
        epochs: int
        widths: tuple[int, ...]

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

    def select(self, members: slice | Iterable[int], total: int) -> Any:
        """The config of some of `total` members: nothing but their lists changes."""
        chosen = list(range(total))[members] if isinstance(members, slice) else list(members)
        changes = {}
        for name in self.PER_MEMBER:
            if isinstance(getattr(self, name), tuple):
                column = self.per_member(name, total)
                changes[name] = tuple(float(column[m]) for m in chosen)
        return self.model_copy(update=changes)

    def rows(self, num_envs: int) -> int:
        """Rows B of a minibatch, per member, for N environments per member.

        Raises:
            ConfigError: when minibatches do not fill the rollout exactly.
        """
        raise NotImplementedError

    def parts(self, num_envs: int) -> int:
        """Tasks that may run side by side for a lone member, for N environments.

        They follow from the config and N, never from the number of members or of cores.
        """
        return 1
