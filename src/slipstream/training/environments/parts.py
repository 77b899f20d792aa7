"""Parts that applications add to environments: players of a game, and a register of holdout data.

`Players` defines the opponents of a policy in a game. A holdout is valid only once,
and only on days that no search has used: an application that can identify its data offers the part
`HoldoutRegister`.
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

SNAPSHOTS = "snapshots"  # opponent: earlier weights of the learner
RANDOM = "random"  # opponent: uniformly random allowed actions
NUMBERS = ("player", "opponent", "snapshot")  # metrics of a game whose means are meaningless
FEWEST_SHARED = 60  # common days required to compare data


class MemberOpponents(Protocol):
    """Opponents that members play in training, and the results against them."""

    def record_games(self, ended: Episodes, num_envs: int) -> None:
        """Add the games of one iteration, of all members with `num_envs` environments each."""

    def advance(self) -> None:
        """End an iteration."""

    def metrics(self) -> dict[str, NDArray[Any]]:
        """Return columns of training metrics, [M] by name."""

    def rating_environment(self) -> Environment | None:
        """Return the environment of games that rate the members; None without ratings."""

    def rate(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[Any]]:
        """Rate the members by such games [M][J]; return validation columns, [M] by name."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state to resume from, member axis first."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `state_dict()`."""


class Players(Part):
    """Environment that is a game: class methods take its name, other methods a loaded
    environment.
    """

    @classmethod
    @abstractmethod
    def with_opponent(
        cls, name: str, settings: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return a complete section `env`, with a default opponent if it names none.

        Returns:
            The section, and a message that names the opponent; None if none was missing.
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
        player: int,
        opponent: str,
        drawn: bool = False,
        past: Any = None,
    ) -> Environment:
        """Load the game for a policy that plays as `player`, against one opponent.

        Args:
            name, settings: name and settings of section `env`.
            player: 0 or 1.
            opponent: a bot, the path of a policy, or SNAPSHOTS.
            drawn: the opponent samples its actions.
            past: snapshots, as returned by `past`.

        Raises:
            ConfigError: the opponent does not fit the game, or the game does not declare a winner.
        """

    @classmethod
    @abstractmethod
    def best_response_settings(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
        """Return the keys of `env` for training a best response to one opponent."""

    @classmethod
    @abstractmethod
    def past(
        cls, settings: Mapping[str, Any], policy: Policy, state: Mapping[str, NDArray[Any]]
    ) -> Any:
        """Return the snapshots in a state of `MemberOpponents`; None if it has none.

        Args:
            settings: settings of section `env`.
            policy: policy of one member.
            state: rows of that member.
        """

    @property
    @abstractmethod
    def names(self) -> Mapping[int, str]:
        """Names of the numbers in an evaluation's metric `opponent`."""

    @property
    @abstractmethod
    def deterministic_opponents(self) -> frozenset[str]:
        """Opponents against whom all evaluation games from one side are identical.

        Neither they nor the game may be random; the policy that plays them must not be either.
        """

    @property
    @abstractmethod
    def warnings(self) -> tuple[str, ...]:
        """Warnings about a training run."""

    @abstractmethod
    def for_training(self, policy: Policy) -> tuple[Environment, MemberOpponents | None]:
        """Return the training environment and the opponents of the members.

        Args:
            policy: policy of the members during training; opponents may be earlier weights of it.
        """


def opponent_names(environment: Environment) -> Mapping[int, str]:
    """Names of the numbers in the metric `opponent`; none if the environment is no game."""
    players = environment.part(Players)
    return {} if players is None else players.names


def short_name(text: str) -> str:
    """Return the display name of a run, policy folder or ONNX file, as RUN/MEMBER for a member."""
    path = Path(text).absolute()
    is_member = path.parent.name == BEST
    return f"{path.parents[1].name}/{path.name}" if is_member else path.name.removesuffix(".onnx")


