"""`slipstream evaluate RUN --games N --opponent X` and `slipstream rank`: tables of whole games."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.arguments import Trust
from slipstream.cli.output import show_table

if TYPE_CHECKING:
    from slipstream.runs.games import Games
    from slipstream.runs.run import Run

_GAMES = 1_000


def show_games(
    run: Run, games: int | None, opponents: list[str] | None, seed: int | None, trust: bool
) -> None:
    """Plays, prints a table and writes `games.json` into the run's directory."""
    from slipstream import api

    played = api.evaluate_games(
        run, opponents or None, games=_GAMES if games is None else games, seed=seed, trust=trust
    )
    print_table(played)


def print_table(played: list[Games]) -> None:
    """A row for each opponent."""
    rows = []
    for games in played:
        facts = games.as_dict()
        shares = [
            f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
            for share, low, high in games.shares().values()
        ]
        sides = [facts.get(name) for name in ("won_left", "won_right")]
        both = " | ".join("-" if side is None else f"{100 * side:.1f}" for side in sides)
        rows.append((games.two, *shares, both, f"{facts['mean_length']:.0f}"))
    columns = ("opponent", "won %", "drawn %", "lost %", "won left | right %", "mean length")
    title = f"{played[0].one}, {len(played[0].result):,} games each, from both sides"
    show_table(columns, rows, title, numbers=True)


def rank(
    runs: Annotated[
        list[str], typer.Argument(help="Run directories and names of bots, two or more.")
    ],
    games: Annotated[int, typer.Option(help="Of every pair.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the games.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A .json file for the table.")] = None,
    trust: Trust = False,
) -> None:
    """Plays everybody against everybody and rates them (TrueSkill-like, by openskill)."""
    from slipstream.files.files import write_text
    from slipstream.runs.games import as_json, round_robin

    ranked = round_robin(runs, games, seed, trust)
    rows = []
    for place in ranked:
        numbers = (place.rating, place.uncertainty, place.rating - 3 * place.uncertainty)
        shares = (100 * place.won, 100 * place.lost)
        rows.append((place.name, *(f"{n:.2f}" for n in numbers), *(f"{n:.1f}" for n in shares)))
    columns = ("player", "rating", "uncertainty", "rating - 3 uncertainties", "won %", "lost %")
    show_table(columns, rows, f"Round robin, {games:,} games a pair", numbers=True)
    if out is not None:
        write_text(out, as_json(ranked, games, seed))
