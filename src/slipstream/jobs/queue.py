"""Queue: the durable table of a user's jobs, one row per job.

Other libraries do not fit: huey removes a task from its queue before it runs, so that a kill loses
it; rq requires a Redis server; APScheduler lives in one process. Here a row holds the target state
and is never removed: any supervisor that finds no process for it starts or resumes the job.

SQLite in WAL mode with ``synchronous=FULL``: a returned method call survives a power failure.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from slipstream.core.errors import ConfigError
from slipstream.core.storage import database
from slipstream.core.storage.atomic_io import disk_errors, is_lock_held, make_folder
from slipstream.core.storage.folder_registry import state_folder

COMPLETE, STOPPED, FAILED = "complete", "stopped", "failed"
MAX_ATTEMPTS = 3  # restarts without progress after a job's process died
TABLE = "jobs.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    folder TEXT NOT NULL,
    command TEXT NOT NULL,
    resume_command TEXT NOT NULL,
    environment TEXT NOT NULL,
    target_state TEXT NOT NULL DEFAULT 'complete',
    final_state TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    cores INTEGER,
    memory INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    progress INTEGER NOT NULL DEFAULT -1,
    pid INTEGER NOT NULL DEFAULT 0,
    added REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_job_a_folder ON jobs (folder) WHERE final_state = '';
"""
_REMEDY = "Move the file away, and add its jobs again."
_UNDER_WAY = "WHERE final_state = ''"
_JOBS = database.StoredTable(
    "jobs",
    _SCHEMA,
    _REMEDY,
    kind=database.ColumnRule(str, words=("run", "study", "deployment")),
    **dict.fromkeys(("command", "resume_command"), database.json_column([str])),
    environment=database.json_column({"python": str, "cwd": str, "variables": {"*": str}}),
    target_state=database.ColumnRule(str, words=(COMPLETE, STOPPED)),
    final_state=database.ColumnRule(str, words=("", COMPLETE, FAILED)),
    cores=database.ColumnRule(int, 1, 2**31 - 1),
    progress=database.ColumnRule(int, -1, 2**53),
    pid=database.ColumnRule(int, 0, 2**31 - 1),
    added=database.MOMENT,
)


@dataclass(frozen=True)
class QueuedJob:
    """A row of the table.

    Attributes:
        id: rises from 1; jobs start in this order.
        name: the last part of `folder`.
        kind: ``run``, ``study`` or ``deployment``.
        folder: resolved path, fixed before the start.
        command: arguments of `slipstream` that start the job.
        resume_command: arguments of `slipstream` that resume it.
        environment: ``python`` (interpreter), ``cwd`` and ``variables`` of its process.
        target_state: ``complete``, or ``stopped``: its process is stopped.
        final_state: ``complete`` or ``failed``; empty before the end.
        reason: why it failed or stopped, or what it waits for.
        cores: requested cores; None: an equal share.
        memory: forecast bytes; 0 if unknown.
        attempts: consecutive starts without progress.
        progress: progress at the last start, see `get_progress`; -1 before that.
        pid: PID of its last process.
        added: UTC seconds.
    """

    id: int
    name: str
    kind: str
    folder: str
    command: Sequence[str]
    resume_command: Sequence[str]
    environment: Mapping[str, Any]
    target_state: str
    final_state: str
    reason: str
    cores: int | None
    memory: int
    attempts: int
    progress: int
    pid: int
    added: float


