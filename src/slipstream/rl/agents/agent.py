"""The contract of an algorithm: two classes, in a file of this folder or of your own.

`Config` declares the fields under `agent:`, and the sizes that follow from them and from N, the
environments per member. `Agent`, made as ``Agent(config, specs, seeds, num_envs)``, acts and
learns. M members share an agent and never mix: a member's weights depend only on its own seed,
settings and experience, bit for bit. Code outside `rl/agents/` uses this contract only.

Abstract methods are required. Every other method has a working default and is an optional
extension: compiled acting, sizes for `num_envs: auto` and studies, threads of a lone member.
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
        PER_MEMBER: fields that may list one number for each member; all others are the same for
            members that are trained side by side.
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
            ConfigError: when a list has another length.
        """
        self.check_length(name, members)
        value = getattr(self, name)
        if value is None or value == "auto":
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
            if any(getattr(config, name) not in (None, "auto") for config in configs):
                values = [config.per_member(name, 1) for config in configs]
                changes[name] = tuple(float(value[0]) for value in values)
        return configs[0].model_copy(update=changes)


class AgentConfig(MemberConfig):
    """Base of `Config`, whose fields are what a user may write.

    Attributes:
        LENGTHS: fields that `iteration_steps` follows from.
        SIZES: fields that `bytes` follows from.
        FITTED: sizes that `fit` makes agree; those that are no fields are for searches only.
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
        """Optimiser updates of a member in one iteration."""

    @abstractmethod
    def rows(self, num_envs: int) -> int:
        """Rows that a member learns from in one update."""

    @abstractmethod
    def weight_bytes(self, spec: EnvSpec) -> int:
        """Bytes of one member's networks; what acting costs is in proportion to it."""

    @abstractmethod
    def bytes(self, spec: EnvSpec, members: int, num_envs: int) -> int:
        """Return the memory of M members and their experience, without the replay."""

    def state_bytes(self, spec: EnvSpec) -> int:
        """Bytes of one member's networks in its state: weights, moments and targets."""
        return self.bytes(spec, 1, 1)

    def check(self, num_envs: int) -> None:
        """Refuses sizes that do not fit together by a ConfigError, which names some that do."""

    def replay(self, num_envs: int) -> ReplayConfig | None:
        """Return the replay configuration; None for agents that learn from rollouts."""
        return None

    def check_spaces(self, spec: EnvSpec) -> None:
        """Refuses an environment that the agent cannot act in.

        Raises:
            ConfigError: with agents that can.
        """

    def parts(self, num_envs: int) -> int:
        """Tasks that may run side by side for a lone member."""
        return 1

    def relax_sizes(self, num_envs: int, user_set: Container[str]) -> Self:
        """Return the config without suggested sizes that do not fit; fields in `user_set` stay."""
        return self

    def for_study(self, user_set: Container[str]) -> Self:
        """Return the config of a study's member, whose state is saved often.

        Args:
            user_set: Names of fields set by the user, which stay.
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


def _alone(task: Callable[[], None], run_tasks: RunTasks) -> None:
    task()


class Learning(NamedTuple):
    """Compiled learning from a replay.

    Attributes:
        loop: Compiled ``loop(source, learner, ring, store, updates)`` that makes updates [M]; see
            `ReplayLoops` for `store`.
        source, learner: Its first arguments, current values by reference.
        share: Runs a task that calls `loop`; other threads of the RunTasks may take part.
    """

    loop: Any
    source: Any
    learner: Any
    share: Callable[[Callable[[], None], RunTasks], None] = _alone


class Agent(ABC):
    """M members that act, and learn from their experience.

    Attributes:
        experience_type: Experience of an update: `rollout`, `iteration_steps` of every
            environment from one policy version; or `replay`, which is learned from between steps.
        state_version: goes up when `state_dict` changes its meaning: older runs are not resumed.
        policy: of all members; what is exported.
        members: M.
        parts: Ranges of a lone member's environments that may act and learn in parallel.
    """

    experience_type: ClassVar[Literal["rollout", "replay"]] = "rollout"
    state_version: ClassVar[int] = 2  # columns that are not normalised are not clipped
    policy: Policy
    members: int
    parts: int = 1

    @abstractmethod
    def __init__(
        self, config: Any, specs: EnvSpec | Sequence[EnvSpec], seeds: Sequence[int], num_envs: int
    ) -> None:
        """config: a `Config`; specs: the environment's, or [M]; seeds: [M]; num_envs: N."""

    @abstractmethod
    def act(self, experience: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Reads obs[t] and mask[t] of environments lo..hi; writes their actions[t], log_prob[t].

        Returns:
            What the environments receive: [hi - lo, K], valid until the next call for this range.
        """

    @abstractmethod
    def update(
        self, experience: Rollout, progress: float | NDArray[np.float64], run_tasks: RunTasks
    ) -> dict[str, NDArray[Any]]:
        """Update every member on its own part of the experience; ends an iteration.

        Args:
            experience: [T, M N], filled, with its final observations.
            progress: share of the budget spent before it, for schedules; one, or [M].
            run_tasks: runs tasks of a lone member side by side.

        Returns:
            Numbers [M] by name, among them `updates` (optimiser updates that changed the member)
            and `failed` (it had a non-finite gradient and is never updated again).
        """

    def learn(self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks) -> None:
        """Makes updates [M] of members that hold transitions, between steps, when they are due."""
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

    def acting(self, lo: int = 0, hi: int | None = None) -> CompiledActor | None:
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
            What waits for it and does the rest of `act`. It returns what environments receive,
            [E, K], where rows lo..hi are valid until it is called for them again.
        """
        raise NotImplementedError  # of an agent that has halves

    def learning(self, replay: Replay) -> Learning | None:
        """Return the compiled counterpart of `learn`.

        Called once before any state is loaded, so that all code is compiled together, and once per
        iteration. None if only `learn` is available.
        """
        return None
