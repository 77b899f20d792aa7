"""`slipstream study`: what became of searches, and how they go on."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.arguments import (
    ClusterAddress,
    Force,
    GpuShare,
    Hours,
    Insecure,
    MaxWorkers,
    NoStudyReport,
    Storage,
    StudyName,
    Trust,
    Workers,
    cluster_named,
    console,
)
from slipstream.cli.commands.watch import watch
from slipstream.cli.output import tell
from slipstream.core.errors import ConfigError
from slipstream.core.text import printable_lines

app = typer.Typer(
    name="study", help="Looks at studies, resumes, stops and exports them.", no_args_is_help=True
)
app.command()(watch)
WORKS = ("study resume",)


@app.command()
def resume(
    name: StudyName,
    storage: Storage = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    max_workers: MaxWorkers = None,
    gpu_share: GpuShare = None,
    insecure_cluster: Insecure = False,
    hours: Hours = None,
    force_deploy: Force = False,
    no_report: NoStudyReport = False,
    trust: Trust = False,
) -> None:
    """Goes on with a study that was stopped or killed; the same study, whatever happened."""
    from slipstream import api

    with closing(console()) as shown:
        api.resume_study(
            name,
            storage=storage,
            workers=workers,
            cluster=cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            hours=hours,
            force_deploy=force_deploy,
            trust=trust,
            report=not no_report,
            say=shown.say,
            show=shown.show,
        )


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
    from slipstream.files.files import write_text
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
        tell(
            f"No process runs the study {folder.name}; go on with `slipstream study resume {name}`."
        )
        return
    folder.ask_to_stop(now)
    if now:
        tell(f"Stopping; go on with `slipstream study resume {name}`.")
    elif folder.locked:
        tell("The search ends after the trials in flight; then the best are confirmed.")
    else:
        tell(
            f"No process runs the study {folder.name}: its search ends once it is resumed, with "
            f"`slipstream study resume {name}`."
        )


@app.command()
def report(name: StudyName, trust: Trust = False) -> None:
    """Writes study.html."""
    from slipstream import api

    tell(f"Report: {api.report_study(name, trust=trust)}")
