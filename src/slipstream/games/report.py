"""Report page of a two-player game: run, results by opponent, and results within the pool."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from slipstream.core.storage.csv_table import Columns
from slipstream.games.self_play.opponents import SnapshotPool
from slipstream.report.history import numeric_column
from slipstream.report.inputs import RunEvaluation
from slipstream.report.number_format import format_percent
from slipstream.report.page import KeyFigure, Page, Section, Table, make_picture
from slipstream.report.plot_style import (
    BLUE,
    GREY,
    VERMILION,
    count_axis,
    legend,
    new_figure,
    percent_axis,
)
from slipstream.report.run_page import run_page
from slipstream.report.statistics import Floats
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.parts import SNAPSHOTS, Players, group_by_opponent
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.matches import (
    DETERMINISTIC_NOTE,
    Player,
    load_snapshots,
    play,
    read_match_results,
    share_interval,
)
from slipstream.training.runs.run import Run

_MAX_SNAPSHOTS = 5  # in the matrix, evenly spaced from the oldest to the newest
_GAMES = 20  # per pair
_Z = 1.96


@dataclass(frozen=True)
class League:
    """Results within a learner's pool of snapshots.

    Attributes:
        players: names of P players.
        won: [P, P], share of games that the row's player won; NaN on the diagonal.
        rating: [k, 3], timesteps of each validation, mean and deviation of the learner's rating.
    """

    players: tuple[str, ...]
    won: Floats
    rating: Floats


def league_from_run(run: Run) -> League | None:
    """Return the league of the best member; None if it was not trained against snapshots."""
    self_play = run.config.env_settings.get("self_play") or {}
    if SNAPSHOTS not in self_play.get("opponents", {}) or run.load_checkpoint() is None:
        return None
    table, member = run.evaluations(), run.best.highest
    rows = [k for k, m in enumerate(table.get("member", [])) if m == member]
    names = ("steps", "rating", "rating_deviation")
    rating = np.zeros((0, len(names)))
    if set(names) <= set(table):
        rating = np.stack([numeric_column(table, name)[rows] for name in names], axis=1)
        rating = rating[np.isfinite(rating).all(axis=1)]
    return League(*_matrix(run), rating)


def _matrix(run: Run) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the players from old to new with the best policy last, and their matrix `won`."""
    pool, member, settings = load_snapshots(run).snapshots, run.best.highest, run.config
    assert isinstance(pool, SnapshotPool)
    serial = pool.serial[0, :-1]
    slots = np.flatnonzero(serial >= 0)[np.argsort(serial[serial >= 0])]
    slots = slots[np.unique(np.linspace(0, len(slots) - 1, _MAX_SNAPSHOTS).round().astype(int))]
    players = []
    for k in slots.tolist():
        policy = run.best_policy(member)
        assert policy.scale is not None
        policy.parameters.flat[0] = pool.weights[0, k]
        policy.scale.mean[0] = pool.mean[0, k]
        policy.scale.inverse_std[0] = pool.inverse_std[0, k]
        players.append(Player(f"snapshot {serial[k]}", policy, run))
    players.append(Player("best policy", run.best_policy(member), run))
    won = np.full((len(players), len(players)), np.nan)
    seed, backend = settings.evaluation.test_seed, settings.training.resolved_backend
    for older, newer in itertools.combinations(range(len(players)), 2):
        pool.cumulative_shares[0] = np.arange(len(serial)) >= slots[older]  # select one snapshot
        opponent = Player(SNAPSHOTS, snapshots=pool)
        match = play(settings.env_name, players[newer], opponent, _GAMES, seed, backend=backend)
        won[newer, older] = (match.result > 0).mean()
        won[older, newer] = (match.result < 0).mean()
    return tuple(player.name for player in players), won


def league_sections(league: League | None) -> list[Section]:
    """Return the section of a league; none without one."""
    if league is None:
        return []
    rows = [
        [name, *("" if np.isnan(share) else f"{100 * share:.0f}" for share in shares)]
        for name, shares in zip(league.players, league.won, strict=True)
    ]
    columns = ("won by", *(name.removeprefix("snapshot ") for name in league.players))
    note = f"% of {_GAMES} games that the row won, most likely actions, from both sides; the rest "
    matrix = Table(
        "Pool at the end of training",
        columns,
        rows,
        emphasis=len(rows) - 1,
        note=f"{note}was drawn or lost. Snapshots from old to new",
    )
    pictures = []
    if len(league.rating):
        pictures.append(make_picture("rating", "Rating over training", _rating_figure(league)))
    return [Section("Self-play", (), [matrix], pictures)]


