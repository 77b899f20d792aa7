"""The contract of an algorithm: two classes, in a file of this folder or of your own.

`Config` says what a user may write under `agent:`, and what follows from it and from N, the copies
per member; `Agent`, made as ``Agent(config, specs, seeds, num_envs)``, acts and learns. M members
share an agent and never mix: a member's bits follow from its seed, its settings and its experience
alone. No more is known of an algorithm outside `rl/agents/`, but what `options.py` lets it add.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from slipstream.rl.agents.options import AgentOptions, ConfigOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slipstream.jit.gate import RunTasks
    from slipstream.kernels.spec import Spec
    from slipstream.rl.experience.replay.plan import ReplayPlan
    from slipstream.rl.experience.replay.replay import Replay
    from slipstream.rl.experience.rollout import Rollout
    from slipstream.rl.nets.policy import Policy


class AgentConfig(ConfigOptions):
    """Base of `Config`, whose fields are what a user may write; see also `options.py`."""

    @abstractmethod
    def iteration_steps(self, num_envs: int) -> int:
        """Steps of each copy in one iteration, which ends with `update`."""

    @abstractmethod
    def updates(self, num_envs: int) -> int:
        """Optimiser updates of a member in one iteration."""

    @abstractmethod
    def rows(self, num_envs: int) -> int:
        """Rows that a member learns from in one update."""

    @abstractmethod
    def weight_bytes(self, spec: Spec) -> int:
        """Bytes of one member's networks; what acting costs is in proportion to it."""

    @abstractmethod
    def bytes(self, spec: Spec, members: int, num_envs: int) -> int:
        """Memory that M members and their experience need, apart from what `replay` says."""

    def state_bytes(self, spec: Spec) -> int:
        """Bytes of one member's networks in its state: weights, moments and targets."""
        return self.bytes(spec, 1, 1)

    def check(self, num_envs: int) -> None:
        """Refuses sizes that do not fit together by a ConfigError, which names some that do."""

    def replay(self, num_envs: int) -> ReplayPlan | None:
        """What is kept of each member, and when it learns from it; None: it wants rollouts."""
        return None


class Agent(AgentOptions, ABC):
    """M members that act, and learn from their experience.

    Attributes:
        wants: what is collected for an update: a `rollout`, `iteration_steps` of every copy from
            one version of the policy; or a `replay`, from which it learns between steps, too.
        state_version: goes up when `state_dict` changes its meaning: older runs are not resumed.
        policy: of all members; what is exported.
        members: M.
    """

    wants: ClassVar[Literal["rollout", "replay"]] = "rollout"
    state_version: ClassVar[int] = 2  # columns that are not normalised are not clipped
    policy: Policy
    members: int

    @abstractmethod
    def __init__(
        self, config: Any, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
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
        """Improves every member on its own part of the experience; ends an iteration.

        Args:
            experience: [T, M N], filled, with its final observations.
            progress: share of the budget spent before it, for schedules; one, or [M].
            run_tasks: runs tasks of a lone member side by side.

        Returns:
            Numbers [M] by name, among them `updates` (optimiser updates that changed the member)
            and `failed` (its gradient was not finite once; it stands still from then on).
        """

    def learn(self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks) -> None:
        """Makes updates [M] of members that hold transitions, between steps, when they are due."""
        raise NotImplementedError  # of an agent that wants a replay

    @abstractmethod
    def state_dict(self) -> Mapping[str, NDArray[Any]]:
        """The small part of what training goes on from: arrays by name, their first axis M.

        All weights are in it: a study's members that go on are made without first ones.

        It goes into every checkpoint, and over pipes. The bulk, a replay, does not: the process
        that holds it writes it, in chunks (`core/storage/checkpoint.py`).
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
