"""`slipstream bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.bench.suites import SUITES


def bench(
    suite: Annotated[str, typer.Argument(help=f"One of {', '.join(SUITES)}.")],
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file too.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Longer, with more repetitions.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="study: your prices instead of a planted market.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="study --full, gym_defaults: wall time; what is cut is said."),
    ] = None,
) -> None:
    """Measures a suite of cases, peers side by side."""
    from slipstream.bench.command import bench as run

    run(suite, json_file=json, full=full, only=only or (), data_dir=data_dir, hours=hours)
