"""`slipstream dash`: dashboard of running and finished work, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.terminal import print_text

app = typer.Typer()


@app.command(rich_help_panel="Jobs", epilog="Example: slipstream dash --port 9000")
def dash(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Further run or study directories, or folders that contain some."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Serve on this port.",
            show_default="8770 or the next free port",
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            help="Listen on this address, to be reachable from other machines.",
            show_default="this machine only",
        ),
    ] = "",
) -> None:
    """Serve a dashboard of runs, studies and jobs to a browser."""
    from slipstream.dashboard.server import serve

    serve(folders or [], port, listen, print_text)
