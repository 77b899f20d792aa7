"""`slipstream status`, `watch` and `stop`: of a run or a study that any process works on."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy, RunOrStudyOrNone
from slipstream.core.terminal import tell, told_columns

app = typer.Typer()


@app.command()
def status(name: RunOrStudy) -> None:
    """Says where a run, a study or a deployment stands; also while another process works on it."""
    from slipstream.studies.record.status import lines

    for line in lines(name):
        tell(line)


@app.command()
def watch(
    name: RunOrStudyOrNone = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Shows where a run or a study stands, again and again, until nobody works on it.

    Without a name: the machine, and all that runs, waits or was stopped, until Ctrl-C.
    """
    if name is None:
        _watch_all(every)
        return
    from slipstream.studies.record.status import at_work, lines, lookup

    folder, before = lookup(name)[0], ""
    while True:
        working = at_work(folder)
        text = "\n".join(lines(name))
        if text != before:
            _show(text)
            before = text
        if not working:
            return
        time.sleep(every)


def _watch_all(every: float) -> None:
    """The first page of the dashboard, in a terminal; where nobody watches it, once."""
    from slipstream.core.storage.resource_monitor import Cards
    from slipstream.dashboard.overview import Places, machine_line

    cards, places = Cards(), Places()
    machine_line(cards)  # the next one tells of the time since
    shown = ("job", "name", "kind", "state", "progress", "rate", "eta", "cores", "memory", "reason")
    while True:
        time.sleep(min(every, 1.0))
        rows = [[getattr(one, name) for name in shown] for one in places.lines(ended=False)]
        table = told_columns(shown, rows) if rows else ["Nothing runs or waits."]
        _show("\n".join([machine_line(cards), "", *table]))
        if not sys.stdout.isatty():
            return
        time.sleep(max(0.0, every - 1.0))


def _show(text: str) -> None:
    typer.echo("\033[H\033[2J" if sys.stdout.isatty() else "", nl=False)
    tell(text)


@app.command()
def stop(name: RunOrStudy) -> None:
    """Ends a run, study or paper account after what is under way: it can be resumed."""
    from slipstream.cli.commands import jobs
    from slipstream.core.errors import CheckpointError
    from slipstream.core.safe_io import is_there
    from slipstream.core.storage.status_file import CURRENT, read_status, resume_command
    from slipstream.jobs.queue import own_queue
    from slipstream.jobs.supervisor import stop as stop_job
    from slipstream.studies.record.status import lookup
    from slipstream.studies.record.status import stop as ask

    try:
        folder, _ = lookup(name)
    except CheckpointError:  # a job has no folder before it begins
        with own_queue() as queue:
            if not jobs.called(queue, name):
                raise
        jobs.stop(name)
        return
    with own_queue() as queue:  # else its supervisor would go on with it
        mine = [job for job in queue.jobs(ended=False) if job.folder == str(folder.resolve())]
        asked = [stop_job(queue, job) for job in mine]  # also one that is still loading
    if ask(name) or any(asked):
        said = read_status(folder)
        under_way = "bar" if is_there(folder / CURRENT) else "iteration"
        under_way = "look" if said and said.pattern else under_way
        again = resume_command(folder, said, name)
        tell(f"It ends after the {under_way} under way; then go on with: {again}")
    else:
        tell(f"No process works on {folder}: there is nothing to stop.")
