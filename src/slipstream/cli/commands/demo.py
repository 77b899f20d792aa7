"""`slipstream demo`: a first training run on prices that ship with slipstream."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import open_console

app = typer.Typer()
FILE_COMMANDS = ("demo",)
_PRICES = (
    "Prices: hourly EURUSD of 2017 from gym-anytrading 2.0.0 (MIT licence). That package does not "
    "name their original source."
)


@app.command(rich_help_panel="Train", epilog="Example: slipstream demo --out runs/first")
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run to this directory.", show_default="runs/forex-<date>-<time>"
        ),
    ] = None,
) -> None:
    """Train four forex agents on bundled prices and write a report.

    The prices are hourly EURUSD bars of 2017. It takes two minutes on two cores; most of the first
    time
    is compilation.
    """
    from slipstream import api
    from slipstream.core.safe_io import resolve_folder

    config = resolve_folder("package:slipstream/cli/demo/demo.yaml")
    with closing(open_console()) as progress:
        progress.say(_PRICES)
        progress.say(f"Config: {config}")
        api.train(str(config), out=out, callbacks=[progress], log=progress.say)