class JobQueue:
    """The table of a folder; any number of processes may use it at the same time.

    Args:
        folder: holds ``jobs.sqlite`` and for each job ``ID.lock``, which its process holds, and
            ``ID.txt``, its output. Created if missing.

    Raises:
        ResourceError: the folder cannot be written.
        CheckpointError: the table is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        with self._errors():
            self._table = database.connect_writer(folder / TABLE, threads=True)
            self._table.execute("PRAGMA journal_mode=WAL")
            self._table.execute("PRAGMA synchronous=FULL")
            self._table.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def add(
        self,
        kind: str,
        folder: Path,
        command: Sequence[str],
        resume_command: Sequence[str],
        environment: Mapping[str, Any],
        cores: int | None = None,
        memory: int = 0,
    ) -> QueuedJob:
        """Add a job, on disk when this returns; arguments as the fields of `QueuedJob`.

        Raises:
            ConfigError: another job that has not ended writes that folder.
        """
        values = (
            kind,
            json.dumps(list(command)),
            json.dumps(list(resume_command)),
            json.dumps(dict(environment)),
        )
        try:
            with self._errors():
                number = self._table.execute(
                    "INSERT INTO jobs (name, folder, kind, command, resume_command, environment, "
                    "cores, memory, added) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (folder.name, str(folder), *values, cores, memory, time.time()),
                ).lastrowid
        except sqlite3.IntegrityError:
            raise ConfigError(
                f"Another job of this queue that has not ended writes {folder}: see `slipstream "
                "jobs`, or name another folder."
            ) from None
        (job,) = self._read("WHERE rowid = ?", number)
        return job

    def jobs(self, include_ended: bool = True) -> list[QueuedJob]:
        """Return jobs in the order in which they were added."""
        return self._read(f"{'' if include_ended else _UNDER_WAY} ORDER BY id")

    def job(self, number: int) -> QueuedJob:
        """Return the job of an id.

        Raises:
            ConfigError: there is none.
        """
        small = abs(number) < 2**63  # range of SQLite integers
        jobs = self._read("WHERE id = ?", number if small else 0)
        if not jobs:
            raise ConfigError(f"There is no job {number}: `slipstream jobs --all` lists all jobs.")
        return jobs[0]

    def _read(self, rest: str, *values: Any) -> list[QueuedJob]:
        with self._errors():
            return _JOBS.read(self._table, rest, values, make=lambda row: QueuedJob(*row))

    def set_target(self, job: QueuedJob, target_state: str, reason: str = "") -> None:
        """Set the target state of a job and the reason; reset its attempts."""
        self._set(job, target_state=target_state, reason=reason, attempts=0)

    def replace(self, job: QueuedJob, memory: int, **said: Any) -> None:
        """Replace `command`, `resume_command` and `environment` of a job, and run it again."""
        texts = {name: json.dumps(value) for name, value in said.items()}
        self._set(
            job, **texts, memory=memory, target_state=COMPLETE, reason="", attempts=0, progress=-1
        )

    def retry(self, job: QueuedJob) -> None:
        """Requeue a failed or stopped job.

        Raises:
            ConfigError: the job is complete, or another job writes its folder.
        """
        if job.final_state == COMPLETE:
            named = f"={job.folder}"
            words = [word.replace(named, f"{named}-again") for word in job.command]
            another = f" To begin another one: `slipstream jobs add -- {shlex.join(words)}`."
            raise ConfigError(
                f"Job {job.id} is complete: there is nothing to do."
                + another * (words != job.command)  # `resume` starts none
            )
        try:
            self._set(
                job, target_state=COMPLETE, final_state="", reason="", attempts=0, progress=-1
            )
        except sqlite3.IntegrityError:
            raise ConfigError(
                f"Another job of this queue writes {job.folder} by now: see `slipstream jobs`."
            ) from None

    def record_start(self, job: QueuedJob, attempts: int, progress: int) -> None:
        """Record the start of a process, before it starts."""
        self._set(job, attempts=attempts, progress=progress, reason="", pid=0)  # no process yet

    def set_pid(self, job: QueuedJob, pid: int) -> None:
        """Record the PID of the job's process."""
        self._set(job, pid=pid)

    def set_waiting(self, job: QueuedJob, reason: str, **more: int) -> None:
        """Record what a job waits for; `more` as the fields of `QueuedJob`."""
        if reason != job.reason:  # avoids a disk write at every tick
            self._set(job, reason=reason, **more)

    def end(self, job: QueuedJob, final_state: str, reason: str = "") -> None:
        """Record the end of a job: ``complete`` or ``failed``, and the reason."""
        self._set(job, final_state=final_state, reason=reason)

    def acquire_lock(self, job: QueuedJob) -> int | None:
        """Return a descriptor that holds the job's lock; None if another process holds it.

        Processes that inherit the descriptor hold the lock as well, until all duplicates are
        closed.
        """
        with disk_errors(self._lock(job)):
            handle = os.open(self._lock(job), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle

    def is_running(self, job: QueuedJob) -> bool:
        """Return whether a process works on a job."""
        return is_lock_held(self._lock(job))

    def output_path(self, job: QueuedJob) -> Path:
        """Return the file with the output of its processes."""
        return self.folder / f"{job.id}.txt"

    def _lock(self, job: QueuedJob) -> Path:
        return self.folder / f"{job.id}.lock"

    def _set(self, job: QueuedJob, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        with self._errors():
            self._table.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*values.values(), job.id))

    def _errors(self) -> AbstractContextManager[None]:
        return database.database_errors(self.folder / TABLE, _REMEDY)


def user_queue() -> JobQueue:
    """Return the queue of this user, in the state folder, see `state_folder`."""
    return JobQueue(state_folder("jobs"))
