"""What a worker is told once: which copies it has, what they are, and where everything lies."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.vector.foreign import make_gymnasium
from slipstream.vector.loop import HOLD
from slipstream.vector.process.layout import Layout


@dataclass(frozen=True)
class AssignedForeign:
    """Copies of a Gymnasium environment.

    Attributes:
        env: an id, or what makes one when called.
        kwargs: keyword arguments.
        limit: steps after which an episode is cut.
        registered: pickled specification of an id that only the parent may know.
    """

    env: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    registered: bytes | None = None


@dataclass(frozen=True)
class AssignedNative:
    """Copies of foreign environments as Gymnasium steps them.

    Attributes:
        makers: ids, or what makes a copy when called; one for each row, then from the first again.
        name: of the environment, for messages.
        shown, acted: observation and action space of the first copy.
        alike: all must have the same observation space.
        fixed: observations have places in the block; else they are pickled.
        registered: as of `AssignedForeign`, of each id.
        kwargs: keyword arguments of every maker.
        wrap: what is laid around every copy.
        assigned: by row, attributes that `set_attr` gave to copies that are made again.
    """

    makers: Sequence[Any]
    name: str
    shown: Any
    acted: Any
    alike: bool
    fixed: bool
    registered: Sequence[bytes] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrap: Callable[[Any], Any] | None = None
    assigned: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, row: int) -> Any:
        """A new copy of a row; raises as `make_gymnasium` does."""
        env = make_gymnasium(self.makers[row % len(self.makers)], self.kwargs)
        return env if self.wrap is None else self.wrap(env)


@dataclass(frozen=True)
class Assignment:
    """One worker's part.

    Attributes:
        what: the environment.
        spec: of it, by the parent's own copy; all copies must agree. None for `AssignedNative`.
        layout: of the block.
        worker, workers: its number, and how many there are.
        ranges: its copies, (lo, hi) of each range.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`; NEXT_STEP of `native.py`.
        restart: copies that fail are begun again, else they wait for a reset.
        spin: seconds of looking before it sleeps.
        scheduler: which copy is stepped next, where they are asked for one by one.
    """

    what: AssignedForeign | AssignedNative
    spec: Spec | None
    layout: Layout
    worker: int
    workers: int
    ranges: tuple[tuple[int, int], ...]
    at_end: int
    restart: bool
    spin: float
    scheduler: Any = None

    @property
    def holds(self) -> bool:
        """Copies wait where an episode ends, for somebody who counts episodes."""
        return self.at_end == HOLD


def registered(env_id: str) -> bytes | None:
    """The specification of an id, for processes in which nobody registered it."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None:
        return None
    try:
        return bytes(cloudpickle.dumps(spec))
    except Exception:  # then the worker must find it by itself, and says so if it cannot
        return None


def register(data: bytes | None) -> None:
    """In a worker: makes an id known that no import has registered."""
    if data is None:
        return
    spec = pickle.loads(data)
    gymnasium.registry.setdefault(spec.id, spec)


def packed(job: Assignment) -> bytes:
    """A job as it travels, once per worker: functions of the main program by value.

    Raises:
        ConfigError: something in it cannot travel.
    """
    try:
        return bytes(cloudpickle.dumps(job))
    except Exception as error:
        raise ConfigError(
            f"The environment cannot be handed to worker processes: {error!s:.300}. Give the "
            "function that makes it nothing but plain values, and build files, locks and "
            "connections inside it; or use `backend: serial`."
        ) from error
