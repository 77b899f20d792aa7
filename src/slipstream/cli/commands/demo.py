"""`slipstream demo`: a first training run on prices that ship with slipstream, or of hockey."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.options import open_console

if TYPE_CHECKING:
    from slipstream.training.runs.run import Run

app = typer.Typer()
FILE_COMMANDS = ("demo",)
_PRICES = (
    "Prices: hourly EURUSD of 2017 from gym-anytrading 2.0.0 (MIT licence). That package does not "
    "name their original source."
)
_FOLDER = "package:slipstream/cli/demo"
_GAMES = 5  # matches in the video


class Example(StrEnum):
    """Names of the demos."""

    TRADING = "trading"
    HOCKEY = "hockey"


@app.command(rich_help_panel="Train", epilog="Example: slipstream demo --out runs/first")
def demo(
    name: Annotated[
        Example,
        typer.Argument(help="Demo to run: EURUSD trading or two-player hockey."),
    ] = Example.TRADING,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run to this directory.", show_default="runs/<env>-<date>-<time>"
        ),
    ] = None,
) -> None:
    """Train an example agent and write its report.

    `trading` trains four forex agents on hourly EURUSD bars of 2017 in less than two minutes on two
    cores. `hockey` trains a player for about a minute and records five of its matches as an
    animated GIF. The first run of each also compiles the environment.
    """
    from slipstream import api
    from slipstream.core.safe_io import resolve_folder

    game = name == Example.HOCKEY
    config = resolve_folder(f"{_FOLDER}/{'hockey' if game else 'demo'}.yaml")
    with closing(open_console()) as progress:
        if not game:
            progress.log(_PRICES)
        progress.log(f"Config: {config}")
        run = api.train(str(config), out=out, callbacks=[progress], log=progress.log)
        steps = [("Open the report", (run.path / "report.html").as_uri())]
        if game:
            from slipstream.cli.video import record_video

            video = record_video(run, run.path / "game.gif", "strong", _GAMES)
            progress.log(f"Video: {video}")
            steps.append(("Watch the matches", video.as_uri()))
        progress.log("Next steps:")
        for title, step in [*steps, *_commands(game, run)]:
            progress.log(f"  {title:<18}  {step}")


def _commands(game: bool, run: Run) -> list[tuple[str, str]]:
    """Return titles and command lines of what a user may run next."""
    program = _program()
    train = f"{program} train my.yaml"
    if game:
        example = "hockey"
        other = f"{program} evaluate {shlex.quote(str(run.path))} --games 1000 --opponent strong"
        last = ("Play 1,000 matches", other)
    else:
        example = f"forex {_FOLDER}/prices"
        shares = run.config.env_settings["split"].items()
        split = ", ".join(f"{part}: {share:g}" for part, share in shares)
        train += f" --set {shlex.quote(f'env.split={{{split}}}')}"
        last = ("Train a game", f"{program} demo hockey")
    return [
        ("Watch runs live", f"{program} dash"),
        ("Write your config", f"{program} init {example} > my.yaml"),
        ("Train with it", train),
        last,
    ]


def _program() -> str:
    """Return the words that start slipstream again in this shell."""
    if shutil.which("slipstream") is not None:
        return "slipstream"
    if Path(sys.argv[0]).name == "slipstream":  # `make demo` does not activate .venv
        return shlex.quote(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m slipstream"
