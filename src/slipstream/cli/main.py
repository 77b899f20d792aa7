"""Assembles the commands and turns errors into one paragraph and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from slipstream.cli import data, inspect, measure, start, study, tune_machine, work
from slipstream.core.errors import SlipstreamError
from slipstream.core.printable import printable

USER_ERROR, INTERRUPTED = 2, 130

_PIP_LINES = {
    "gym_anytrading": "pip install --no-deps gym-anytrading==2.0.0",
    "stable_baselines3": "make bench, which installs the peers of requirements-peers.lock",
    "envpool": "make bench, which installs the peers of requirements-peers.lock",
    "numba_cuda": "pip install 'slipstream[cuda-check]'",
}

app = typer.Typer(
    name="slipstream",
    help="Trains reinforcement-learning agents on thousands of environments at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(work.train)
app.command("resume")(work.resume)
app.command("evaluate")(work.evaluate)
app.command("tune")(study.tune)
app.add_typer(study.app, name="study")
app.command("init")(start.init)
app.command("bench")(measure.bench)
app.add_typer(data.app, name="data")
app.command("list")(inspect.list_)
app.command("check")(inspect.check)
app.command("doctor")(inspect.doctor)
app.command("tune-machine")(tune_machine.tune_machine)


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    """Trains reinforcement-learning agents on thousands of environments at once."""
    if version:
        from slipstream import __version__

        typer.echo(f"slipstream {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> Any:
    """Runs a command; the entry point of `slipstream`.

    Exit codes: 0 done, 2 the user must change something, 130 interrupted with a checkpoint written.
    """
    try:
        app(arguments)
    except SlipstreamError as error:
        _complain(str(error))
        sys.exit(USER_ERROR)
    except ModuleNotFoundError as error:
        _complain(_missing_module(error))
        sys.exit(USER_ERROR)
    except BrokenPipeError:  # the reader of a pipe went away, as in `slipstream list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # Looked up by name: its module is only imported by the commands that train.
        if type(error).__name__ != "Interrupted":
            raise
        _complain(f"Stopped after a checkpoint. Go on with: {error.command}")  # type: ignore[attr-defined]
        sys.exit(INTERRUPTED)


def _complain(text: str) -> None:
    print(printable(" ".join(text.split())), file=sys.stderr)


def _missing_module(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package == "slipstream":
        raise error
    line = _PIP_LINES.get(package, f"pip install {package}")
    return f"This needs the package {package}, which is not installed. Install it with: {line}"
