"""CLI output and options shared by commands of the engine and of applications.

Names from outside never reach a terminal as escape sequences or markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.text import printable, printable_lines

Trust = Annotated[
    bool, typer.Option("--trust", help="Allow the folder's own code to run on this machine.")
]
Background = Annotated[
    bool,
    typer.Option("--background", help="Run in the background; return once the work has started."),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", help="Write the output of a background command to this file."),
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace", help="Stop an existing run or study of that name and move its folder aside."
    ),
]


def print_text(text: str, end: str = "\n") -> None:
    """Print a text of one or several lines."""
    typer.echo(printable_lines(text) + end, nl=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", numbers: bool = False
) -> None:
    """Print a table, wrapped to the terminal's width.

    Args:
        columns: headings.
        rows: cells of each row.
        title: printed above the table.
        numbers: right-align all columns except the first.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)) if title else None, box=box.SIMPLE, pad_edge=False)
    for index, name in enumerate(columns):
        justify = "right" if numbers and index else "left"
        table.add_column(name, justify=justify, no_wrap=index == 0, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
