"""Command line: run a suite, print its rows and write its results file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from benchmarks.ours.device import no_card
from benchmarks.row import HEADINGS, cells
from benchmarks.suite import run_suite
from benchmarks.suites import SUITES
from slipstream.core.errors import SlipstreamError

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)


@app.command()
def measure(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.")],
    json: Annotated[
        Path | None, typer.Option(help="A results file, where each case replaces its own.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Longer, with more repetitions.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="study: folder of prices instead of a synthetic market.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="study --full, gym_defaults: wall time in hours; skipped parts are listed."
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another checkout whose package is the peer.")
    ] = None,
) -> None:
    """Measure a suite of cases beside other libraries. Exit with status 0 if the suite ran."""
    console = Console()
    missing = no_card() if suite == "gpu" else None
    if missing is not None:
        console.print(f"Nothing was measured. {missing}", soft_wrap=True)
        return
    with console.status("") as status:
        rows = run_suite(
            suite,
            path=json,
            full=full,
            only=only or (),
            data_dir=data_dir,
            hours=hours,
            against=None if against is None else against.absolute(),
            say=lambda name: status.update(f"measuring {name}"),
        )
    columns = [Column(heading, overflow="fold") for heading in HEADINGS]
    table = Table(*columns, title=f"python -m benchmarks {suite}")
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    if json is not None:
        console.print(f"Written to {json}", soft_wrap=True)


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks")
    except SlipstreamError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
