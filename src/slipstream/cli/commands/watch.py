"""`slipstream status`, `watch` and `stop`: progress of a run or study of any process."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy, RunOrStudyOrNone
from slipstream.core.terminal import print_text
from slipstream.core.text import format_columns

app = typer.Typer()


@app.command(rich_help_panel="Jobs", epilog="Example: slipstream status runs/first")
def status(name: RunOrStudy) -> None:
    """Print the progress of a run, study or deployment.

    Works from any shell, also while another process runs it.
    """
    from slipstream.studies.record.inspection import describe

    for line in describe(name):
        print_text(line)


@app.command(rich_help_panel="Jobs", epilog="Example: slipstream watch runs/first --every 5")
def watch(
    name: RunOrStudyOrNone = None,
    every: Annotated[
        float, typer.Option(min=0.1, help="Refresh the display every N seconds.")
    ] = 2.0,
) -> None:
    """Show the progress of a run or study until it ends.

    Without a name, the command shows this machine and all work that runs, waits or is stopped,
    until Ctrl-C.
    """
    if name is None:
        _watch_all(every)
        return
    from slipstream.studies.record.inspection import describe, is_running, lookup

    folder, previous = lookup(name)[0], ""
    while True:
        working = is_running(folder)
        text = "\n".join(describe(name))
        if text != previous:
            _show(text)
            previous = text
        if not working:
            return
        time.sleep(every)


def _watch_all(every: float) -> None:
    """Show the dashboard's overview in the terminal; print it once if the output is no terminal."""
    from slipstream.core.storage.resource_monitor import Gpus
    from slipstream.dashboard.overview import VisibleFolders, describe_machine

    gpus, folders = Gpus(), VisibleFolders()
    describe_machine(gpus)  # the next call reports the load since this one
    columns = (
        "job",
        "name",
        "kind",
        "state",
        "progress",
        "rate",
        "eta",
        "cores",
        "memory",
        "reason",
    )
    while True:
        time.sleep(min(every, 1.0))
        rows = [
            [getattr(row, name) for name in columns]
            for row in folders.list_rows(include_ended=False)
        ]
        table = format_columns(columns, rows) if rows else ["Nothing runs or waits."]
        _show("\n".join([describe_machine(gpus), "", *table]))
        if not sys.stdout.isatty():
            return
        time.sleep(max(0.0, every - 1.0))


def _show(text: str) -> None:
    typer.echo("\033[H\033[2J" if sys.stdout.isatty() else "", nl=False)
    print_text(text)


@app.command(rich_help_panel="Jobs", epilog="Example: slipstream stop runs/first")
def stop(name: RunOrStudy) -> None:
    """Stop a run, study or paper account.

    It stops after its current iteration or bar. `slipstream resume` continues it.
    """
    from slipstream.cli.commands import jobs
    from slipstream.core.errors import CheckpointError
    from slipstream.core.safe_io import path_exists
    from slipstream.core.storage.status_file import CURRENT, read_status, resume_command
    from slipstream.jobs.queue import user_queue
    from slipstream.jobs.supervisor import stop_job as stop_job
    from slipstream.studies.record.inspection import lookup
    from slipstream.studies.record.inspection import stop as ask

    try:
        folder, _ = lookup(name)
    except CheckpointError:  # a job has no folder before it starts
        with user_queue() as queue:
            if not jobs.find_jobs(queue, name):
                raise
        jobs.stop(name)
        return
    with user_queue() as queue:  # otherwise the supervisor would restart it
        own_jobs = [
            job for job in queue.jobs(include_ended=False) if job.folder == str(folder.resolve())
        ]
        job_stopped = [
            stop_job(queue, job) for job in own_jobs
        ]  # includes jobs that are still loading
    if ask(name) or any(job_stopped):
        reported = read_status(folder)
        unit = "bar" if path_exists(folder / CURRENT) else "iteration"
        unit = "check" if reported and reported.pattern else unit
        command = resume_command(folder, reported, name)
        print_text(f"Stopping after the current {unit}. Resume with: {command}")
    else:
        print_text(f"No process works on {folder}. There is nothing to stop.")
