"""A command in the background, and the folder that another one is to make room in."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.core.errors import ConfigError
from slipstream.core.reader import is_there
from slipstream.core.storage.files import disk_errors, is_locked, make_folder, sync_folder
from slipstream.core.storage.interruption import ask_to_stop
from slipstream.core.storage.register import id_of, known, state_folder
from slipstream.core.storage.status import LOG
from slipstream.jobs.process import here, let_go, start, status_of
from slipstream.jobs.queue import FAILED, own_queue
from slipstream.jobs.supervisor import stop_process
from slipstream.training.runs.run import CONFIG

_SECONDS = 0.1  # between two looks
_BEFORE = ("starting", "loading", "compiling", "measuring")  # phases in which a start may fail
Say = Callable[[str], None]


def in_background(arguments: Sequence[str], folder: Path, log: Path | None, say: Say) -> None:
    """Starts a command that outlives this terminal; returns when training or search has begun.

    Args:
        arguments: of `slipstream`.
        folder: of the run or study that it works on.
        log: also gets everything that it prints.
        say: told its number, where its log is, and how to watch and stop it.

    Raises:
        ConfigError: it ended before that, with its own words.
        ResourceError: `log` cannot be written; its folder is made where it is missing.
    """
    output = log or state_folder("background") / f"{folder.name}-{os.getpid()}.txt"
    make_folder(output.parent)
    with disk_errors(output):
        before = output.stat().st_size if output.exists() else 0
    try:
        process = start(arguments, output, here())
        while (code := process.poll()) is None:
            status = status_of(folder)
            if status is not None and status.pid == process.pid and status.phase not in _BEFORE:
                break
            time.sleep(_SECONDS)
        if code:
            with disk_errors(output), output.open("rb") as file:
                file.seek(before)
                words = " ".join(file.read().decode(errors="replace").split())
            raise ConfigError(f"It ended before it began: {words or 'it said nothing.'}")
    finally:
        if log is None:  # nobody reads it later: the folder's log has what is said from here on
            output.unlink(missing_ok=True)
    let_go(process)
    done = f"Process {process.pid} works on {folder}" if code is None else f"{folder} is complete"
    say(f"{done}; log: {folder / LOG}" + (f", output: {output}" if log else ""))
    name = shlex.quote(str(folder))
    say(f"Watch it with `slipstream watch {name}`, stop it with `slipstream stop {name}`.")


def make_room(folder: Path, say: Say) -> None:
    """Stops what works on a run or study, and moves its folder to ``NAME.replaced-N``.

    Nothing is deleted. A folder that is not there is room enough.

    Raises:
        ConfigError: it is somebody else's, another machine works on it, or it is neither a run's
            nor a study's.
    """
    if not is_there(folder):
        return
    if not (is_there(folder / CONFIG) or is_there(folder / "study.yaml")):
        raise ConfigError(
            f"{folder} is neither a run nor a study, so --replace leaves it alone: name another "
            "folder, or move it away."
        )
    owner = folder.stat().st_uid
    if owner != os.getuid():
        raise ConfigError(f"{folder} belongs to user {owner}: --replace moves folders of yours.")
    status = status_of(folder)
    working = status is not None and status.judged() in ("running", "silent")
    if status is not None and working and status.host != platform.node():
        raise ConfigError(
            f"{folder} is worked on by process {status.pid} on {status.host}: stop it there, with "
            f"`slipstream stop {shlex.quote(str(folder))}`; if that machine is gone, move it."
        )
    with own_queue() as queue:
        for job in queue.jobs(ended=False):
            if job.folder == str(folder.resolve()):
                queue.end(job, FAILED, "another command took its folder, with --replace")
                while queue.held(job):  # also one that is still loading
                    stop_process(queue.job(job.id))
                    time.sleep(_SECONDS)
    if is_locked(folder):
        say(f"Waiting for the process that works on {folder} to stop at a checkpoint.")
        ask_to_stop(folder)
        while is_locked(folder):
            time.sleep(_SECONDS)
    number = 1
    while is_there(aside := folder.with_name(f"{folder.name}.replaced-{number}")):
        number += 1
    with disk_errors(aside):
        os.rename(folder, aside)
        sync_folder(aside.parent)
    known(id_of(aside) or "", aside)  # `slipstream jobs` lists it there
    say(f"What was in {folder} is in {aside}.")
