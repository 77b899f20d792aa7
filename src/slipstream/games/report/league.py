"""A training against snapshots: the learner's rating over it, and who of the pool beats whom."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from slipstream.games.self_play.opponents import SnapshotPool
from slipstream.report.canvas import BLUE, canvas, count_axis
from slipstream.report.learning import numbers_of
from slipstream.report.page import Section, Table, picture
from slipstream.report.statistics import Floats
from slipstream.training.environments.parts import SNAPSHOTS
from slipstream.training.runs.games import Player, play, snapshots_of
from slipstream.training.runs.policies import best_policy
from slipstream.training.runs.run import Run

_MOST = 5  # snapshots in the matrix: the oldest, the newest, and some between
_GAMES = 20  # of each pair
_Z = 1.96


@dataclass(frozen=True)
class League:
    """A training against snapshots of the learner's own.

    Attributes:
        players: P names; won: [P, P], shares of games that the row won, NaN where none were played.
        rating: [k, 3], steps of a validation, mean and deviation of the learner's rating in it.
    """

    players: tuple[str, ...]
    won: Floats
    rating: Floats


def league_of(run: Run) -> League | None:
    """What the page shows of the best member's pool; None where it was not trained against one."""
    seats = run.config.env_settings.get("self_play") or {}
    if SNAPSHOTS not in seats.get("opponents", {}) or run.load_checkpoint() is None:
        return None
    table, member = run.evaluations(), run.best.highest
    rows = [k for k, m in enumerate(table.get("member", [])) if m == member]
    names = ("steps", "rating", "rating_deviation")
    rating = np.zeros((0, len(names)))
    if set(names) <= set(table):
        rating = np.stack([numbers_of(table, name)[rows] for name in names], axis=1)
        rating = rating[np.isfinite(rating).all(axis=1)]
    return League(*_matrix(run), rating)


def _matrix(run: Run) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of players, old to new and the chosen policy last; shares [P, P] that rows won."""
    pool, member, settings = snapshots_of(run).past, run.best.highest, run.config
    assert isinstance(pool, SnapshotPool)
    serial = pool.serial[0, :-1]
    slots = np.flatnonzero(serial >= 0)[np.argsort(serial[serial >= 0])]
    slots = slots[np.unique(np.linspace(0, len(slots) - 1, _MOST).round().astype(int))]
    players = []
    for k in slots.tolist():
        policy = best_policy(run, member)
        assert policy.scale is not None
        policy.parameters.flat[0] = pool.weights[0, k]
        policy.scale.mean[0] = pool.mean[0, k]
        policy.scale.inverse_std[0] = pool.inverse_std[0, k]
        players.append(Player(f"snapshot {serial[k]}", policy, run))
    players.append(Player("chosen policy", best_policy(run, member), run))
    won = np.full((len(players), len(players)), np.nan)
    seed, backend = settings.evaluation.test_seed, settings.training.chosen_backend
    for two, one in itertools.combinations(range(len(players)), 2):
        pool.shares[0] = np.arange(len(serial)) >= slots[two]  # this one alone is met
        met = Player(SNAPSHOTS, past=pool)
        result = play(settings.env_name, players[one], met, _GAMES, seed, backend=backend).result
        won[one, two], won[two, one] = (result > 0).mean(), (result < 0).mean()
    return tuple(player.name for player in players), won


def sections(found: League | None) -> list[Section]:
    """The section, or none without a pool."""
    if found is None:
        return []
    rows = [
        [name, *("" if np.isnan(share) else f"{100 * share:.0f}" for share in shares)]
        for name, shares in zip(found.players, found.won, strict=True)
    ]
    columns = ("won by", *(name.removeprefix("snapshot ") for name in found.players))
    note = f"% of {_GAMES} games that the row won, most likely actions, from both sides; the rest "
    matrix = Table(
        "The pool at the end of training",
        columns,
        rows,
        emphasis=len(rows) - 1,
        note=f"{note}was drawn or lost. Snapshots in the order in which they were taken",
    )
    drawn = [picture("rating", "Rating over training", _rating(found))] if len(found.rating) else []
    return [Section("Self-play", (), [matrix], drawn)]


def _rating(found: League) -> Figure:
    """The learner's mean with its 95 % interval over steps."""
    figure, (axes,) = canvas("Rating against its own snapshots, with 95 % interval", 3.0)
    steps, mean, deviation = found.rating.T
    axes.fill_between(
        steps, mean - _Z * deviation, mean + _Z * deviation, color=BLUE, alpha=0.2, linewidth=0.0
    )
    axes.plot(steps, mean, color=BLUE, linewidth=1.8, marker="o", markersize=4)
    axes.set_ylabel("rating (openskill)")
    axes.set_xlabel("steps per member")
    count_axis(axes)
    return figure
