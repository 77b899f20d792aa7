"""`slipstream rank`: whole games of everybody against everybody, and ratings from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.terminal import Trust, show_table

app = typer.Typer()


@app.command()
def rank(
    runs: Annotated[
        list[str], typer.Argument(help="Runs, policies' folders and names of bots, two or more.")
    ],
    games: Annotated[int, typer.Option(help="Of every pair.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the games.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A .json file for the table.")] = None,
    trust: Trust = False,
) -> None:
    """Plays everybody against everybody and rates them (TrueSkill-like, by openskill)."""
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.games.ratings import as_json, round_robin

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
