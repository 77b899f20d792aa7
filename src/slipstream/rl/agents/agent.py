"""The contract of an algorithm: two classes, in a file of this folder or in a user's file.

`Config` declares the fields under `agent:`, and the sizes that follow from them and from N, the
environments per member. `Agent`, created as ``Agent(config, specs, seeds, num_envs)``, acts and
learns. M members share an agent and never mix: a member's weights depend only on its own seed,
settings and experience, bit for bit. Code outside `rl/agents/` uses this contract only.

Abstract methods and `Agent.experience_type` are required. Every other method has a working default
and is an optional extension: compiled acting, sizes for `num_envs: auto` and studies, threads of a
lone member. `agent_registry` rejects public members that look like misspellings of this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.jit.work_sharing import RunTasks
    from slipstream.kernels.fused import CompiledActor
    from slipstream.kernels.spec import EnvSpec
    from slipstream.rl.experience.replay.replay import Replay
    from slipstream.rl.experience.replay.replay_config import ReplayConfig
    from slipstream.rl.experience.rollout import Rollout
    from slipstream.rl.nets.policy import Policy

_Joined = TypeVar("_Joined", bound="MemberConfig")


class MemberConfig(Config):
    """Settings of M members.

    Attributes:
        PER_MEMBER: Fields that may list one number for each member. All others are equal for
            members that are trained together.
    """

    PER_MEMBER: ClassVar[tuple[str, ...]] = ()

    @property
    def shape(self) -> dict[str, Any]:
        """Values that members must share to be trained in one agent, as plain values."""
        values = self.model_dump(mode="json")
        return {name: value for name, value in values.items() if name not in self.PER_MEMBER}

    def per_member(self, name: str, members: int, default: float = np.inf) -> NDArray[np.float64]:
        """Return field `name` as float64 [M]; `default` if it is null or "auto".

        Raises:
            ConfigError: the list has another length.
        """
        self.check_length(name, members)
        value = getattr(self, name)
        if value is None or value == "auto":
            return np.full(members, default)
        return np.broadcast_to(np.asarray(value, np.float64), (members,)).copy()

    def check_length(self, name: str, members: int) -> None:
        """Check that a list in field `name` has one number per member; nothing is allocated.

        Raises:
            ConfigError: the list has another length.
        """
        value = getattr(self, name)
        if isinstance(value, tuple) and len(value) != members:
            raise ConfigError(
                f"`agent.{name}` lists {len(value)} numbers for {members} members. "
                "Give one number, or one for each member."
            )

    def select(self, members: slice | Iterable[int], total: int) -> Self:
        """Return the config of some of `total` members, with shorter lists."""
        selected = list(range(total))[members] if isinstance(members, slice) else list(members)
        changes = {}
        for name in self.PER_MEMBER:
            if isinstance(getattr(self, name), tuple):
                column = self.per_member(name, total)
                changes[name] = tuple(float(column[m]) for m in selected)
        return self.model_copy(update=changes)

    @staticmethod
    def join(configs: Sequence[_Joined]) -> _Joined:
        """Combine the configs of members of equal `shape`; lists have one number for each."""
        changes: dict[str, Any] = {}
        for name in configs[0].PER_MEMBER:
            if any(getattr(config, name) not in (None, "auto") for config in configs):
                values = [config.per_member(name, 1) for config in configs]
                changes[name] = tuple(float(value[0]) for value in values)
        return configs[0].model_copy(update=changes)


class AgentConfig(MemberConfig):
    """Base class of an agent's `Config`; its fields are the keys of the section `agent`.

    Attributes:
        LENGTHS: fields that determine `iteration_steps`.
        SIZES: fields that determine `bytes`.
        FITTED: sizes that `fit` rounds to fit together; some are only searched and are no fields.
        MAX_NUM_ENVS: Upper bound of `num_envs: auto`; None for no bound.
    """

    LENGTHS: ClassVar[tuple[str, ...]] = ()
    SIZES: ClassVar[tuple[str, ...]] = ()
    FITTED: ClassVar[tuple[str, ...]] = ()
    MAX_NUM_ENVS: ClassVar[int | None] = None

    @abstractmethod
    def iteration_steps(self, num_envs: int) -> int:
        """Return the steps of each environment in one iteration, which ends with `update`."""

    @abstractmethod
    def updates(self, num_envs: int) -> int:
        """Return the optimizer updates of a member in one iteration."""

    @abstractmethod
    def rows(self, num_envs: int) -> int:
        """Return the rows that a member learns from in one update."""

    @abstractmethod
    def weight_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of one member's networks; the cost of acting is proportional to it."""

    @abstractmethod
    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the memory of M members and their experience, without the replay."""

    def state_bytes(self, spec: EnvSpec) -> int:
        """Return the bytes of one member's state: weights, moments and targets."""
        return self.bytes(spec, 1, 1)

    def check(self, num_envs: int) -> None:
        """Check that the sizes fit together.

        Raises:
            ConfigError: they do not; the message suggests sizes that do.
        """

    def replay(self, num_envs: int) -> ReplayConfig | None:
        """Return the replay configuration; None for agents that learn from rollouts."""
        return None

    def check_spaces(self, spec: EnvSpec) -> None:
        """Check that the agent supports an environment's spaces.

        Raises:
            ConfigError: it does not; the message names agents that do.
        """

    def parts(self, num_envs: int) -> int:
        """Return the number of parallel tasks of a lone member."""
        return 1

    def relax_sizes(self, num_envs: int, user_set: Container[str]) -> Self:
        """Return the config without default sizes that do not fit; fields in `user_set` stay."""
        return self

    def for_study(self, user_set: Container[str]) -> Self:
        """Return the config of a study's member, whose state is saved often.

        Args:
            user_set: Names of fields set by the user, which stay.
        """
        return self

    def fit(self, sizes: dict[str, Any], num_envs: int) -> tuple[str, ...]:
        """Round the sizes suggested by a study so that they fit together, in place.

        Args:
            sizes: suggested sizes by name, some of FITTED; this config has the others. Names that
                are no fields are removed.
            num_envs: N.

        Returns:
            A sentence for each rounded size.
        """
        return ()


