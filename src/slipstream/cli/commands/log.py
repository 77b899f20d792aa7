"""`slipstream log`: what a run or a study said, one event a line."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from slipstream.cli.arguments import RunOrStudy
from slipstream.cli.output import tell

app = typer.Typer()


@app.command()
def log(
    name: RunOrStudy,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until nobody works on it.")
    ] = False,
) -> None:
    """Prints the log of a run or a study; what was before its last 4 MiB is in log.txt.1."""
    from slipstream.files.files import disk_errors
    from slipstream.files.status import LOG
    from slipstream.studies.record.status import at_work, lookup

    folder, _ = lookup(name)
    path, seen, number = folder / LOG, 0, -1
    while True:
        working = follow and at_work(folder)
        with disk_errors(path), path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            if now != number:  # the first look, or the log became log.txt.1
                seen, number = 0, now
            file.seek(seen)
            text = file.read()
        whole = len(text) if not working else text.rfind(b"\n") + 1  # half a line waits
        seen += whole
        tell(text[:whole].decode(errors="replace"), end="")
        if not working:
            return
        time.sleep(0.5)
