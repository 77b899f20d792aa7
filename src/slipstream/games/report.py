"""The page of a game of two: its run, whom the policy beats, and who of its pool beats whom."""

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


def league_from_run(run: Run) -> League | None:
    """What the page shows of the best member's pool; None where it was not trained against one."""
    seats = run.config.env_settings.get("self_play") or {}
    if SNAPSHOTS not in seats.get("opponents", {}) or run.load_checkpoint() is None:
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
    """Names of players, old to new and the chosen policy last; shares [P, P] that rows won."""
    pool, member, settings = load_snapshots(run).snapshots, run.best.highest, run.config
    assert isinstance(pool, SnapshotPool)
    serial = pool.serial[0, :-1]
    slots = np.flatnonzero(serial >= 0)[np.argsort(serial[serial >= 0])]
    slots = slots[np.unique(np.linspace(0, len(slots) - 1, _MOST).round().astype(int))]
    players = []
    for k in slots.tolist():
        policy = run.best_policy(member)
        assert policy.scale is not None
        policy.parameters.flat[0] = pool.weights[0, k]
        policy.scale.mean[0] = pool.mean[0, k]
        policy.scale.inverse_std[0] = pool.inverse_std[0, k]
        players.append(Player(f"snapshot {serial[k]}", policy, run))
    players.append(Player("chosen policy", run.best_policy(member), run))
    won = np.full((len(players), len(players)), np.nan)
    seed, backend = settings.evaluation.test_seed, settings.training.resolved_backend
    for two, one in itertools.combinations(range(len(players)), 2):
        pool.shares[0] = np.arange(len(serial)) >= slots[two]  # this one alone is met
        met = Player(SNAPSHOTS, snapshots=pool)
        result = play(settings.env_name, players[one], met, _GAMES, seed, backend=backend).result
        won[one, two], won[two, one] = (result > 0).mean(), (result < 0).mean()
    return tuple(player.name for player in players), won


def league_sections(found: League | None) -> list[Section]:
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
    drawn = (
        [make_picture("rating", "Rating over training", _rating(found))]
        if len(found.rating)
        else []
    )
    return [Section("Self-play", (), [matrix], drawn)]


def _rating(found: League) -> Figure:
    """The learner's mean with its 95 % interval over steps."""
    figure, (axes,) = new_figure("Rating against its own snapshots, with 95 % interval", 3.0)
    steps, mean, deviation = found.rating.T
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
    """How games of two ended against one opponent.

    Attributes:
        opponent: by name.
        won, drawn, lost: fresh games of the policy that is shown.
        steps: [k], of the validations; shares: [k, 3], won, drawn and lost of the same member in
            them, NaN where it was not met.
        alike: all fresh games of a side are the same one.
    """

    opponent: str
    won: int
    drawn: int
    lost: int
    steps: Floats
    shares: Floats
    identical: bool = False


def game_page(environment: Environment, found: RunEvaluation) -> Page | None:
    """Build the page; None if nobody was met in a second seat."""
    met = outcomes_from_evaluation(environment, found)
    if not met:
        return None
    if not isinstance(found.source, Run):
        return with_games(run_page(found), met)
    return with_games(
        run_page(found), met, read_match_results(found.source), league_from_run(found.source)
    )


def outcomes_from_evaluation(
    environment: Environment, found: RunEvaluation
) -> tuple[Outcomes, ...]:
    """Return the fresh games of the shown policy by opponent, and its validations."""
    players, source = environment.part(Players), found.source
    if players is None or source is None:
        return ()
    validated = source.evaluations() if isinstance(source, Run) else {}
    tracks, repeated = found.tracks[found.holdout][found.member], players.deterministic_opponents
    alike = repeated if source.config.evaluation.deterministic else ()
    return outcomes(validated, found.number(found.member), tracks, players.names, alike)


def with_games(
    page: Page,
    met: Sequence[Outcomes],
    played: Sequence[Mapping[str, Any]] = (),
    pool: League | None = None,
) -> Page:
    """Add games to the page of a run.

    Args:
        page: of the run.
        met: fresh games by opponent.
        played: rows of `games.json`, from `slipstream evaluate --games`.
        pool: of a training against snapshots.
    """
    result, *rest = page.sections
    names = " and ".join(one.opponent for one in met)
    return replace(
        page,
        headline=_headline(met),
        figures=[*map(win_figure, met), *page.figures],
        sections=[result, *game_sections(met, played), *league_sections(pool), *rest],
        scores=dict(map(describe_games, played)),
        limits=[f"How it does against anybody but {names}."],
    )


def _headline(met: Sequence[Outcomes]) -> str:
    """Return the verdict: "Wins 85 % of 100 fresh games against weak, 40 % of ..."."""
    parts = []
    for one in met:
        games = one.won + one.drawn + one.lost
        parts.append(
            f"{format_percent(one.won / games)} of {games} fresh games against {one.opponent}"
        )
    return f"Wins {', '.join(parts)}."


