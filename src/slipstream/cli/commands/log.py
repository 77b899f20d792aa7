"""`slipstream log`: event log of a run or a study."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from slipstream.cli.options import RunOrStudy
from slipstream.core.terminal import print_text

app = typer.Typer()
_MAX_BYTES = 1 << 23  # per read; slipstream rotates its logs at half that size


@app.command(rich_help_panel="Jobs", epilog="Example: slipstream log runs/first --follow")
def log(
    name: RunOrStudy,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the work ends.")
    ] = False,
) -> None:
    """Print the log of a run or a study.

    The log is limited to 4 MiB; older lines are in log.txt.1.
    """
    from slipstream.core.errors import CheckpointError
    from slipstream.core.safe_io import UnreadableError, open_regular
    from slipstream.core.storage.atomic_io import disk_errors
    from slipstream.core.storage.status_file import LOG
    from slipstream.studies.record.inspection import is_running, lookup

    folder, _ = lookup(name)
    path, offset, inode = folder / LOG, 0, -1
    while True:
        working = follow and is_running(folder)
        try:
            with disk_errors(path), open_regular(path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != inode:  # the first read, or the log was rotated to log.txt.1
                    offset, inode = 0, stat.st_ino
                offset = max(offset, stat.st_size - _MAX_BYTES)
                file.seek(offset)
                text = file.read(_MAX_BYTES)
        except UnreadableError as error:
            raise CheckpointError(
                f"The log {path} cannot be read: {error}. Move it away; a new one is started."
            ) from error
        end = len(text) if not working else text.rfind(b"\n") + 1  # an incomplete line waits
        offset += end
        print_text(text[:end].replace(b"\0", b"").decode(errors="replace"), end="")
        if not working:
            return
        time.sleep(0.5)
