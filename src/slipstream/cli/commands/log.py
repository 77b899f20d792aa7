"""`slipstream log`: what a run or a study said, one event a line."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy
from slipstream.core.terminal import tell

app = typer.Typer()
_MOST_BYTES = 1 << 23  # of a look: slipstream's own logs are half as long


@app.command()
def log(
    name: RunOrStudy,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until nobody works on it.")
    ] = False,
) -> None:
    """Prints the log of a run or a study; what was before its last 4 MiB is in log.txt.1."""
    from slipstream.core.errors import CheckpointError
    from slipstream.core.safe_io import UnreadableError, open_regular
    from slipstream.core.storage.atomic_io import disk_errors
    from slipstream.core.storage.status_file import LOG
    from slipstream.studies.record.status import at_work, lookup

    folder, _ = lookup(name)
    path, seen, number = folder / LOG, 0, -1
    while True:
        working = follow and at_work(folder)
        try:
            with disk_errors(path), open_regular(path) as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != number:  # the first look, or the log became log.txt.1
                    seen, number = 0, facts.st_ino
                seen = max(seen, facts.st_size - _MOST_BYTES)
                file.seek(seen)
                text = file.read(_MOST_BYTES)
        except UnreadableError as error:
            raise CheckpointError(
                f"The log {path} cannot be read: {error}. Move it away; a new one begins."
            ) from error
        whole = len(text) if not working else text.rfind(b"\n") + 1  # half a line waits
        seen += whole
        tell(text[:whole].replace(b"\0", b"").decode(errors="replace"), end="")
        if not working:
            return
        time.sleep(0.5)
