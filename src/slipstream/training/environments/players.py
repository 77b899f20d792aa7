"""The players of a game of two: who may act in the seat that a policy leaves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from slipstream.kernels.vector_env import Episodes
from slipstream.rl.best_policies import BEST
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import Environment, Part
from slipstream.training.track import Track

SNAPSHOTS = "snapshots"  # the opponent that is the learner's own past
RANDOM = "random"  # the opponent that takes any allowed action


class MemberOpponents(Protocol):
    """Opponents that members meet in training, and the results against them."""

    def learn(self, ended: Episodes, copies: int) -> None:
        """Add the games of one iteration, of all members with `copies` each."""

    def advance(self) -> None:
        """End an iteration."""

    def metrics(self) -> dict[str, NDArray[Any]]:
        """Return columns of training metrics, [M] by name."""

    def rehearsal(self) -> Environment | None:
        """Return the environment of games that rate the members; None without ratings."""

    def rate(self, games: Sequence[Sequence[Track]]) -> dict[str, NDArray[Any]]:
        """Rate the members by such games [M][J]; columns of the validation, [M] by name."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that training continues from, member axis first."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state_dict()`."""


class Players(Part):
    """An environment that is a game: class methods take its name, all others need it loaded."""

    @classmethod
    @abstractmethod
    def bots(cls, name: str) -> list[str]:
        """Return the opponents that need no training."""

    @classmethod
    @abstractmethod
    def facing(
        cls,
        name: str,
        settings: Mapping[str, Any],
        seat: int,
        opponent: str,
        drawn: bool = False,
        past: Any = None,
    ) -> Environment:
        """Load the game as a policy plays it that has `seat`, against one opponent.

        Args:
            name, settings: of the section `env`.
            seat: 0 or 1.
            opponent: a bot, a place of a policy on disk, or SNAPSHOTS.
            drawn: the opponent draws its actions.
            past: snapshots, as `past` returns them.

        Raises:
            ConfigError: the opponent does not fit the game, or the game does not declare a winner.
        """

    @classmethod
    @abstractmethod
    def answering(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
        """Return keys of `env` under which a best response to one opponent is trained."""

    @classmethod
    @abstractmethod
    def past(
        cls, settings: Mapping[str, Any], policy: Policy, state: Mapping[str, NDArray[Any]]
    ) -> Any:
        """Return the snapshots in a state of `MemberOpponents`; None if it has none.

        Args:
            settings: of the section `env`.
            policy: of one member.
            state: rows of that member.
        """

    @property
    @abstractmethod
    def names(self) -> Mapping[int, str]:
        """Names of the numbers in an evaluation's metric `opponent`."""

    @property
    @abstractmethod
    def repeated(self) -> frozenset[str]:
        """Opponents in evaluations against whom all games from one side are the same game.

        Neither they nor the game draw anything, and nor may the policy that meets them.
        """

    @property
    @abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """Sentences about a training that the user must see."""

    @abstractmethod
    def trained(self, policy: Policy) -> tuple[Environment, MemberOpponents | None]:
        """Return the environment in which members are trained, and the opponents they meet there.

        Args:
            policy: of the members, as it is trained: opponents may be its earlier weights.
        """


def opponent_names(environment: Environment) -> Mapping[int, str]:
    """Names of the numbers in the metric `opponent`; none if the environment is no game."""
    players = environment.part(Players)
    return {} if players is None else players.names


def short_name(text: str) -> str:
    """What a run, a policy's folder or an ONNX file is called; before a member's name its run's."""
    path = Path(text).absolute()
    own = path.parent.name == BEST
    return f"{path.parents[1].name}/{path.name}" if own else path.name.removesuffix(".onnx")
