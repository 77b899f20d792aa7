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

INITIAL_MEAN, INITIAL_DEVIATION = 25.0, 25.0 / 3.0  # openskill's defaults for a new player


def openskill_missing() -> str | None:
    """Return why ratings are not available; None if openskill is installed."""
    if find_spec("openskill") is not None:
        return None
    return (
        "Validations do not rate the learner against its snapshots, because openskill is not "
        f"installed. {install_command('rating')}"
    )


def load_model() -> Any:
    """Return openskill's model.

    Raises:
        ResourceError: openskill is not installed.
    """
    return import_optional("openskill.models", "A rating", "rating").PlackettLuce()


def update_ratings(model: Any, player1: Any, player2: Any, result: float) -> tuple[Any, Any]:
    """Return both ratings after a match that `player1` won (above 0), lost (below 0) or drew."""
    ranks = [float(result < 0), float(result > 0)]  # lower is better; equal is a draw
    [[player1], [player2]] = model.rate([[player1], [player2]], ranks=ranks)
    return player1, player2


class Ratings:
    """Ratings of M learners and the K snapshots of each, by games among themselves.

    The policy of each validation and each snapshot is a new player: it starts with the learner's
    current mean and openskill's initial deviation. Ratings of different members are not comparable.

    Args:
        members: number of members, M.
        slots: snapshots per member, K.

    Attributes:
        learner: float64 [M, 2], mean and deviation after the last validation.
        snapshots: float64 [M, K, 2], mean and deviation of each snapshot.
    """

    def __init__(self, members: int, slots: int) -> None:
        self.learner = np.tile([INITIAL_MEAN, INITIAL_DEVIATION], (members, 1))
        self.snapshots = np.tile([INITIAL_MEAN, INITIAL_DEVIATION], (members, slots, 1))

    def add_snapshots(self, members: NDArray[np.bool_], slots: NDArray[np.int64]) -> None:
        """Add a snapshot of the members in a mask [M], in the slot `slots` of each."""
        m = np.flatnonzero(members)
        self.snapshots[m, slots[m], 0] = self.learner[m, 0]
        self.snapshots[m, slots[m], 1] = INITIAL_DEVIATION

    def update(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[np.float64]]:
        """Update the ratings by matches [M][J] of the current policies against snapshots.

        Returns:
            Mean and deviation of each member, [M] by column name.
        """
        model, slots = load_model(), self.snapshots.shape[1]
        for m, results in enumerate(games):
            learner = model.rating(mu=self.learner[m, 0], sigma=INITIAL_DEVIATION)
            for metrics in (r.metrics for r in results if r.metrics["snapshot"] >= 0):
                slot = m, int(metrics["snapshot"]) % slots
                mean, deviation = self.snapshots[slot]
                snapshot = model.rating(mu=mean, sigma=deviation)
                won = metrics["won"] - metrics["lost"]
                learner, snapshot = update_ratings(model, learner, snapshot, won)
                self.snapshots[slot] = snapshot.mu, snapshot.sigma
            self.learner[m] = learner.mu, learner.sigma
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
        rating, uncertainty: mean and deviation of the estimated skill after all matches; initially
            25 and 8.3.
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

    Bots do not play each other. Ratings depend on the order of matches, which is drawn from `seed`.
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
        raise ConfigError(
            f"A tournament requires two or more different players, got {', '.join(names)}. Give "
            "directories of runs, or bots."
        )
    kernel_name = _game_of(names, trust)
    players = [load_opponent(kernel_name, name, trust) for name in names]
    short = [player.name for player in players]
    if len(set(short)) < len(short):
        players = [replace(player, name=name) for player, name in zip(players, names, strict=True)]
    tables: dict[tuple[int, int], MatchResult] = {}
    for i, j in itertools.combinations(range(len(players)), 2):
        first, second = (i, j) if players[i].policy is not None else (j, i)
        if players[first].policy is not None:
            result = play(kernel_name, players[first], players[second], games, seed)
            tables[first, second] = result
    return _rate_players(players, tables, seed)


def _game_of(names: Sequence[str], trust: bool) -> str:
    """Return the kernel of the first run among the players."""
    for name in names:
        source = find_run(name, trust)
        if source is not None:
            kernel_name = source[0].config.env_name
            if list_bots(kernel_name):
                return kernel_name
            raise ConfigError(
                f"{name} was trained on `{kernel_name}`, which is not a game for two players. Give "
                "runs of such a game."
            )
    raise ConfigError(
        f"None of {', '.join(names)} is the directory of a run or a folder in its `best`. Give the "
        "directory of at least one run: bots alone are not rated."
    )


def _rate_players(
    players: Sequence[Player], tables: dict[tuple[int, int], MatchResult], seed: int
) -> list[PlayerRating]:
    model = load_model()
    ratings = [model.rating(name=player.name) for player in players]
    # Identical games count once per side, because repeating them adds no information.
    count = {pair: len(t.result[:2] if t.deterministic else t.result) for pair, t in tables.items()}
    order = [(pair, g) for pair, games in count.items() for g in range(games)]
    np.random.default_rng(seed).shuffle(order)
    for (i, j), g in order:
        result = int(tables[i, j].result[g])
        ratings[i], ratings[j] = update_ratings(model, ratings[i], ratings[j], result)
    rows = []
    for k, player in enumerate(players):
        results = [t.result for (i, _), t in tables.items() if i == k]
        results += [-t.result for (_, j), t in tables.items() if j == k]
        outcomes = np.concatenate(results)
        won, lost = float((outcomes == 1).mean()), float((outcomes == -1).mean())
        rows.append(PlayerRating(player.name, ratings[k].mu, ratings[k].sigma, won, lost))
    return sorted(rows, key=lambda row: -row.rating)


def to_json(ranked: Sequence[PlayerRating], games: int, seed: int) -> str:
    """Return the table as JSON text."""
    values = {"games": games, "seed": seed, "table": [asdict(row) for row in ranked]}
    return json.dumps(values, indent=2) + "\n"
