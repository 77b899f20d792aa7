"""Process of a job: start, core binding, stop, and its entries in the queue.

A job runs an ordinary slipstream command in its own session. The command line records exit codes 0
and 2; a process that died records nothing and is started again. A command with `--background` is
such a process without a job.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.child_process import EXIT_BUSY, EXIT_TIME_BUDGET, JOB_VARIABLE
from slipstream.core.errors import CheckpointError, ConfigError, ResourceError
from slipstream.core.safe_io import UnreadableError, open_regular, path_exists
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import disk_errors, fsync_folder, is_locked, make_folder
from slipstream.core.storage.folder_registry import find_entry, read_id, state_folder
from slipstream.core.storage.signals import is_stop_requested, request_stop
from slipstream.core.storage.status_file import (
    AUDIT,
    DEPLOYMENT,
    LEDGER,
    LOG,
    MARKER_FILES,
    Status,
    read_status,
)
from slipstream.jobs.queue import COMPLETE, FAILED, STOPPED, TABLE, JobQueue, QueuedJob, user_queue
from slipstream.studies.record.ledger import count_outcomes
from slipstream.training.runs.run import CHECKPOINTS, CONFIG

_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_PREFIXES = ("SLIPSTREAM_", "PYTHON", "NUMBA_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "XDG_")
_TAIL_BYTES = 4096  # bytes at the end of the output that are searched for the reason of the exit
_USER_ERROR = 2
_SECONDS = 0.1  # polling interval
_START_PHASES = ("starting", "loading", "compiling", "measuring")  # a start may fail in these
Notify = Callable[[str], None]


def job_environment() -> dict[str, Any]:
    """Return interpreter, directory and variables for a job, like those of this process."""
    variables = {k: v for k, v in os.environ.items() if k in _VARIABLES or k.startswith(_PREFIXES)}
    return {**current_environment(), "variables": variables}


def current_environment() -> dict[str, Any]:
    """Return interpreter, directory and variables of this process."""
    return {"python": sys.executable, "cwd": os.getcwd(), "variables": dict(os.environ)}


def get_status(folder: Path) -> Status | None:
    """Return the last status of a run or study; None if it cannot be read."""
    try:
        return read_status(folder)
    except (CheckpointError, ResourceError):
        return None


def describe_other_process(folder: Path, status: Status | None = None) -> str:
    """Describe a process outside the queue that works in a job's folder; empty without one."""
    with suppress(ResourceError):  # an unreadable folder is reported by the job itself
        status = status or get_status(folder)
        running = status is not None and status.liveness() == "running"
        # On this machine the lock decides: after a clock change the PID may be another program's.
        if is_locked(folder) or (status and running and status.host != platform.node()):
            who = f"process {status.pid}" if status and running else "another process"
            return f"{who}, which works in its folder"
    return ""


def has_started(job: QueuedJob) -> bool:
    """Return whether the job's folder is a run or study already, so that it can be resumed.

    A command that works on a deployment starts and resumes by the same arguments.
    """
    return job.kind in MARKER_FILES and path_exists(Path(job.folder) / MARKER_FILES[job.kind])


def get_progress(folder: Path, kind: str) -> int:
    """Return a number that rises with the saved progress of a run, study or deployment.

    Run: steps of the newest checkpoint. Study: outcomes in the ledger. Deployment: logged
    decisions, or the bytes of the audit trail if it watches studies.
    """
    if kind == DEPLOYMENT:
        status = get_status(folder)
        if status is not None and status.pattern:
            with suppress(FileNotFoundError):
                return (folder.parent / AUDIT).stat().st_size
            return 0
        return 0 if status is None else status.completed
    if kind == "study":
        return count_outcomes(folder / LEDGER)
    folders = checkpoint.checkpoints(folder / CHECKPOINTS)
    return int(folders[-1].name.partition("-")[2]) if folders else 0


def start_process(
    command: Sequence[str],
    output: Path,
    where: Mapping[str, Any],
    keep: Sequence[int] = (),
    cores: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, which outlives this one and its terminal.

    Args:
        command: arguments of `slipstream`.
        output: file to which its output is appended.
        where: see `job_environment`.
        keep: descriptors that it inherits.
        cores: cores that it may use; empty: those of this process.

    Raises:
        ResourceError: the process cannot be started, or the file cannot be written.
    """
    with disk_errors(output):
        printed = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    bind = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    try:
        return subprocess.Popen(
            [where["python"], "-m", "slipstream", *command],
            cwd=where["cwd"],
            env={**where["variables"]},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            pass_fds=keep,
            preexec_fn=bind,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ResourceError(
            f"A process could not be started ({error}). Check that {where['python']} and "
            f"{where['cwd']} exist, and that the system allows more processes."
        ) from error
    finally:
        os.close(printed)


def bind_to_cores(job: QueuedJob, cores: Sequence[int]) -> bool:
    """Bind a job's process, its threads and its children to cores; return whether it succeeded.

    No result depends on it: a run keeps its shards, a study reads its cores before each segment.
    """
    process = find_process(job)
    if process is None:
        return False
    with suppress(psutil.Error):
        for member in [process, *process.children(recursive=True)]:
            for thread in os.listdir(f"/proc/{member.pid}/task"):
                with suppress(OSError):  # it ended meanwhile
                    os.sched_setaffinity(int(thread), cores)
        return True
    return False


def find_process(job: QueuedJob) -> psutil.Process | None:
    """Return the process that holds a job's lock; None before its PID is recorded."""
    try:
        process = psutil.Process(job.pid)
        ours = any("slipstream" in word for word in process.cmdline())
        return process if ours else None
    except (psutil.Error, ValueError):
        return None


def stop_process(job: QueuedJob) -> None:
    """Stop the process of a job at a checkpoint, if there can be one."""
    folder, status = Path(job.folder), get_status(Path(job.folder))
    # If another process holds the folder, this one will notice it and end without a request.
    if is_locked(folder) and (status is None or status.pid == job.pid):
        if not is_stop_requested(folder):
            request_stop(folder)
        return
    process = find_process(job)
    if process is not None:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)


