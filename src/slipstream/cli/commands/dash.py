"""`slipstream dash`: pages of what runs and ran, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.terminal import tell

app = typer.Typer()


@app.command()
def dash(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs, studies, or folders of them, besides those that your commands made."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="8770, or the next free one, unless given."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address beyond this machine; this machine alone unless given.")
    ] = "",
) -> None:
    """Serves pages of runs, studies and jobs to a browser; prints their address."""
    from slipstream.dashboard.server import serve

    serve(folders or [], port, listen, tell)
