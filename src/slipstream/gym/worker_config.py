"""Configuration of workers: the environment, and the sub-environments that a worker steps.

Both are pickled and sent to workers, together with the ids that only the parent has registered.
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
"""Autoreset modes for other libraries, as in `gymnasium.vector.AutoresetMode`."""


@dataclass(frozen=True)
class SubEnvConfig:
    """An environment of another library and the rules for stepping its sub-environments.

    Attributes:
        env_fns: Ids or functions that create a sub-environment. Row i uses entry i modulo length.
        name: Name of the environment, for messages.
        observation_space, action_space: Spaces of the first sub-environment.
        spec: Specification for agents. None steps sub-environments with Gymnasium's semantics.
        kwargs: Keyword arguments of every entry of `env_fns`.
        limit: Time limit of an episode in steps.
        same_spaces: Require equal observation spaces.
        fixed_size: Store observations in shared memory. Otherwise they are pickled.
        registered_specs: Pickled specifications of ids that only the parent may have registered.
        wrapper: Applied to every sub-environment.
        attributes: Attributes set by `set_attr`, by row, for sub-environments created again.
    """

    env_fns: Sequence[Any]
    name: str
    observation_space: Any
    action_space: Any
    spec: EnvSpec | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    same_spaces: bool = True
    fixed_size: bool = True
    registered_specs: Sequence[bytes] = ()
    wrapper: Callable[[Any], Any] | None = None
    attributes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def make(self, row: int) -> Any:
        """Create the sub-environment of a row; raises like `make_gymnasium`."""
        env = make_gymnasium(self.env_fns[row % len(self.env_fns)], self.kwargs)
        env = env if self.spec is None else separate_mask(env)
        return env if self.wrapper is None else self.wrapper(env)

    def codec(self) -> FlatCodec | NativeCodec:
        """Return the codec of its observations and actions."""
        if self.spec is not None:
            return FlatCodec(self.spec)
        return NativeCodec(self.observation_space, self.fixed_size)

    @property
    def spaces(self) -> Sequence[tuple[str, Any]]:
        """Names and values of the spaces that every sub-environment must have."""
        observation = (("observation_space", self.observation_space),) if self.same_spaces else ()
        return (*observation, ("action_space", self.action_space))


class EnvScheduler(ABC):
    """Order of single steps within one worker. Every worker has its own scheduler.

    It affects the time of a step, never its result.
    """

    @abstractmethod
    def order(
        self, env_ids: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        """Return the sub-environments in the order in which to step them.

        Called again when more steps are requested.

        Args:
            env_ids: Indices, within the worker, of the sub-environments with a requested step.
            waited: Seconds that each has been waiting.
            cost: Moving average of the seconds per step of each; 0 before the first step.
        """


class LongestWaitingFirst(EnvScheduler):
    """First come, first served."""

    def order(
        self, env_ids: Sequence[int], waited: Sequence[float], cost: Sequence[float]
    ) -> Sequence[int]:
        order = sorted(range(len(env_ids)), key=lambda k: (-waited[k], env_ids[k]))
        return [env_ids[k] for k in order]


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of one worker.

    Attributes:
        env_config: The environment.
        layout: Layout of the shared arrays.
        ranges: Rows of its sub-environments, (lo, hi) for each range.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py` for agents; NEXT_STEP,
            SAME_STEP or DISABLED for other libraries.
        restart: Restart failed sub-environments. Otherwise they wait for a reset.
        spin_seconds: Seconds of spinning before it sleeps.
        scheduler: Order of single steps.
    """

    env_config: SubEnvConfig
    layout: Layout
    ranges: tuple[tuple[int, int], ...]
    at_end: int
    restart: bool
    spin_seconds: float = 0.0
    scheduler: EnvScheduler | None = None

    @property
    def holds_at_end(self) -> bool:
        """True if sub-environments wait at the end of their episode."""
        return self.at_end == HOLD


def registered_specs(envs: Iterable[Any]) -> tuple[bytes, ...]:
    """Return the pickled specifications of the ids that workers may have to register.

    These are the ids in `envs`. A function can create any id that this process has registered.
    With functions the result therefore contains all ids that `import gymnasium` does not register.
    """
    env_fns = [env.env_id if isinstance(env, WrappedEnv) else env for env in envs]
    ids = dict.fromkeys(env.rpartition(":")[2] for env in env_fns if isinstance(env, str))
    if not all(isinstance(env, str) for env in env_fns):
        plugins = {point.module.partition(".")[0] for point in entry_points(group="gymnasium.envs")}
        known_packages = {"gymnasium", *plugins}
        ids |= {
            env_id: None
            for env_id, spec in gymnasium.registry.items()
            if not (
                isinstance(path := spec.entry_point, str)
                and path.partition(".")[0] in known_packages
            )
        }
    pickled = map(_pickle_spec, ids)
    return tuple(data for data in pickled if data is not None)


@dataclass(frozen=True)
class _LazyEntryPoint:
    """Entry point that is unpickled when called: workers use few of those registered."""

    data: bytes

    def __call__(self, **settings: Any) -> Any:
        return pickle.loads(self.data)(**settings)


def _pickle_spec(env_id: str) -> bytes | None:
    spec = copy.copy(gymnasium.registry.get(env_id))
    if spec is None:
        return None
    try:
        if callable(spec.entry_point):
            spec.entry_point = _LazyEntryPoint(cloudpickle.dumps(spec.entry_point))
        return bytes(cloudpickle.dumps(spec))
    except Exception:  # the worker looks it up by itself and reports if it cannot
        return None


def register(data: bytes) -> None:
    """Register a pickled specification in this process unless its id is registered."""
    with suppress(Exception):  # its arguments may not be importable here
        spec = pickle.loads(data)
        gymnasium.registry.setdefault(spec.id, spec)


def pickle_config(job: WorkerConfig) -> bytes:
    """Pickle a configuration. Functions of the main program are pickled by value.

    Raises:
        ConfigError: A part cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps(job))
    except Exception as error:
        raise ConfigError(
            f"The environment cannot be pickled for worker processes: {error!s:.300}. Pass only "
            "plain values to the function that creates it and open files, locks and connections "
            "inside it, or use `backend: serial`."
        ) from error
