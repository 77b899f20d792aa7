"""What an algorithm may add to the contract in `agent.py`: each method has a default that works."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from slipstream.agents.member_config import MemberConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipstream.core.spec import Spec
    from slipstream.experience.replay.replay import Replay
    from slipstream.experience.rollout import Rollout
    from slipstream.machine.gate import RunTasks
    from slipstream.vector.kernel.fused import Acting


class ConfigOptions(MemberConfig):
    """What a Config may add: sizes for `num_envs: auto` and for studies, a lone member's threads.

    Attributes:
        LENGTHS: fields that `iteration_steps` follows from.
        SIZES: fields that `bytes` follows from.
        FITTED: sizes that `fit` makes agree; those that are no fields are for searches only.
        MOST_COPIES: the most copies of a member that `num_envs: auto` chooses; None: no bound.
    """

    LENGTHS: ClassVar[tuple[str, ...]] = ()
    SIZES: ClassVar[tuple[str, ...]] = ()
    FITTED: ClassVar[tuple[str, ...]] = ()
    MOST_COPIES: ClassVar[int | None] = None

    def check_spaces(self, spec: Spec) -> None:
        """Refuses an environment that the agent cannot act in.

        Raises:
            ConfigError: with agents that can.
        """

    def parts(self, num_envs: int) -> int:
        """Tasks that may run side by side for a lone member."""
        return 1

    def give_way(self, num_envs: int, given: Container[str]) -> Self:
        """The config without suggested sizes that do not fit; those `given` are the user's."""
        return self

    def among_many(self, given: Container[str]) -> Self:
        """The config of a study's member, of which hundreds are saved again and again.

        Args:
            given: names of fields that are the user's, which stay.
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
    """What learns from a replay in compiled code.

    Attributes:
        loop: compiled; ``loop(feed, by, ring, store, updates)`` makes updates [M] of each member;
            see `ReplayLoops` for `store`.
        feed, by: its first arguments, as they are now; by reference.
        share: runs a task that calls `loop`; other threads of the RunTasks may take part in its
            updates.
    """

    loop: Any
    feed: Any
    by: Any
    share: Callable[[Callable[[], None], RunTasks], None] = _alone


class AgentOptions:
    """What an Agent may add: `act` and `learn` in compiled code, with no Python between steps.

    Attributes:
        parts: ranges of a lone member's copies that may act, and learn, side by side.
    """

    parts: int = 1

    def drain_notes(self) -> list[str]:
        """Sentences about how it calculates from now on, each told once."""
        return []

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting | None:
        """The compiled counterpart of `act` for every row of environments lo..hi.

        Asked once before any state is loaded, so that all is compiled together, and once for every
        block of experience; None where only `act` can.
        """
        return None

    def halves(self) -> list[tuple[int, int]]:
        """Ranges lo..hi of environments to step in turn: a card acts for one meanwhile.

        None where `act` is to be called for all at once.
        """
        return []

    def begin_act(
        self, experience: Rollout, t: int, lo: int, hi: int
    ) -> Callable[[], NDArray[Any]]:
        """Begins to act for one of the `halves`.

        Returns:
            What waits for it and does the rest of `act`. It returns what environments receive,
            [E, K], where rows lo..hi are valid until it is called for them again.
        """
        raise NotImplementedError  # of an agent that has halves

    def learning(self, replay: Replay) -> Learning | None:
        """The compiled counterpart of `learn`.

        Asked once before any state is loaded, so that all is compiled together, and once for every
        iteration; None where only `learn` can.
        """
        return None