def _rating_figure(league: League) -> Figure:
    """Draw the learner's mean rating with its 95 % interval over timesteps."""
    figure, (axes,) = new_figure("Rating against its own snapshots, with 95 % interval", 3.0)
    steps, mean, deviation = league.rating.T
    axes.fill_between(
        steps, mean - _Z * deviation, mean + _Z * deviation, color=BLUE, alpha=0.2, linewidth=0.0
    )
    axes.plot(steps, mean, color=BLUE, linewidth=1.8, marker="o", markersize=4)
    axes.set_ylabel("rating (openskill)")
    axes.set_xlabel("steps per member")
    count_axis(axes)
    return figure


_COLOURS = {"won": BLUE, "drawn": GREY, "lost": VERMILION}


@dataclass(frozen=True)
class Outcomes:
    """Results of games against one opponent.

    Attributes:
        opponent: name of the opponent.
        won, drawn, lost: numbers of fresh games of the shown policy.
        steps: [k], timesteps of the validations.
        shares: [k, 3], shares won, drawn and lost by the same member in them; NaN without games.
        identical: all fresh games of a side are identical.
    """

    opponent: str
    won: int
    drawn: int
    lost: int
    steps: Floats
    shares: Floats
    identical: bool = False


def game_page(environment: Environment, evaluation: RunEvaluation) -> Page | None:
    """Build the page; None if no opponent played."""
    results = outcomes_from_evaluation(environment, evaluation)
    if not results:
        return None
    page, source = run_page(evaluation), evaluation.source
    if not isinstance(source, Run):
        return with_games(page, results)
    return with_games(page, results, read_match_results(source), league_from_run(source))


def outcomes_from_evaluation(
    environment: Environment, evaluation: RunEvaluation
) -> tuple[Outcomes, ...]:
    """Return the fresh games of the shown policy by opponent, and its validations."""
    players, source = environment.part(Players), evaluation.source
    if players is None or source is None:
        return ()
    validations = source.evaluations() if isinstance(source, Run) else {}
    tracks = evaluation.tracks[evaluation.holdout][evaluation.member]
    deterministic = source.config.evaluation.deterministic
    identical = players.deterministic_opponents if deterministic else ()
    number = evaluation.number(evaluation.member)
    return outcomes(validations, number, tracks, players.names, identical)


def with_games(
    page: Page,
    results: Sequence[Outcomes],
    matches: Sequence[Mapping[str, Any]] = (),
    league: League | None = None,
) -> Page:
    """Add games to the page of a run.

    Args:
        page: page of the run.
        results: fresh games by opponent.
        matches: rows of `games.json`, from `slipstream evaluate --games`.
        league: results within the pool of snapshots.
    """
    first, *rest = page.sections
    names = " and ".join(result.opponent for result in results)
    return replace(
        page,
        headline=_headline(results),
        figures=[*map(win_figure, results), *page.figures],
        sections=[first, *game_sections(results, matches), *league_sections(league), *rest],
        scores=dict(map(describe_games, matches)),
        limits=[f"Opponents other than {names} were not tested."],
    )


def _headline(results: Sequence[Outcomes]) -> str:
    """Return the verdict: "Wins 85 % of 100 fresh games against weak, 40 % of ..."."""
    parts = []
    for result in results:
        games = result.won + result.drawn + result.lost
        share = format_percent(result.won / games)
        parts.append(f"{share} of {games} fresh games against {result.opponent}")
    return f"Wins {', '.join(parts)}."


def outcomes(
    columns: Columns,
    member: int,
    tracks: Sequence[EpisodeResult],
    names: Mapping[int, str],
    identical: Collection[str] = (),
) -> tuple[Outcomes, ...]:
    """Return fresh games by opponent, with validations of the same member.

    Args:
        columns: columns of `Run.evaluations`; may be empty.
        member: number of the member.
        tracks: fresh games of the member.
        names: names of the numbers in the metric `opponent`.
        identical: opponents against whom all games of a side are identical.
    """
    games = group_by_opponent(tracks, names)
    # With several opponents, the column `won` is over all of them.
    several = len(games) > 1 or any(f"won_{name}" in columns for name in names.values())
    results = [_outcomes(columns, member, name, own, several) for name, own in games.items()]
    return tuple(replace(r, identical=r.opponent in identical) for r in results)


