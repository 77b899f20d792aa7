"""`slipstream demo`: a first training, of prices that come with slipstream."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import open_console

app = typer.Typer()
FILE_COMMANDS = ("demo",)
_PRICES = (
    "Prices: hourly EURUSD of 2017, the file of gym-anytrading 2.0.0 under its MIT licence; that "
    "package does not say who recorded them."
)


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Run directory; runs/forex-<date>-<time> unless given.")
    ] = None,
) -> None:
    """Trains four agents on hourly EURUSD of 2017, which is inside, and writes an honest report.

    It takes two minutes on two cores, most of the first time compiling.
    """
    from slipstream import api
    from slipstream.core.safe_io import resolve_folder

    config = resolve_folder("package:slipstream/cli/demo/demo.yaml")
    with closing(open_console()) as progress:
        progress.say(_PRICES)
        progress.say(f"Config: {config}")
        api.train(str(config), out=out, callbacks=[progress], say=progress.say)