def outcomes(
    columns: Columns,
    member: int,
    tracks: Sequence[EpisodeResult],
    names: Mapping[int, str],
    repeated: Collection[str] = (),
) -> tuple[Outcomes, ...]:
    """Fresh games by opponent, and validations of the same member.

    Args:
        columns: `Run.evaluations`, or none.
        member: by its number.
        tracks: its fresh games.
        names: of the numbers in their metric `opponent`.
        repeated: those among them against whom all games of a side were the same one.
    """
    met = group_by_opponent(tracks, names)
    # Validations met several, whomever fresh games meet: `won` is over all of them.
    several = len(met) > 1 or any(f"won_{name}" in columns for name in names.values())
    found = [_outcomes(columns, member, name, own, several) for name, own in met.items()]
    return tuple(replace(one, identical=one.opponent in repeated) for one in found)


def _outcomes(
    table: Columns, member: int, name: str, tracks: Sequence[EpisodeResult], several: bool
) -> Outcomes:
    won = int(sum(track.metrics["won"] for track in tracks))
    lost = int(sum(track.metrics["lost"] for track in tracks))
    rows = [k for k, m in enumerate(table.get("member", [])) if m == member]
    columns = [f"{what}{f'_{name}' if several else ''}" for what in ("won", "lost")]

    def column(key: str) -> Floats:
        return numeric_column(table, key)[rows] if key in table else np.full(len(rows), np.nan)

    first, last = (column(key) for key in columns)
    shares = np.stack([first, 1.0 - first - last, last], axis=1)
    return Outcomes(name, won, len(tracks) - won - lost, lost, column("steps"), shares)


def win_figure(met: Outcomes) -> KeyFigure:
    """The key figure that says how often one opponent was beaten."""
    games = met.won + met.drawn + met.lost
    low, high = (f"{100 * end:.0f}" for end in share_interval(met.won, games)[1:])
    note = f"{games} games, all alike" if met.identical else f"{low} to {high} %"
    return KeyFigure(f"Won against {met.opponent}", format_percent(met.won / games), note)


def describe_games(played: Mapping[str, Any]) -> tuple[str, str]:
    """A row of `games.json` in words: who was met, and what came of it."""
    shares = ", ".join(f"{what} {_share(*played[what])}" for what in ("won", "drawn", "lost"))
    alike = f"; {DETERMINISTIC_NOTE}" * played.get("deterministic", False)
    return f"{played['games']:,} whole games against {played['player2']}", shares + alike


def game_sections(found: Sequence[Outcomes], played: Sequence[Mapping[str, Any]]) -> list[Section]:
    """One section of tables and curves, or none where nobody was met."""
    if not found:
        return []
    tables = [_fresh(found), *([_played(played)] if played else [])]
    pictures = []
    if any(np.isfinite(one.shares).any() for one in found):
        drawn = make_picture("outcomes", "Games won, drawn and lost over training", _figure(found))
        pictures.append(drawn)
    return [Section("Games", (), tables, pictures)]


def _fresh(found: Sequence[Outcomes]) -> Table:
    rows = []
    for one in found:
        counts = (one.won, one.drawn, one.lost)
        shares = [_share(*share_interval(n, sum(counts), one.identical)) for n in counts]
        rows.append([one.opponent, str(sum(counts)), *shares])
    return Table(
        "Fresh games by opponent",
        ("", "games", "won", "drawn", "lost"),
        rows,
        note="shares with 95 % intervals (Wilson); `slipstream evaluate RUN --games 1000` plays "
        f"more, from both sides{_alike(one.identical for one in found)}",
    )


def _played(played: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for one in played:
        shares = [_share(*one[what]) for what in ("won", "drawn", "lost")]
        length = f"{one['mean_length']:.0f}"
        rows.append([str(one["player2"]), f"{one['games']:,}", *shares, length])
    columns = ("", "games", "won", "drawn", "lost", "mean length")
    note = _alike(one.get("deterministic") for one in played).removeprefix(". ")
    return Table("Whole games from both sides (games.json)", columns, rows, note=note)


def _alike(flags: Iterable[bool | None]) -> str:
    return f". Without an interval: {DETERMINISTIC_NOTE}" if any(flags) else ""


def _share(share: float, low: float, high: float) -> str:
    if low == high:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _figure(found: Sequence[Outcomes]) -> Figure:
    """A panel for each opponent: shares of the validation's games over steps."""
    title = "Games won, drawn and lost"
    figure, panels = new_figure(title, 1.2 + 1.7 * len(found), [1.0] * len(found))
    for axes, one in zip(panels, found, strict=True):
        for (name, colour), values in zip(_COLOURS.items(), one.shares.T, strict=True):
            axes.plot(one.steps, values, color=colour, linewidth=1.8, label=name)
        axes.set_ylabel(f"against {one.opponent}")
        axes.set_ylim(0.0, 1.0)
        percent_axis(axes)
    legend(panels[0], 3)
    panels[-1].set_xlabel("steps per member")
    count_axis(panels[-1])
    return figure
