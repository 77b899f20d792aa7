"""Options that commands of the engine and of applications share."""

from pathlib import Path
from typing import Annotated

import typer

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that the folder names, whoever made it."),
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
