"""A round robin of policies for two and bots, and ratings from its games."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from slipstream.core.errors import ConfigError
from slipstream.games.self_play.ratings import load_model, rated
from slipstream.training.runs.games import Games, Player, bots, opponent_of, play, run_of


@dataclass(frozen=True)
class PlayerRating:
    """One player's row of the table.

    Attributes:
        name: the run's directory, or the bot.
        rating, uncertainty: mean and deviation of the skill that openskill's Plackett-Luce model
            (Weng and Lin 2011) believes in after all games; 25 and 8.3 before the first.
        won, lost: shares of its games.
    """

    name: str
    rating: float
    uncertainty: float
    won: float
    lost: float


def round_robin(
    names: Sequence[str], games: int, seed: int, trust: bool = False
) -> list[PlayerRating]:
    """Everybody against everybody, from both sides; the best first.

    Two bots do not meet. Games count in an order drawn from `seed`, for a rating depends on it;
    those that are all alike count once from each side.

    Args:
        names: directories of runs of one game or folders in their `best`, and names of its bots.
        games: of every pair.
        seed: of the games.
        trust: see `Run.open`.

    Raises:
        ConfigError: fewer than two players, none with a policy, or one of another game.
    """
    if len(set(names)) != len(names) or len(names) < 2:
        raise ConfigError("Give two or more different players: directories of runs, or bots.")
    kernel_name = _game_of(names, trust)
    players = [opponent_of(kernel_name, name, trust) for name in names]
    short = [player.name for player in players]
    if len(set(short)) < len(short):
        players = [replace(player, name=name) for player, name in zip(players, names, strict=True)]
    tables: dict[tuple[int, int], Games] = {}
    for i, j in itertools.combinations(range(len(players)), 2):
        one, two = (i, j) if players[i].policy is not None else (j, i)
        if players[one].policy is not None:
            tables[one, two] = play(kernel_name, players[one], players[two], games, seed)
    return _rated(players, tables, seed)


def _game_of(names: Sequence[str], trust: bool) -> str:
    """The kernel that the first run among them plays, or the run of the first member's folder."""
    for name in names:
        found = run_of(name, trust)
        if found is not None:
            kernel_name = found[0].config.env_name
            if bots(kernel_name):
                return kernel_name
            raise ConfigError(f"{name} plays `{kernel_name}`, which is no game for two.")
    raise ConfigError(
        f"None of {', '.join(names)} is the directory of a run or a folder in its `best`: bots "
        "alone have nothing to be compared with. Give the directory of at least one run."
    )


def _rated(
    players: Sequence[Player], tables: dict[tuple[int, int], Games], seed: int
) -> list[PlayerRating]:
    model = load_model()
    ratings = [model.rating(name=player.name) for player in players]
    # The same game again is no news: one from each side counts where all are alike.
    count = {pair: len(t.result[:2] if t.alike else t.result) for pair, t in tables.items()}
    order = [(pair, g) for pair, games in count.items() for g in range(games)]
    np.random.default_rng(seed).shuffle(order)
    for (one, two), g in order:
        result = int(tables[one, two].result[g])
        ratings[one], ratings[two] = rated(model, ratings[one], ratings[two], result)
    found = []
    for i, player in enumerate(players):
        results = [t.result for (one, _), t in tables.items() if one == i]
        results += [-t.result for (_, two), t in tables.items() if two == i]
        own = np.concatenate(results)
        won, lost = float((own == 1).mean()), float((own == -1).mean())
        found.append(PlayerRating(player.name, ratings[i].mu, ratings[i].sigma, won, lost))
    return sorted(found, key=lambda place: -place.rating)


def as_json(ranked: Sequence[PlayerRating], games: int, seed: int) -> str:
    """The table as a file's text."""
    values = {"games": games, "seed": seed, "table": [asdict(place) for place in ranked]}
    return json.dumps(values, indent=2) + "\n"
