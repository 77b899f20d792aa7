"""What `slipstream bench` does: run a suite, show its rows, write its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slipstream.bench.row import Row
from slipstream.bench.suite import run_suite
from slipstream.bench.table import HEADINGS, cells


def bench(
    suite: str,
    *,
    json_file: str | Path | None = None,
    full: bool = False,
    only: Sequence[str] = (),
    data_dir: str | Path | None = None,
    hours: float | None = None,
    console: Console | None = None,
) -> None:
    """Measures a suite and prints it as a table; the exit code says that it ran, not what held."""
    console = console or Console()
    rows: list[Row] = []
    with console.status("") as status:
        run_suite(
            suite,
            json_file=json_file,
            full=full,
            only=only,
            data_dir=None if data_dir is None else str(data_dir),
            hours=hours,
            show=rows.append,
            say=lambda name: status.update(f"measuring {name}"),
        )
    table = Table(title=f"slipstream bench {suite}")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*cells(row.as_json()))
    console.print(table)
    if json_file is not None:
        console.print(f"Written to {json_file}", soft_wrap=True)
