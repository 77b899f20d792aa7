"""Parts that applications add to environments: the players of a game, the register of its data.

Who may act in the seat that a policy leaves is the part `Players`. A hold-out proves something
once, and only on days that nobody searched on: an application that can identify its data offers
the part `HoldoutRegister`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.vector_env import Episodes
from slipstream.rl.best_policies import BEST
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import Environment, Part
from slipstream.training.episode_result import EpisodeResult

SNAPSHOTS = "snapshots"  # the opponent that is the learner's own past
RANDOM = "random"  # the opponent that takes any allowed action
NUMBERS = ("seat", "opponent", "snapshot")  # metrics of a game whose means say nothing
FEWEST_SHARED = 60  # common days without which data are not compared


class MemberOpponents(Protocol):
    """Opponents that members meet in training, and the results against them."""

    def record_games(self, ended: Episodes, copies: int) -> None:
        """Add the games of one iteration, of all members with `copies` each."""

    def advance(self) -> None:
        """End an iteration."""

    def metrics(self) -> dict[str, NDArray[Any]]:
        """Return columns of training metrics, [M] by name."""

    def rating_environment(self) -> Environment | None:
        """Return the environment of games that rate the members; None without ratings."""

    def rate(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[Any]]:
        """Rate the members by such games [M][J]; columns of the validation, [M] by name."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that training continues from, member axis first."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `state_dict()`."""


class Players(Part):
    """An environment that is a game: class methods take its name, all others need it loaded."""

    @classmethod
    @abstractmethod
    def with_opponent(
        cls, name: str, settings: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return a complete section `env` with a player in the second seat, if that is left open.

        Returns:
            The section, and a sentence that names the player; None if nothing was open.
        """

    @classmethod
    @abstractmethod
    def bots(cls, name: str) -> list[str]:
        """Return the opponents that need no training."""

    @classmethod
    @abstractmethod
    def load_against(
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
    def best_response_settings(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
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
    def deterministic_opponents(self) -> frozenset[str]:
        """Opponents in evaluations against whom all games from one side are the same game.

        Neither they nor the game draw anything, and nor may the policy that meets them.
        """

    @property
    @abstractmethod
    def warnings(self) -> tuple[str, ...]:
        """Sentences about a training that the user must see."""

    @abstractmethod
    def for_training(self, policy: Policy) -> tuple[Environment, MemberOpponents | None]:
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


def group_by_opponent(
    tracks: Sequence[EpisodeResult], names: Mapping[int, str]
) -> dict[str, list[EpisodeResult]]:
    """Games of two by the opponent's name, those that were met; empty for other environments.

    Args:
        tracks: of one member.
        names: of the numbers in the metric `opponent`; none where it is no game.
    """
    found: dict[str, list[EpisodeResult]] = {}
    # Anybody's environment may call its metrics so; only games have names for the numbers.
    if not names or not {"won", "lost", "opponent"} <= set(tracks[0].metrics):
        return found
    for track in tracks:
        number = int(track.metrics["opponent"])
        found.setdefault(names.get(number, str(number)), []).append(track)
    return dict(sorted(found.items()))


def outcome_shares(
    rows: Sequence[Sequence[EpisodeResult]], names: Mapping[int, str]
) -> dict[str, NDArray[np.float64]]:
    """Shares [M] of games won and lost against each opponent: `won_NAME`, `lost_NAME`.

    Empty where there is one opponent only: `won` and `lost` say the same.

    Args:
        rows: [M][J], of the same episodes for each member.
    """
    games = [group_by_opponent(tracks, names) for tracks in rows]
    met = sorted({name for own in games for name in own})
    if len(met) < 2:
        return {}
    return {
        f"{what}_{name}": np.array([_share(own.get(name, []), what) for own in games])
        for name in met
        for what in ("won", "lost")
    }


def _share(tracks: Sequence[EpisodeResult], what: str) -> float:
    return float(np.mean([track.metrics[what] for track in tracks])) if tracks else float("nan")


@dataclass(frozen=True)
class Opening:
    """What is known of one opening of a hold-out.

    Attributes:
        number: which opening of these days it is; 0 where there is nothing to open.
        before: the studies that opened some of them before.
        opened: days that were opened or searched: none of them is fresh.
        looks: runs and evaluations that showed an outcome of some of them.
        unknown: why it is not known whether others opened them; empty where it is.
        searched: the studies that used some of them for development.
        compared_days: days by which prices were identified, if they are fewer than needed.
    """

    number: int = 0
    before: tuple[str, ...] = ()
    opened: frozenset[int] = frozenset()
    accesses: tuple[str, ...] = ()
    unknown: str = ""
    searched: tuple[str, ...] = ()
    compared_days: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As in `result.json`; `opening` alone where there is nothing more."""
        names = ("before", "searched", "accesses", "unknown", "compared_days")
        told = {name: getattr(self, name) for name in names}
        return {"opening": self.number, **{k: v for k, v in told.items() if v}}


class HoldoutRegister(Part):
    """Register of an environment's data. This base registers nothing."""

    def record_access(self, what: str) -> tuple[str, ...]:
        """Record that an outcome of a test split or of a chosen window was shown.

        Args:
            what: who showed it: ``run PATH``.

        Returns:
            The runs and studies that showed or opened some of these days before.
        """
        return ()

    def begin_search(
        self, window: Sequence[float] | None, study: str, name: str, beside: Path, trials: int
    ) -> Mapping[str, Any]:
        """Record a study's development days, on disk when this returns; once per study.

        Args:
            window: the development days, UTC seconds, half open; None: all of the hold-out split.
            study: its id; name: of the study, for others.
            beside: the folder that its studies lie in.
            trials: number of trials that it plans; `end_search` replaces it.

        Returns:
            Earlier searches on some of these days: their `studies`, their number of `trials`, and
            of how many studies that is `unknown`; nothing without any.
        """
        return {}

    def end_search(self, study: str, trials: int, beside: Path) -> None:
        """Record the number of trials of a search that has stopped."""

    def searched_days(self, study: str, beside: Path) -> frozenset[int] | None:
        """Return the days of the hold-out that a study of this id searched on.

        None if no register contains the study.
        """
        return frozenset()

    def open(self, key: str, name: str, beside: Path, own: int) -> Opening:
        """Record an opening of the hold-out, on disk when this returns.

        Args:
            key: the same for the same opening: a resumed study opens once.
            name, beside: as for `begin_search`.
            own: which opening of its hold-out the study itself counts.
        """
        return Opening(own)


def get_holdout_register(environment: Environment) -> HoldoutRegister:
    """Return an application's register of the data, or one that registers nothing."""
    return environment.part(HoldoutRegister) or HoldoutRegister()
