"""What commands of the engine and of applications share: options, and how they print.

No name from outside reaches a terminal as an escape, or as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.text import printable, printable_lines

Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the folder names, whoever made it.")
]
Background = Annotated[
    bool,
    typer.Option(
        "--background", help="Outlive this terminal; returns once training or search has begun."
    ),
]
LogFile = Annotated[
    Path | None, typer.Option("--log", help="Where it prints in the background, too.")
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace", help="Stop what has that name, and move its folder to NAME.replaced-N."
    ),
]


def tell(text: str, end: str = "\n") -> None:
    """Prints a text of one line or of several."""
    typer.echo(printable_lines(text) + end, nl=False)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", numbers: bool = False
) -> None:
    """Prints a table, folded to the terminal's width.

    Args:
        columns: their headings.
        rows: cells of each.
        title: above it.
        numbers: all columns but the first are set to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, box=box.SIMPLE, pad_edge=False)
    for place, name in enumerate(columns):
        right = "right" if numbers and place else "left"
        table.add_column(name, justify=right, no_wrap=place == 0, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def told_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table without a frame; columns in which nothing stands are left out."""
    shown = [tuple(names), *(tuple(map(printable, row)) for row in rows)]
    used = [k for k in range(len(names)) if any(row[k] for row in shown[1:])]
    widths = {k: max(len(row[k]) for row in shown) for k in used}
    return ["  ".join(row[k].ljust(widths[k]) for k in used).rstrip() for row in shown]