def group_by_opponent(
    tracks: Sequence[EpisodeResult], names: Mapping[int, str]
) -> dict[str, list[EpisodeResult]]:
    """Group games of two players by the opponent's name; empty for other environments.

    Args:
        tracks: results of one member.
        names: names of the numbers in the metric `opponent`; empty if it is no game.
    """
    groups: dict[str, list[EpisodeResult]] = {}
    # Any environment may have such metrics; only games have names for the numbers.
    if not names or not {"won", "lost", "opponent"} <= set(tracks[0].metrics):
        return groups
    for track in tracks:
        number = int(track.metrics["opponent"])
        groups.setdefault(names.get(number, str(number)), []).append(track)
    return dict(sorted(groups.items()))


def outcome_shares(
    rows: Sequence[Sequence[EpisodeResult]], names: Mapping[int, str]
) -> dict[str, NDArray[np.float64]]:
    """Return shares [M] of games won and lost against each opponent: `won_NAME`, `lost_NAME`.

    Empty if there is only one opponent, because `won` and `lost` are the same then.

    Args:
        rows: [M][J], results of the same episodes for each member.
    """
    games = [group_by_opponent(tracks, names) for tracks in rows]
    opponents = sorted({name for member_games in games for name in member_games})
    if len(opponents) < 2:
        return {}
    return {
        f"{what}_{name}": np.array(
            [_share(member_games.get(name, []), what) for member_games in games]
        )
        for name in opponents
        for what in ("won", "lost")
    }


def _share(tracks: Sequence[EpisodeResult], what: str) -> float:
    return float(np.mean([track.metrics[what] for track in tracks])) if tracks else float("nan")


@dataclass(frozen=True)
class Opening:
    """One opening of a holdout.

    Attributes:
        number: number of this opening of these days; 0 if there is nothing to open.
        before: studies that opened some of the days before.
        opened: days that were opened or searched before.
        accesses: runs and evaluations that showed results on some of the days.
        unknown: reason if other openings are unknown; else empty.
        searched: studies that used some of the days for development.
        compared_days: days by which prices were identified, if fewer than required.
    """

    number: int = 0
    before: tuple[str, ...] = ()
    opened: frozenset[int] = frozenset()
    accesses: tuple[str, ...] = ()
    unknown: str = ""
    searched: tuple[str, ...] = ()
    compared_days: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the values for `result.json`; only `opening` if there is nothing else."""
        names = ("before", "searched", "accesses", "unknown", "compared_days")
        values = {name: getattr(self, name) for name in names}
        return {"opening": self.number, **{k: v for k, v in values.items() if v}}


class HoldoutRegister(Part):
    """Register of an environment's data. This base registers nothing."""

    def record_access(self, what: str) -> tuple[str, ...]:
        """Record that a result on a test split or selected window was shown.

        Args:
            what: source of the access: ``run PATH``.

        Returns:
            Runs and studies that showed or opened some of these days before.
        """
        return ()

    def begin_search(
        self, window: Sequence[float] | None, study: str, name: str, beside: Path, trials: int
    ) -> Mapping[str, Any]:
        """Record a study's development days once per study; on disk on return.

        Args:
            window: development days, UTC seconds, half open; None for all of the holdout split.
            study: id of the study.
            name: display name of the study.
            beside: folder that contains the studies.
            trials: planned number of trials; `end_search` replaces it.

        Returns:
            Earlier searches on some of these days: their `studies`, their number of `trials`, and
            the number of studies for which that is `unknown`; empty without any.
        """
        return {}

    def end_search(self, study: str, trials: int, beside: Path) -> None:
        """Record the number of trials of a search that has stopped."""

    def searched_days(self, study: str, beside: Path) -> frozenset[int] | None:
        """Return the days of the holdout that a study used for its search.

        None if no register contains the study.
        """
        return frozenset()

    def open(self, key: str, name: str, beside: Path, own: int) -> Opening:
        """Record an opening of the holdout; on disk on return.

        Args:
            key: id of the opening: a resumed study opens once.
            name, beside: as for `begin_search`.
            own: the study's own count of its openings.
        """
        return Opening(own)


def get_holdout_register(environment: Environment) -> HoldoutRegister:
    """Return an application's register of the data, or a register that does nothing."""
    return environment.part(HoldoutRegister) or HoldoutRegister()
