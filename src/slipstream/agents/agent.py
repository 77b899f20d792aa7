"""The contract of an agent: all that collectors, shards, the trainer and studies know of one.

An algorithm is a file `<name>.py` in this folder, or a folder `<name>/`, with two classes (see
`discover.py`): `Config`, an `AgentConfig`, says what a user may write and which sizes follow from
it; `Agent`, made as ``Agent(config, specs, seeds, num_envs)``, acts and learns. M members share an
agent and never mix: a member's bits follow from its seed, its settings and its experience alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.policy import Policy
from slipstream.vector.fused import Acting

Arrays: TypeAlias = dict[str, NDArray[Any]]
RunTasks: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks side by side, or in turn in their order: a later one may wait for an earlier one."""


def _alone(task: Callable[[], None], run: RunTasks) -> None:
    task()


class Learning(NamedTuple):
    """What learns from a replay in compiled code.

    Attributes:
        loop: compiled; ``loop(feed, by, ring, store, updates)`` makes updates [M] of each member;
            see `ReplayLoops` for `store`.
        feed, by: its first arguments, as they are now.
        share: runs a task that calls `loop`; other threads of the RunTasks may take part in its
            updates.
    """

    loop: Any
    feed: Any
    by: Any
    share: Callable[[Callable[[], None], RunTasks], None] = _alone


def in_sequence(tasks: Sequence[Callable[[], None]]) -> None:
    """Runs tasks one after another; a crew of threads gives the same results."""
    for task in tasks:
        task()


class Agent(ABC):
    """M members that act, and learn from their experience.

    Attributes:
        wants: what is collected for an update: a `rollout`, `iteration_steps` of every copy from
            one version of the policy; or a `replay`, which keeps them: then the agent learns
            between the steps, too, as its Config's `replay` says.
        state_version: goes up when `state_dict` changes its meaning: older runs are not resumed.
        policy: of all members; what is exported.
        members: M.
        parts: ranges of a lone member's copies that may act, and learn, side by side.
    """

    wants: ClassVar[Literal["rollout", "replay"]] = "rollout"
    state_version: ClassVar[int] = 1
    policy: Policy
    members: int
    parts: int = 1

    @abstractmethod
    def __init__(
        self, config: Any, specs: Spec | Sequence[Spec], seeds: Sequence[int], num_envs: int
    ) -> None:
        """M members.

        Args:
            config: an instance of the `Config` beside it; its lists have length M.
            specs: the environment's Spec, or one per member (they may differ in fixed scales).
            seeds: [M]; what is random in a member follows from its own.
            num_envs: N, copies per member.
        """

    @abstractmethod
    def act(self, experience: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Chooses the actions of step t, and writes them and their log_prob there.

        Args:
            experience: its obs[t], and mask[t] where there is one, are read.
            t: row.
            lo, hi: environments lo..hi, by default all; parts of a lone member's may act at once.

        Returns:
            What the environments receive: [hi - lo, K], valid until the next call for this range.
        """

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting | None:
        """What does the same as `act` at every row, for loops that act and step without Python.

        Asked once for every block of experience; None where only `act` can.
        """
        return None

    @abstractmethod
    def update(
        self,
        experience: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> Arrays:
        """Improves every member on its own part of the experience; ends an iteration.

        Args:
            experience: filled, with its final observations.
            progress: share of the budget spent before it, for schedules; one, or [M].
            run: runs the parts of a lone member.

        Returns:
            Numbers [M] by name, among them `updates` (optimiser updates that changed the member)
            and `failed` (its gradient was not finite once; it stands still from then on).
        """

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run: RunTasks = in_sequence
    ) -> None:
        """Improves members that learn from a replay; called between steps, when updates are due.

        Args:
            replay: what was kept; every member with updates to make holds transitions.
            updates: int64 [M], how many each member makes now; some may make none.
            run: runs the parts of a lone member.
        """
        raise NotImplementedError  # of an agent that wants a replay

    def learning(self, replay: Replay) -> Learning | None:
        """What does the same as `learn`, for loops that act, step and learn without Python.

        Asked once for every iteration; None where only `learn` can.
        """
        return None

    @abstractmethod
    def state_dict(self) -> Mapping[str, Any]:
        """The small part of what training goes on from, for every checkpoint: arrays by name.

        Their first axis is the member: shards are joined and taken apart by rows. A replay is not
        among them: who collects it saves it.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state_dict()`."""
