"""`slipstream study`: what became of searches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.commands.watch import watch
from slipstream.cli.options import StudyName
from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Trust, tell
from slipstream.core.text import printable_lines

app = typer.Typer(
    name="study", help="Looks at studies, stops and exports them.", no_args_is_help=True
)
app.command()(watch)


@app.command()
def status(name: StudyName) -> None:
    """Says where a study stands; also while another process runs it."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import status_lines

    for line in status_lines(StudyFolder.open(name)):
        tell(line)


@app.command()
def best(
    name: StudyName,
    trial: Annotated[
        int | None, typer.Option(help="This trial instead of the winner or the best one.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Prints the winner's config: slipstream study best NAME > best.yaml."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import best_config

    tell(best_config(StudyFolder.open(name, trust=trust), trial), end="")


@app.command()
def export(
    name: StudyName,
    out: Annotated[
        Path | None,
        typer.Option(help="File ending in .csv or .json; standard output unless given."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="csv or json, without --out.")] = "csv",
) -> None:
    """Writes all trials: numbers, states, scores, folds and params."""
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import FORMATS, export_text

    kind = out.suffix.removeprefix(".") if out is not None else format_
    if kind not in FORMATS:
        raise ConfigError(f"Trials are exported as {' or '.join(FORMATS)}, not as {kind!r}.")
    text = export_text(StudyFolder.open(name), kind)
    if out is None:
        typer.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)
        return
    write_text(out, text)
    tell(f"Trials: {out}")


@app.command()
def stop(
    name: StudyName,
    now: Annotated[
        bool, typer.Option("--now", help="Leave at once, to be resumed; nothing is confirmed.")
    ] = False,
) -> None:
    """Ends the search after the trials in flight, and goes on to the confirmation."""
    from slipstream.studies.record.folder import StudyFolder

    folder = StudyFolder.open(name)
    if folder.result is not None and not folder.locked:
        tell(f"The study {folder.name} is complete; there is nothing to stop.")
        return
    if now and not folder.locked:
        tell(f"No process runs {folder.name}; go on with `slipstream resume {folder.handle}`.")
        return
    folder.ask_to_stop(now)
    if now:
        tell(f"Stopping; go on with `slipstream resume {folder.handle}`.")
    elif folder.locked:
        tell("The search ends after the trials in flight; then the best are confirmed.")
    else:
        tell(
            f"No process runs the study {folder.name}: its search ends once it is resumed, with "
            f"`slipstream resume {folder.handle}`."
        )


@app.command()
def report(name: StudyName, trust: Trust = False) -> None:
    """Writes study.html."""
    from slipstream import api

    tell(f"Report: {api.report_study(name, trust=trust)}")
