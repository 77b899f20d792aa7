"""The page of a game of two: the page of its run, and whom its policy beats how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.environments.environment import Environment
from slipstream.environments.players import Players
from slipstream.report.game import league, outcomes
from slipstream.report.game.league import League
from slipstream.report.game.outcomes import Outcomes
from slipstream.report.inputs import RunEvaluation
from slipstream.report.numbers import share
from slipstream.report.page import Page
from slipstream.report.run.page import run_page
from slipstream.runs.games import read_games
from slipstream.runs.run import Run


def game_page(environment: Environment, found: RunEvaluation) -> Page | None:
    """Build the page; None if nobody was met in a second seat."""
    met = outcomes_of(environment, found)
    if not met:
        return None
    if not isinstance(found.source, Run):
        return with_games(run_page(found), met)
    return with_games(
        run_page(found), met, read_games(found.source), league.league_of(found.source)
    )


def outcomes_of(environment: Environment, found: RunEvaluation) -> tuple[Outcomes, ...]:
    """Return the fresh games of the shown policy by opponent, and its validations."""
    players, source = environment.part(Players), found.source
    if players is None or source is None:
        return ()
    validated = source.evaluations() if isinstance(source, Run) else {}
    tracks, repeated = found.tracks[found.holdout][found.member], players.repeated
    alike = () if source.config.evaluation.drawn else repeated
    return outcomes.outcomes(validated, found.number(found.member), tracks, players.names, alike)


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
        figures=[*map(outcomes.won, met), *page.figures],
        sections=[result, *outcomes.sections(met, played), *league.sections(pool), *rest],
        scores=dict(map(outcomes.whole_games, played)),
        limits=[f"How it does against anybody but {names}."],
    )


def _headline(met: Sequence[Outcomes]) -> str:
    """Return the verdict: "Wins 85 % of 100 fresh games against weak, 40 % of ..."."""
    parts = []
    for one in met:
        games = one.won + one.drawn + one.lost
        parts.append(f"{share(one.won / games)} of {games} fresh games against {one.opponent}")
    return f"Wins {', '.join(parts)}."