def _outcomes(
    table: Columns, member: int, name: str, tracks: Sequence[EpisodeResult], several: bool
) -> Outcomes:
    won = int(sum(track.metrics["won"] for track in tracks))
    lost = int(sum(track.metrics["lost"] for track in tracks))
    rows = [k for k, m in enumerate(table.get("member", [])) if m == member]
    columns = [f"{key}{f'_{name}' if several else ''}" for key in ("won", "lost")]

    def column(key: str) -> Floats:
        return numeric_column(table, key)[rows] if key in table else np.full(len(rows), np.nan)

    won_shares, lost_shares = (column(key) for key in columns)
    shares = np.stack([won_shares, 1.0 - won_shares - lost_shares, lost_shares], axis=1)
    return Outcomes(name, won, len(tracks) - won - lost, lost, column("steps"), shares)


def win_figure(result: Outcomes) -> KeyFigure:
    """Return the key figure of games won against one opponent."""
    games = result.won + result.drawn + result.lost
    low, high = (f"{100 * end:.0f}" for end in share_interval(result.won, games)[1:])
    note = f"{games} identical games" if result.identical else f"{low} to {high} %"
    share = format_percent(result.won / games)
    return KeyFigure(f"Won against {result.opponent}", share, note)


def describe_games(match: Mapping[str, Any]) -> tuple[str, str]:
    """Return label and results of a row of `games.json` as text."""
    shares = ", ".join(f"{key} {_format_share(*match[key])}" for key in _COLOURS)
    note = f"; {DETERMINISTIC_NOTE}" * match.get("deterministic", False)
    return f"{match['games']:,} whole games against {match['player2']}", shares + note


def game_sections(
    results: Sequence[Outcomes], matches: Sequence[Mapping[str, Any]]
) -> list[Section]:
    """Return the section of games with tables and curves; none without results."""
    if not results:
        return []
    tables = [_fresh_table(results), *([_match_table(matches)] if matches else [])]
    pictures = []
    if any(np.isfinite(result.shares).any() for result in results):
        title = "Games won, drawn and lost over training"
        pictures.append(make_picture("outcomes", title, _outcome_figure(results)))
    return [Section("Games", (), tables, pictures)]


def _fresh_table(results: Sequence[Outcomes]) -> Table:
    rows = []
    for result in results:
        counts = (result.won, result.drawn, result.lost)
        shares = [_format_share(*share_interval(n, sum(counts), result.identical)) for n in counts]
        rows.append([result.opponent, str(sum(counts)), *shares])
    return Table(
        "Fresh games by opponent",
        ("", "games", "won", "drawn", "lost"),
        rows,
        note="shares with 95 % intervals (Wilson); `slipstream evaluate RUN --games 1000` plays "
        f"more, from both sides{_identical_note(result.identical for result in results)}",
    )


def _match_table(matches: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for match in matches:
        shares = [_format_share(*match[key]) for key in _COLOURS]
        length = f"{match['mean_length']:.0f}"
        rows.append([str(match["player2"]), f"{match['games']:,}", *shares, length])
    columns = ("", "games", "won", "drawn", "lost", "mean length")
    note = _identical_note(match.get("deterministic") for match in matches).removeprefix(". ")
    return Table("Whole games from both sides (games.json)", columns, rows, note=note)


def _identical_note(flags: Iterable[bool | None]) -> str:
    return f". Without an interval: {DETERMINISTIC_NOTE}" if any(flags) else ""


def _format_share(share: float, low: float, high: float) -> str:
    if low == high:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _outcome_figure(results: Sequence[Outcomes]) -> Figure:
    """Draw shares of validation games over timesteps, one panel per opponent."""
    title = "Games won, drawn and lost"
    figure, panels = new_figure(title, 1.2 + 1.7 * len(results), [1.0] * len(results))
    for axes, result in zip(panels, results, strict=True):
        for (name, colour), values in zip(_COLOURS.items(), result.shares.T, strict=True):
            axes.plot(result.steps, values, color=colour, linewidth=1.8, label=name)
        axes.set_ylabel(f"against {result.opponent}")
        axes.set_ylim(0.0, 1.0)
        percent_axis(axes)
    legend(panels[0], 3)
    panels[-1].set_xlabel("steps per member")
    count_axis(panels[-1])
    return figure