def _run_alone(task: Callable[[], None], run_tasks: RunTasks) -> None:
    task()


class CompiledLearner(NamedTuple):
    """Compiled learning from a replay.

    Attributes:
        loop: compiled ``loop(source, learner, ring, store, updates)`` that runs updates [M]; see
            `ReplayLoops` for `store`.
        source, learner: first arguments of `loop`, pointers to the current values.
        share: function that runs a task that calls `loop`; other threads of the RunTasks may help.
    """

    loop: Any
    source: Any
    learner: Any
    share: Callable[[Callable[[], None], RunTasks], None] = _run_alone


class Agent(ABC):
    """M members that act, and learn from their experience.

    Attributes:
        experience_type: Experience of an update, required. "rollout": `iteration_steps` of every
            environment from one policy version. "replay": transitions of a replay buffer, which
            `learn` uses between steps.
        state_version: Version of `state_dict`. Runs of another version cannot be resumed.
        policy: Policy of all members, which is exported.
        members: Number of members, M.
        parts: Ranges of a lone member's environments that may act and learn in parallel.
    """

    experience_type: ClassVar[Literal["rollout", "replay"]]
    state_version: ClassVar[int] = 2  # columns that are not normalized are not clipped
    policy: Policy
    members: int
    parts: int = 1

    @abstractmethod
    def __init__(
        self, config: Any, specs: EnvSpec | Sequence[EnvSpec], seeds: Sequence[int], num_envs: int
    ) -> None:
        """Create the networks of M members.

        Args:
            config: the agent's `Config`.
            specs: spec of the environment, or [M] specs.
            seeds: [M].
            num_envs: N.
        """

    @abstractmethod
    def act(self, experience: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Choose actions for obs[t] and mask[t] of environments lo..hi-1.

        The actions and their log probabilities are written into `actions[t]` and `log_prob[t]`.

        Returns:
            Actions for the environments, [hi - lo, K], valid until the next call for this range.
        """

    @abstractmethod
    def update(
        self, experience: Rollout, progress: float | NDArray[np.float64], run_tasks: RunTasks
    ) -> dict[str, NDArray[Any]]:
        """Update every member on its own part of the experience, and end the iteration.

        Args:
            experience: filled rollout [T, M N] with its final observations.
            progress: share of the budget spent before it, for schedules; a number or [M].
            run_tasks: runs tasks of a single member in parallel.

        Returns:
            Metrics [M] by name. They include `updates` (gradient updates that changed the member)
            and `failed` (it had a non-finite gradient and is never updated again).
        """

    def learn(self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks) -> None:
        """Make `updates` [M] of each member between steps; required for a replay."""
        raise NotImplementedError  # overridden by agents with a replay

    @abstractmethod
    def state_dict(self) -> Mapping[str, NDArray[Any]]:
        """Return the small part of the training state: arrays by name with first axis M.

        It contains all weights, so resumed members of a study skip initialization. It is part of
        every checkpoint and is sent through pipes. A replay is not included: its process writes
        it in chunks (`core/storage/checkpoint.py`).
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""

    def drain_warnings(self) -> list[str]:
        """Return new warnings about how the agent computes, each once."""
        return []

    def compiled_actor(self, lo: int = 0, hi: int | None = None) -> CompiledActor | None:
        """Return the compiled counterpart of `act` for every row of environments lo..hi.

        Called once before any state is loaded, so that all code is compiled together, and once per
        block of experience. None if only `act` is available.
        """
        return None

    def double_buffered_ranges(self) -> list[tuple[int, int]]:
        """Return ranges lo..hi of environments to step in turn while the GPU acts for others.

        An empty list means that `act` is called for all environments at once.
        """
        return []

    def begin_act(
        self, experience: Rollout, t: int, lo: int, hi: int
    ) -> Callable[[], NDArray[Any]]:
        """Begin to act for one of the `double_buffered_ranges`.

        Returns:
            A function that waits for the actions and completes `act`. It returns [E, K]; rows
            lo..hi-1 are valid until `begin_act` is called for them again.
        """
        raise NotImplementedError  # overridden with `double_buffered_ranges`

    def compiled_learner(self, replay: Replay) -> CompiledLearner | None:
        """Return the compiled counterpart of `learn`.

        Called once before any state is loaded, so that all code is compiled together, and once per
        iteration. None if only `learn` is available.
        """
        return None
