"""The job of whoever steps copies: which they are, what they are, and how they are made.

`Foreign` describes the environment, `Assignment` one worker's part of it. Both travel to workers as
bytes, with the ids that only the parent has registered.
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import cloudpickle
import gymnasium

from slipstream.core.errors import ConfigError
from slipstream.gym.action_masks import separate_mask
from slipstream.gym.env_factory import WrappedEnv, make_gymnasium
from slipstream.gym.process.shared_memory import Layout
from slipstream.gym.shared_layout import FlatCodec, NativeCodec
from slipstream.kernels.loop import HOLD, RESET_KEEP_ALL
from slipstream.kernels.spec import EnvSpec

NEXT_STEP, SAME_STEP, DISABLED = 3, RESET_KEEP_ALL, 4
"""What follows the end of an episode for other libraries: the next step begins another one; the
same step does; nothing until a reset."""


@dataclass(frozen=True)
class SubEnvConfig:
    """An environment of another library, and the rules by which its copies are stepped.

    Attributes:
        makers: ids, or what makes a copy when called; one for each row, then from the first again.
        name: of the environment, for messages.
        shown, acted: observation and action space of the first copy.
        spec: as agents know it; None: copies are stepped as Gymnasium itself does.
        kwargs: keyword arguments of every maker.
        limit: steps after which an episode is cut.
        alike: all must have the same observation space.
        fixed: observations have places in the block; else they are pickled.
        registered: pickled specifications of ids that only the parent may know.
        wrap: what is laid around every copy.
        assigned: by row, attributes that `set_attr` gave to copies that are made again.
    """

    makers: Sequence[Any]
    name: str
    shown: Any
    acted: Any
    spec: EnvSpec | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    alike: bool = True
    fixed: bool = True
    registered: Sequence[bytes] = ()
    wrap: Callable[[Any], Any] | None = None
    assigned: dict[int, dict[str, Any]] = field(default_factory=dict)

    def make(self, row: int) -> Any:
        """A new copy of a row; raises as `make_gymnasium` does."""
        env = make_gymnasium(self.makers[row % len(self.makers)], self.kwargs)
        env = env if self.spec is None else separate_mask(env)
        return env if self.wrap is None else self.wrap(env)

    def form(self) -> FlatCodec | NativeCodec:
        """Layout of its observations and actions in the block."""
        if self.spec is not None:
            return FlatCodec(self.spec)
        return NativeCodec(self.shown, self.fixed)

    @property
    def spaces(self) -> Sequence[tuple[str, Any]]:
        """Names and values of the spaces that every copy must have."""
        shown = (("observation_space", self.shown),) if self.alike else ()
        return (*shown, ("action_space", self.acted))


class EnvScheduler(ABC):
    """Decides the order within one worker; every worker has a scheduler of its own.

    It changes when a copy's step is done, never what comes of it.
    """

    @abstractmethod
    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        """The copies in the order in which to step them; asked again whenever more are wanted.

        Args:
            copies: numbers, within the worker, of those that a step is wanted of.
            waited: seconds for which each has been waiting.
            cost: seconds that a step of each took, the newest ones counting most; 0 before the
                first.
        """


class LongestWaitingFirst(EnvScheduler):
    """First come, first served."""

    def order(
        self, copies: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        places = sorted(range(len(copies)), key=lambda k: (-waited[k], copies[k]))
        return [copies[k] for k in places]


@dataclass(frozen=True)
class WorkerConfig:
    """One worker's part.

    Attributes:
        what: the environment.
        layout: of the block.
        ranges: its copies, (lo, hi) of each range.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py` for agents; for other libraries
            NEXT_STEP, SAME_STEP or DISABLED.
        restart: copies that fail are begun again, else they wait for a reset.
        spin: seconds of looking before it sleeps.
        scheduler: which copy is stepped next, where they are asked for one by one.
    """

    what: SubEnvConfig
    layout: Layout
    ranges: tuple[tuple[int, int], ...]
    at_end: int
    restart: bool
    spin: float = 0.0
    scheduler: EnvScheduler | None = None

    @property
    def holds(self) -> bool:
        """Copies wait where an episode ends, for somebody who counts episodes."""
        return self.at_end == HOLD


def registered(envs: Iterable[Any]) -> tuple[bytes, ...]:
    """Specifications of ids for processes where nobody registered them.

    They are those among some makers. A function may make any id that this process has registered,
    so it gets all that `import gymnasium` does not register.
    """
    makers = [env.env_id if isinstance(env, WrappedEnv) else env for env in envs]
    ids = dict.fromkeys(env.rpartition(":")[2] for env in makers if isinstance(env, str))
    if not all(isinstance(env, str) for env in makers):
        plugins = {one.module.partition(".")[0] for one in entry_points(group="gymnasium.envs")}
        known = {"gymnasium", *plugins}
        ids |= {
            env_id: None
            for env_id, spec in gymnasium.registry.items()
            if not (isinstance(at := spec.entry_point, str) and at.partition(".")[0] in known)
        }
    found = map(_specification, ids)
    return tuple(data for data in found if data is not None)


@dataclass(frozen=True)
class _LazyEntryPoint:
    """An entry point that is imported when it is called: workers need few of those registered."""

    data: bytes

    def __call__(self, **settings: Any) -> Any:
        return pickle.loads(self.data)(**settings)


def _specification(env_id: str) -> bytes | None:
    spec = copy.copy(gymnasium.registry.get(env_id))
    if spec is None:
        return None
    try:
        if callable(spec.entry_point):
            spec.entry_point = _LazyEntryPoint(cloudpickle.dumps(spec.entry_point))
        return bytes(cloudpickle.dumps(spec))
    except Exception:  # then the worker must find it by itself, and says so if it cannot
        return None


def register(data: bytes) -> None:
    """In a worker: makes an id known that no import has registered."""
    with suppress(Exception):  # its settings need what the worker cannot import
        spec = pickle.loads(data)
        gymnasium.registry.setdefault(spec.id, spec)


def packed(job: WorkerConfig) -> bytes:
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
