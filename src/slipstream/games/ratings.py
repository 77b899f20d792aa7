"""Ratings of players by openskill's Plackett-Luce model (Weng and Lin 2011), and round robins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional, install_command
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.matches import (
    MatchResult,
    Player,
    find_run,
    list_bots,
    load_opponent,
    play,
)

INITIAL_MEAN, INITIAL_DEVIATION = 25.0, 25.0 / 3.0  # of who has not played yet: openskill's own


def openskill_missing() -> str | None:
    """Return why ratings are not available; None if openskill is installed."""
    if find_spec("openskill") is not None:
        return None
    return (
        "The learner is not rated against its snapshots in validations: openskill is not "
        f"installed. {install_command('rating')}"
    )


def load_model() -> Any:
    """Return openskill's model.

    Raises:
        ResourceError: openskill is not installed.
    """
    return import_optional("openskill.models", "A rating", "rating").PlackettLuce()


def update_ratings(model: Any, one: Any, two: Any, result: float) -> tuple[Any, Any]:
    """Return both ratings after a match that `one` won (above 0), lost (below 0) or drew."""
    # A lower rank is better; equal ones are a draw.
    ranks = [float(result < 0), float(result > 0)]
    [[one], [two]] = model.rate([[one], [two]], ranks=ranks)
    return one, two


class Ratings:
    """Of M learners and the K snapshots of each, by games among themselves.

    The policy of a validation is a new player, and so is a snapshot: both begin with the learner's
    mean so far and openskill's first deviation. Ratings of different members do not compare.

    Args:
        members: M; slots: K.

    Attributes:
        learner: float64 [M, 2], mean and deviation after the last validation; snapshots: float64
            [M, K, 2].
    """

    def __init__(self, members: int, slots: int) -> None:
        self.learner = np.tile([INITIAL_MEAN, INITIAL_DEVIATION], (members, 1))
        self.snapshots = np.tile([INITIAL_MEAN, INITIAL_DEVIATION], (members, slots, 1))

    def add_snapshots(self, members: NDArray[np.bool_], slots: NDArray[np.int64]) -> None:
        """Takes in a new snapshot of some members, [M], in the place `slots` of each."""
        m = np.flatnonzero(members)
        self.snapshots[m, slots[m], 0] = self.learner[m, 0]
        self.snapshots[m, slots[m], 1] = INITIAL_DEVIATION

    def update(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[np.float64]]:
        """Update the ratings by matches [M][J] of the current policies against snapshots.

        Returns:
            Mean and deviation of each member, [M] by column name.
        """
        model, slots = load_model(), self.snapshots.shape[1]
        for m, own in enumerate(games):
            one = model.rating(mu=self.learner[m, 0], sigma=INITIAL_DEVIATION)
            for metrics in (track.metrics for track in own if track.metrics["snapshot"] >= 0):
                at = m, int(metrics["snapshot"]) % slots
                two = model.rating(mu=self.snapshots[at][0], sigma=self.snapshots[at][1])
                one, two = update_ratings(model, one, two, metrics["won"] - metrics["lost"])
                self.snapshots[at] = two.mu, two.sigma
            self.learner[m] = one.mu, one.sigma
        columns = self.learner.T.copy()
        return {"rating": columns[0], "rating_deviation": columns[1]}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state, member axis first."""
        return {"learner": self.learner.copy(), "snapshots": self.snapshots.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state_dict()`; states without ratings are accepted."""
        for name, values in state.items():
            getattr(self, name)[:] = values


@dataclass(frozen=True)
class PlayerRating:
    """Row of a player in the table.

    Attributes:
        name: run directory or bot.
        rating, uncertainty: mean and deviation of the estimated skill after all matches; 25 and 8.3
            before the first.
        won, lost: shares of its matches.
    """

    name: str
    rating: float
    uncertainty: float
    won: float
    lost: float


def round_robin(
    names: Sequence[str], games: int, seed: int, trust: bool = False
) -> list[PlayerRating]:
    """Play every pair from both sides and rate the players; the best comes first.

    Two bots do not meet. Ratings depend on the order of matches, which is drawn from `seed`.
    Identical matches count once per side.

    Args:
        names: run directories of one game or folders in their `best`, and names of its bots.
        games: matches per pair.
        seed: seed of the matches.
        trust: see `Run.open`.

    Raises:
        ConfigError: fewer than two players, no policy among them, or a policy of another game.
    """
    if len(set(names)) != len(names) or len(names) < 2:
        raise ConfigError("Give two or more different players: directories of runs, or bots.")
    kernel_name = _game_of(names, trust)
    players = [load_opponent(kernel_name, name, trust) for name in names]
    short = [player.name for player in players]
    if len(set(short)) < len(short):
        players = [replace(player, name=name) for player, name in zip(players, names, strict=True)]
    tables: dict[tuple[int, int], MatchResult] = {}
    for i, j in itertools.combinations(range(len(players)), 2):
        one, two = (i, j) if players[i].policy is not None else (j, i)
        if players[one].policy is not None:
            tables[one, two] = play(kernel_name, players[one], players[two], games, seed)
    return _rated(players, tables, seed)


def _game_of(names: Sequence[str], trust: bool) -> str:
    """Return the kernel of the first run among the players."""
    for name in names:
        found = find_run(name, trust)
        if found is not None:
            kernel_name = found[0].config.env_name
            if list_bots(kernel_name):
                return kernel_name
            raise ConfigError(f"{name} plays `{kernel_name}`, which is no game for two.")
    raise ConfigError(
        f"None of {', '.join(names)} is the directory of a run or a folder in its `best`: bots "
        "alone have nothing to be compared with. Give the directory of at least one run."
    )


def _rated(
    players: Sequence[Player], tables: dict[tuple[int, int], MatchResult], seed: int
) -> list[PlayerRating]:
    model = load_model()
    ratings = [model.rating(name=player.name) for player in players]
    # The same game again is no news: one from each side counts where all are alike.
    count = {pair: len(t.result[:2] if t.deterministic else t.result) for pair, t in tables.items()}
    order = [(pair, g) for pair, games in count.items() for g in range(games)]
    np.random.default_rng(seed).shuffle(order)
    for (one, two), g in order:
        result = int(tables[one, two].result[g])
        ratings[one], ratings[two] = update_ratings(model, ratings[one], ratings[two], result)
    found = []
    for i, player in enumerate(players):
        results = [t.result for (one, _), t in tables.items() if one == i]
        results += [-t.result for (_, two), t in tables.items() if two == i]
        own = np.concatenate(results)
        won, lost = float((own == 1).mean()), float((own == -1).mean())
        found.append(PlayerRating(player.name, ratings[i].mu, ratings[i].sigma, won, lost))
    return sorted(found, key=lambda place: -place.rating)


def to_json(ranked: Sequence[PlayerRating], games: int, seed: int) -> str:
    """Return the table as JSON text."""
    values = {"games": games, "seed": seed, "table": [asdict(place) for place in ranked]}
    return json.dumps(values, indent=2) + "\n"
