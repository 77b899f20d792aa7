"""`slipstream rank`: round-robin tournament and ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.terminal import Trust, print_table

app = typer.Typer()


@app.command(
    rich_help_panel="Games", epilog="Example: slipstream rank runs/first runs/second strong"
)
def rank(
    runs: Annotated[
        list[str],
        typer.Argument(help="Name two or more players: runs, policy folders and bots."),
    ],
    games: Annotated[int, typer.Option(help="Play this many matches per pair.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed the matches.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the table to this .json file.")] = None,
    trust: Trust = False,
) -> None:
    """Rate players by a round-robin tournament.

    Every player meets every other one from both sides. Ratings are TrueSkill-like, by openskill.
    """
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.games.ratings import round_robin, to_json

    ranked = round_robin(runs, games, seed, trust)
    rows = []
    for player in ranked:
        numbers = (player.rating, player.uncertainty, player.rating - 3 * player.uncertainty)
        shares = (100 * player.won, 100 * player.lost)
        rows.append((player.name, *(f"{n:.2f}" for n in numbers), *(f"{n:.1f}" for n in shares)))
    columns = ("player", "rating", "uncertainty", "rating - 3 uncertainties", "won %", "lost %")
    print_table(columns, rows, f"Round robin, {games:,} matches per pair", numbers=True)
    if out is not None:
        write_text(out, to_json(ranked, games, seed))