def detach(process: subprocess.Popen[bytes]) -> None:
    """Reap a process in a background thread, so that no zombie is left."""
    threading.Thread(target=process.wait, daemon=True).start()


def last_log_line(output: Path) -> str:
    """Return the last line of output; empty without any."""
    try:
        with open_regular(output) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except (OSError, UnreadableError):
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextmanager
def report_to_queue() -> Iterator[Callable[[int], None]]:
    """Record the PID and the end of a command that a supervisor started.

    Yields:
        A function to call with the exit code.
    """
    given = os.environ.pop(JOB_VARIABLE)  # child processes are not jobs
    path, _, number = given.rpartition(":")
    if not (number.isdecimal() and path_exists(Path(path) / TABLE)):
        raise ConfigError(
            f"{JOB_VARIABLE} must be FOLDER:ID of a job in a queue, got {given!r}. A supervisor "
            f"sets it for its jobs: unset it (`unset {JOB_VARIABLE}`)."
        )
    with JobQueue(Path(path)) as queue:
        job = queue.job(int(number))
        folder = Path(job.folder)
        queue.set_pid(job, os.getpid())

        def ended(code: int) -> None:
            if code == 0:
                queue.end(job, COMPLETE)
            elif code == EXIT_BUSY or (code == _USER_ERROR and is_locked(folder)):
                # Another process was faster; it may have ended since.
                queue.set_waiting(
                    job,
                    f"waits for {describe_other_process(folder) or 'another process'}",
                    attempts=0,
                )
            elif code == _USER_ERROR:
                queue.end(job, FAILED, last_log_line(queue.output_path(job)))
            elif code == EXIT_TIME_BUDGET:  # a restart would get the whole time budget again
                queue.set_target(job, STOPPED, last_log_line(queue.output_path(job)))

        yield ended


def run_in_background(
    arguments: Sequence[str], folder: Path, log: Path | None, notify: Notify
) -> None:
    """Start a command that outlives this terminal; return when training or search has begun.

    Args:
        arguments: arguments of `slipstream`.
        folder: folder of the run or study.
        log: file that also receives its output.
        notify: called with its PID, its log, and how to watch and stop it.

    Raises:
        ConfigError: it ended before that; with its output.
        ResourceError: `log` cannot be written; its folder is created if missing.
    """
    output = log or state_folder("background") / f"{folder.name}-{os.getpid()}.txt"
    make_folder(output.parent)
    with disk_errors(output):
        before = output.stat().st_size if output.exists() else 0
    try:
        process = start_process(arguments, output, current_environment())
        while (code := process.poll()) is None:
            status = get_status(folder)
            if (
                status is not None
                and status.pid == process.pid
                and status.phase not in _START_PHASES
            ):
                break
            time.sleep(_SECONDS)
        if code:
            with disk_errors(output), output.open("rb") as file:
                file.seek(before)
                words = " ".join(file.read().decode(errors="replace").split())
            raise ConfigError(f"The command ended early: {words or 'it printed nothing.'}")
    finally:
        if log is None:  # later messages are in the folder's log
            output.unlink(missing_ok=True)
    detach(process)
    done = f"Process {process.pid} works on {folder}" if code is None else f"{folder} is complete"
    notify(f"{done}; log: {folder / LOG}" + (f", output: {output}" if log else ""))
    name = shlex.quote(str(folder))
    notify(f"Watch it with `slipstream watch {name}`, stop it with `slipstream stop {name}`.")


def set_aside(folder: Path, notify: Notify) -> None:
    """Stop the process of a run or study and move its folder to ``NAME.replaced-N``.

    Nothing is deleted. A missing folder is accepted.

    Raises:
        ConfigError: the folder belongs to another user, another machine works on it, or it is
            neither a run nor a study.
    """
    if not path_exists(folder):
        return
    if not (path_exists(folder / CONFIG) or path_exists(folder / "study.yaml")):
        raise ConfigError(
            f"{folder} is neither a run nor a study, so --replace leaves it alone: name another "
            "folder, or move it away."
        )
    owner = folder.stat().st_uid
    if owner != os.getuid():
        raise ConfigError(f"{folder} belongs to user {owner}: --replace moves folders of yours.")
    status = get_status(folder)
    working = status is not None and status.liveness() in ("running", "silent")
    if status is not None and working and status.host != platform.node():
        raise ConfigError(
            f"{folder} is worked on by process {status.pid} on {status.host}: stop it there, with "
            f"`slipstream stop {shlex.quote(str(folder))}`; if that machine is gone, move it."
        )
    with user_queue() as queue:
        for job in queue.jobs(include_ended=False):
            if job.folder == str(folder.resolve()):
                queue.end(job, FAILED, "another command took its folder, with --replace")
                while queue.is_running(job):  # also one that is still loading
                    stop_process(queue.job(job.id))
                    time.sleep(_SECONDS)
    if is_locked(folder):
        notify(f"Waiting for the process that works on {folder} to stop at a checkpoint.")
        request_stop(folder)
        while is_locked(folder):
            time.sleep(_SECONDS)
    number = 1
    while path_exists(aside := folder.with_name(f"{folder.name}.replaced-{number}")):
        number += 1
    with disk_errors(aside):
        os.rename(folder, aside)
        fsync_folder(aside.parent)
    find_entry(read_id(aside) or "", aside)  # `slipstream jobs` lists it there
    notify(f"Moved {folder} to {aside}.")
