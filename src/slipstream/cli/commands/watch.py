"""`slipstream status`, `watch` and `stop`: of a run or a study that any process works on."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from slipstream.cli.arguments import RunOrStudy
from slipstream.cli.output import tell

app = typer.Typer()


@app.command()
def status(name: RunOrStudy) -> None:
    """Says where a run or a study stands; also while another process works on it."""
    from slipstream.studies.record.status import lines

    for line in lines(name):
        tell(line)


@app.command()
def watch(
    name: RunOrStudy,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Shows where a run or a study stands, again and again, until nobody works on it."""
    from slipstream.studies.record.status import at_work, lines, lookup

    folder, before = lookup(name)[0], ""
    while True:
        working = at_work(folder)
        text = "\n".join(lines(name))
        if text != before:
            clear = "\033[H\033[2J" if sys.stdout.isatty() else ""
            typer.echo(clear, nl=False)
            tell(text)
            before = text
        if not working:
            return
        time.sleep(every)


@app.command()
def stop(name: RunOrStudy) -> None:
    """Ends a run or a study after the iteration under way, as Ctrl-C does: it can be resumed."""
    from slipstream.jobs.queue import STOPPED, own_queue
    from slipstream.studies.record.status import lookup
    from slipstream.studies.record.status import stop as ask

    folder, _ = lookup(name)
    with own_queue() as queue:  # else its supervisor would go on with it
        for job in queue.jobs(ended=False):
            if job.folder == str(folder):
                queue.want(job, STOPPED)
    if ask(name):
        tell(f"It ends after the iteration under way; then go on with: slipstream resume {name}")
    else:
        tell(f"No process works on {folder}: there is nothing to stop.")
