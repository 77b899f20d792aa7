"""`slipstream init`: a commented config to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream.cli.arguments import markets
from slipstream.core.errors import ConfigError

app = typer.Typer()


@app.command()
def init(
    environment: Annotated[
        str,
        typer.Argument(
            help="forex, portfolio, another name, a .py file, or gym:ID.", autocompletion=markets
        ),
    ],
    folder: Annotated[str | None, typer.Argument(help="Folder of prices, for markets.")] = None,
) -> None:
    """Prints a commented config: slipstream init forex DIR > my.yaml."""
    from slipstream.cli.annotated import annotated
    from slipstream.core.plugins import offered
    from slipstream.training.settings.config import resolve

    started = (start(environment, folder) for start in offered("init"))
    if (own := next(filter(None, started), None)) is not None:
        values, head = own
        config = resolve(values)
    elif folder is not None:
        raise ConfigError(f"{environment} reads no prices: leave the folder {folder} away.")
    else:
        config, seat = resolve(environment).seated()
        head = [
            f"slipstream train FILE reproduces `slipstream train {environment}`; every key may go."
        ]
        head += [seat] if seat else []
    typer.echo(annotated(config, head, ["training.out"]), nl=False)
