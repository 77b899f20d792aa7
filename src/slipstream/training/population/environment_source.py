"""Source of the environments of a study's members: data are loaded once, records made as needed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.timeline import FoldPlan, train_split
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.actions import ActionMap
from slipstream.training.environments.autotune_cache import Tunable
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import get_kind, training_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment, Timeline
from slipstream.training.population.member import Member
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import storage_bytes

Key = TypeVar("Key")
Value = TypeVar("Value")
_CACHE_SIZE = 64  # cache sizes for records of environments and environments of configs


class LruCache(Generic[Key, Value]):
    """Cache of values created on demand that keeps the `size` most recently used ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, created by `make` if it is not cached."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


class EnvironmentSource:
    """Environments of a study's configs. Forked workers share what was loaded before.

    Args:
        plan: division of markets into folds.
        fold_seeds: number of folds of an environment without prices; they differ in their seeds.
    """

    def __init__(self, plan: FoldPlan, fold_seeds: int) -> None:
        self._plan, self.fold_seeds = plan, fold_seeds
        self._read: list[KernelEnvironment] = []  # one for each distinct set of arrays
        self._environments: LruCache[str, Environment] = LruCache(_CACHE_SIZE)
        # A trial's members share a config. The cache holds a reference, so its id stays unique.
        self._of: LruCache[int, tuple[RunConfig, Environment]] = LruCache(_CACHE_SIZE)

    def environment(self, config: RunConfig) -> Environment:
        """Return the environment of a config, with the splits of all folds.

        Raises:
            ConfigError: a market without folds.
            DataError: data that cannot be read or divided.
        """
        return self._of.get(id(config), lambda: (config, self._found(config)))[1]

    def _found(self, config: RunConfig) -> Environment:
        key = json.dumps([config.env_name, dict(config.env_settings)], sort_keys=True)
        return self._environments.get(key, lambda: self._make(config))

    def folds(self, config: RunConfig) -> int:
        """Return the number of folds of a trial."""
        timeline = self.environment(config).part(Timeline)
        return (timeline.folds if timeline else None) or self.fold_seeds

    @property
    def generation(self) -> int:
        """Number of distinct data sets; a process forked at an earlier generation lacks the last
        ones.
        """
        return len(self._read)

    def data_number(self, environment: Environment) -> int:
        """Return the number of the data set of an environment; equal numbers mean equal arrays."""
        kernel_env = environment.part(KernelEnvironment)
        if kernel_env is None:
            return -1
        return next(k for k, known in enumerate(self._read) if _same(known, kernel_env))

    def _make(self, config: RunConfig) -> Environment:
        """Create a config's environment; it reuses arrays that are already loaded."""
        name, settings = config.env_name, config.env_settings
        environment = training_environment(
            get_kind(name).load_folds(settings, self._plan, self._read)
        )
        if tunable := environment.part(Tunable):
            environment = tunable.probed(config.training.stepping)
        kernel_env = environment.part(KernelEnvironment)
        if kernel_env is None:
            return environment
        for known in self._read:
            if _same(known, kernel_env):
                return kernel_env.with_data(known.data)
        self._read.append(kernel_env)
        return kernel_env


def _same(first: KernelEnvironment, second: KernelEnvironment) -> bool:
    first_data, second_data = first.data, second.data
    return len(first_data) == len(second_data) and all(
        a is b
        or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b)))
        for a, b in zip(first_data, second_data, strict=True)
    )


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a byte view for bitwise comparison: NaN compares equal to itself."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class MemberEnv:
    """A member and its environment.

    Attributes:
        member: the member.
        environment: environment of its config.
        records: Params records of its training data.
    """

    member: Member
    environment: Environment

    @property
    def records(self) -> tuple[Any, ...]:
        """Params records of its training data, if there are any."""
        return self.environment.records(train_split(self.member.fold))

    @property
    def spec(self) -> EnvSpec:
        """Spec of its records: folds differ in scales, settings in time limits."""
        rules = self.environment.part(KernelEnvironment)
        return self.environment.spec if rules is None else rules.spec_for(self.records)

    @property
    def iteration_steps(self) -> int:
        """Steps of an iteration."""
        return self.member.config.iteration_steps

    @property
    def memory(self) -> int:
        """Bytes that an additional member in a batch takes."""
        agent, n = self.member.config.agent, self.member.config.num_envs
        learning = agent.bytes(self.environment.spec, 1, n)
        return learning + storage_bytes(agent, self.environment, 1, n)


def batch_shape(member: Member, source: EnvironmentSource) -> str:
    """Return a key: members with equal keys differ in numbers, not sizes, and can train
    together.
    """
    member_env = MemberEnv(member, source.environment(member.config))
    spec, config = member_env.spec, member.config
    key = [
        config.env_name,
        source.data_number(member_env.environment),
        config.agent.shape,
        config.agent_name,
        config.num_envs,
        config.training.backend,
        config.training.learner,
        config.training.device,
        config.training.precision,
        spec.observation_shape,
        spec.observation_dtype.name,
        ActionMap(spec.action_space).description(),
        spec.metrics,
        spec.trace,
        spec.stagger_episodes,
        spec.scale_reward,
        spec.players,
        spec.max_episode_steps is None,
    ]
    kernel_env = member_env.environment.part(KernelEnvironment)
    if kernel_env is None or not kernel_env.has_params:
        key.append(config.env_settings)
    return json.dumps(key)


def join_envs(members: Sequence[MemberEnv]) -> Environment:
    """Return one environment of all members' sub-environments, member after member."""
    first = members[0].environment
    kernel_env = first.part(KernelEnvironment)
    return first if kernel_env is None else kernel_env.batched([place.records for place in members])
