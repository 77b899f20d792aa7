"""`slipstream study`: inspect, stop and export hyperparameter studies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.commands.watch import watch
from slipstream.cli.options import StudyName
from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Trust, print_text
from slipstream.core.text import printable_lines

app = typer.Typer(
    name="study",
    no_args_is_help=True,
    epilog="Example: slipstream study status night",
)


@app.callback(rich_help_panel="Studies")
def study() -> None:
    """Inspect, stop and export studies."""


app.command(epilog="Example: slipstream study watch night")(watch)


@app.command(epilog="Example: slipstream study status night")
def status(name: StudyName) -> None:
    """Print the progress of a study, also while another process runs it."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.inspection import status_lines

    for line in status_lines(StudyFolder.open(name)):
        print_text(line)


@app.command(epilog="Example: slipstream study best night > best.yaml")
def best(
    name: StudyName,
    trial: Annotated[
        int | None,
        typer.Option(help="Print the config of this trial.", show_default="the winner or best"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Print the config of a study's winner."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.inspection import best_config

    print_text(best_config(StudyFolder.open(name, trust=trust), trial), end="")


@app.command(epilog="Example: slipstream study export night --out trials.csv")
def export(
    name: StudyName,
    out: Annotated[
        Path | None,
        typer.Option(help="Write this .csv or .json file.", show_default="standard output"),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="Print this format if --out is not given: csv or json.")
    ] = "csv",
) -> None:
    """Export all trials: number, state, score, folds and parameters."""
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.inspection import FORMATS, export_text

    kind = out.suffix.removeprefix(".") if out is not None else format_
    if kind not in FORMATS:
        raise ConfigError(f"The format must be {' or '.join(FORMATS)}, got {kind!r}.")
    text = export_text(StudyFolder.open(name), kind)
    if out is None:
        typer.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)
        return
    write_text(out, text)
    print_text(f"Trials: {out}")


@app.command(epilog="Example: slipstream study stop night --now")
def stop(
    name: StudyName,
    now: Annotated[
        bool, typer.Option("--now", help="Stop immediately and skip the confirmation.")
    ] = False,
) -> None:
    """End a search after its running trials, and confirm the best.

    A stopped study can be resumed.
    """
    from slipstream.studies.record.folder import StudyFolder

    folder = StudyFolder.open(name)
    if folder.result is not None and not folder.is_locked:
        print_text(f"The study {folder.name} is complete; there is nothing to stop.")
        return
    if now and not folder.is_locked:
        print_text(
            f"No process runs {folder.name}. Resume it with `slipstream resume {folder.handle}`."
        )
        return
    folder.request_stop(now)
    if now:
        print_text(f"Stopping. Resume it with `slipstream resume {folder.handle}`.")
    elif folder.is_locked:
        print_text("The search ends after the running trials; then the best are confirmed.")
    else:
        print_text(
            f"No process runs the study {folder.name}. Its search ends when it is resumed with "
            f"`slipstream resume {folder.handle}`."
        )


@app.command(epilog="Example: slipstream study report night")
def report(name: StudyName, trust: Trust = False) -> None:
    """Write the study's report, study.html."""
    from slipstream import api

    print_text(f"Report: {api.report_study(name, trust=trust)}")
