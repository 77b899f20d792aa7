"""Options that commands of the engine and of applications share."""

from typing import Annotated

import typer

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that the folder names, whoever made it."),
]
