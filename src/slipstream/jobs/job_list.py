"""Job list: jobs of the queue, and folders that this user's commands created."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.safe_io import path_exists
from slipstream.core.storage import folder_registry
from slipstream.core.storage.status_file import DEPLOYMENT, MARKER_FILES, Status
from slipstream.core.text import duration, format_count, log_time, plural
from slipstream.jobs.job_process import describe_other_process, get_status
from slipstream.jobs.queue import COMPLETE, STOPPED, JobQueue, QueuedJob
from slipstream.jobs.supervisor import has_supervisor

_WORKING = ("running", "stopping")
ENDED_STATES = ("complete", "failed", "unknown")


@dataclass(frozen=True)
class JobRow:
    """A run, study or deployment as `slipstream jobs` lists it; all fields are text.

    Attributes:
        job: number in the queue; empty if it was started by hand.
        name: the last part of its folder.
        kind: ``run``, ``study`` or ``deployment``.
        state: ``waiting``, ``running``, ``stopping``, ``stopped``, ``complete``, ``failed``,
            ``gone`` (killed and not queued) or ``silent`` (on another machine).
        progress, rate, eta: of a running one; `memory`: memory in use; `cores`: available cores.
        since: start time, UTC.
        folder: absolute path.
        reason: why it failed, or what it waits for.
    """

    job: str
    name: str
    kind: str
    state: str
    progress: str
    rate: str
    eta: str
    cores: str
    memory: str
    since: str
    folder: str
    reason: str


def list_jobs(
    queue: JobQueue, include_ended: bool = True, extra_folders: Sequence[Path] = ()
) -> tuple[list[JobRow], int]:
    """Return jobs of the queue in order, then those started by hand, newest first.

    Args:
        queue: queue of the user.
        include_ended: include those that ended; False: only running, waiting and stopped ones.
        extra_folders: folders of runs and studies outside the register; they come last.

    Returns:
        A row for each, and the number of registered folders that no longer exist.
    """
    lines, known, first = list[JobRow](), set[str](), 0
    jobs, supervised = queue.jobs(), has_supervisor(queue)
    newest = {job.folder: job.id for job in jobs}
    for job in jobs:
        known.add(job.folder)
        folder, state, reason = Path(job.folder), job_state(queue, job), job.reason
        status = get_status(folder)
        if state not in (*_WORKING, COMPLETE) and newest[job.folder] == job.id:
            if other := describe_other_process(folder, status):
                reason = f"{'waits for' if state == 'waiting' else 'begun by hand:'} {other}"
                state = "running"
            elif not job.final_state and status is not None and status.state == COMPLETE:
                state = COMPLETE  # it was resumed by hand
        if state == "waiting":
            nobody = "" if supervised else "waits for `slipstream jobs run`"
            reason = f"waits behind job {first}" if first else nobody or reason
            first = first or job.id
        if include_ended or state not in ENDED_STATES:
            lines.append(
                _make_row(job.folder, job.kind, job.added, state, status, str(job.id), reason)
            )
    entries = folder_registry.list_entries()
    by_hand = [(entry.kind, entry.path, entry.began) for entry in entries if entry.is_present]
    absent = len(entries) - len(by_hand)
    for folder in extra_folders:
        with suppress(OSError, StopIteration):  # it has just vanished
            kind = next(kind for kind, name in MARKER_FILES.items() if path_exists(folder / name))
            status = get_status(folder)  # the folder's own time changes with what is put into it
            began = status.started if status else folder.lstat().st_mtime
            by_hand.append((kind, str(folder), began))
    for kind, path, began in by_hand:
        if path in known:
            continue
        known.add(path)
        status = get_status(Path(path))
        state = "unknown" if status is None else status.liveness()
        if include_ended or state not in ENDED_STATES:
            lines.append(_make_row(path, kind, began, state, status))
    return lines, absent


def job_state(queue: JobQueue, job: QueuedJob) -> str:
    """Return the state of a job, see `JobRow.state`."""
    if job.final_state:
        return job.final_state
    if queue.is_running(job):
        return "stopping" if job.target_state == STOPPED else "running"
    return STOPPED if job.target_state == STOPPED else "waiting"


def _make_row(
    folder: str,
    kind: str,
    since: float,
    state: str,
    status: Status | None,
    job: str = "",
    reason: str = "",
) -> JobRow:
    now = status if state in (*_WORKING, "silent") else None
    memory = now.machine.get("memory") if now else None
    return JobRow(
        job=job,
        name=Path(folder).name,
        kind=kind,
        state=state,
        progress=_format_progress(status) if status else "",
        rate=f"{format_count(now.rate)} steps/s" if now and now.rate is not None else "",
        eta=duration(now.eta) if now and now.eta is not None else "",
        cores=_format_cores(now) if now else "",
        memory=f"{memory / 2**30:.1f} GiB" if memory else "",
        since=log_time(since),
        folder=folder,
        reason=reason or (status.reason if status else ""),
    )


def _format_progress(status: Status) -> str:
    if (
        not status.completed and not status.total and status.kind != DEPLOYMENT
    ):  # nothing is known yet
        return ""
    if not status.total and status.kind == DEPLOYMENT:
        return plural(status.completed, status.unit.removesuffix("s"))
    return f"{status.completed:,} of {status.total:,} {status.unit}"


def _format_cores(status: Status) -> str:
    try:
        return str(len(os.sched_getaffinity(status.pid)))
    except (AttributeError, OSError, OverflowError):  # of a strange number
        return ""
