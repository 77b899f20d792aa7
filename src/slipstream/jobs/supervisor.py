"""Supervisor: the process that starts the jobs of a queue within one resource budget.

All state is in the queue. A job whose target is not reached and whose lock is free is started, or
resumed if its folder exists. A supervisor may be killed at any time; jobs continue without it, and
the next one takes over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen

from slipstream.core.capacity import free_memory, total_memory
from slipstream.core.child_process import JOB_VARIABLE, describe_exit
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.core.storage.atomic_io import acquire_lock, disk_errors, is_lock_held
from slipstream.core.storage.signals import Interruption
from slipstream.jobs.job_process import (
    bind_to_cores,
    describe_other_process,
    detach,
    get_progress,
    get_status,
    has_started,
    last_log_line,
    start_process,
    stop_process,
)
from slipstream.jobs.queue import COMPLETE, FAILED, MAX_ATTEMPTS, STOPPED, JobQueue, QueuedJob

_SECONDS = 1.0  # minimum interval between two ticks
_SHARE = 0.01  # maximum share of a core for ticks; hundreds of jobs lengthen the interval
_LOCK = "supervisor.lock"
_MEMORY_SHARE = 0.9  # share of the machine's or container's memory for all jobs together
_FREE_SHARE = 0.8  # share of the free memory for one job; training requires the same limit


class Supervisor:
    """Starts, stops and binds the jobs of a queue; one per queue, used in a `with` statement.

    Args:
        queue: the queue.
        cores: numbers of the cores that jobs may use; default: those of this process.
        notify: called with a message when a job starts or ends.

    Raises:
        ConfigError: another supervisor works on that queue.
    """

    def __init__(
        self,
        queue: JobQueue,
        cores: Sequence[int] = (),
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._queue, self._notify = queue, notify
        self._cores = sorted(cores or os.sched_getaffinity(0))
        # Only for messages about their exit.
        self._children: list[tuple[Popen[bytes], QueuedJob]] = []
        self._running: list[QueuedJob] = []  # jobs with a process at the last tick
        self._bound: dict[int, tuple[int, ...]] = {}  # job id -> its current cores
        self._can_bind = _can_bind()
        another = f"Another supervisor works on the queue {queue.folder}: one is enough."
        self._lock = acquire_lock(queue.folder, another, timeout=0.0, name=_LOCK)
        if not self._can_bind:
            notify("This system does not support CPU affinity: all jobs share all cores.")

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _job in self._children:
            detach(process)
        self._lock.close()

    def run(self, until_idle: bool = False) -> None:
        """Work until a signal arrives; running jobs continue without the supervisor.

        Args:
            until_idle: return when no job runs or waits.
        """
        with Interruption() as interruption:
            while not interruption.requested:
                began = time.process_time()
                if not self.tick() and until_idle:
                    return
                time.sleep(max(_SECONDS, (time.process_time() - began) / _SHARE))

    def tick(self) -> int:
        """Update all jobs once; return the number of jobs that run or wait."""
        self._reap()
        jobs = self._queue.jobs(include_ended=False)
        children = {job.id for _, job in self._children}  # includes children not yet reaped
        working = [job for job in jobs if job.id in children or self._queue.is_running(job)]
        for job in working:
            if job.target_state == STOPPED:
                stop_process(job)
        waiting = [job for job in jobs if job.target_state == COMPLETE and job not in working]
        for job in waiting:
            if other := describe_other_process(
                Path(job.folder)
            ):  # started by hand: blocks no other job
                self._queue.set_waiting(job, f"waits for {other}")
                continue
            if reason := self._blocking_reason(job, working):
                self._queue.set_waiting(job, reason)
                break  # first in, first out, even if a later job would fit
            shares = share_cores([*working, job], self._cores)
            if self._start(job, shares[job.id]):
                working.append(self._queue.job(job.id))
        self._bind(working)
        ids = {job.id for job in working}  # a job that recorded its end may still close files
        leaving = [
            job for job in self._running if job.id not in ids and self._queue.is_running(job)
        ]
        self._running = [*working, *leaving]
        return len(self._running) or len(self._children) or len(waiting)

    def _blocking_reason(self, job: QueuedJob, working: Sequence[QueuedJob]) -> str:
        """Return why a job has to wait; empty if it can start."""
        taken_cores = sum(min_cores(other) for other in working)
        num_cores = min(min_cores(job), len(self._cores))
        if taken_cores + num_cores > len(self._cores):
            names = _format_names(working)
            return f"waits for {num_cores} of {len(self._cores)} cores, taken by {names}"
        memory_use = [(other.memory, _reported_memory(other)) for other in working]
        taken = sum(map(max, memory_use))
        coming = sum(
            max(0, forecast - now) for forecast, now in memory_use
        )  # forecast, not yet used
        most = _MEMORY_SHARE * total_memory()
        available = min(most - taken, _FREE_SHARE * free_memory() - coming)
        # The forecast is an upper bound. A job above the machine's limit starts on an idle machine.
        needed = job.memory if working else min(job.memory, _FREE_SHARE * most)
        if needed > available:
            whose = _format_names(working) or "other programs"
            there = f"beside {whose} there are {max(0.0, available) / 2**30:.1f}"
            return f"waits for {needed / 2**30:.1f} GiB of memory: {there}"
        return ""

    def _start(self, job: QueuedJob, cores: Sequence[int]) -> bool:
        """Start or resume a job, unless its process died too often; return whether it started."""
        handle = self._queue.acquire_lock(job)
        if handle is None:  # another process was faster
            return False
        try:
            job = self._queue.job(job.id)  # read again under the lock
            if job.target_state != COMPLETE or job.final_state:
                return False
            with disk_errors(Path(job.folder)):
                saved_progress = get_progress(Path(job.folder), job.kind)
            attempts = job.attempts + 1 if saved_progress <= job.progress else 0
            if attempts > MAX_ATTEMPTS:
                words = job.reason or last_log_line(self._queue.output_path(job))
                self._end(
                    job, f"its process died {attempts} times without getting further; {words}"
                )
                return False
            # Recorded first, so that every death is counted.
            self._queue.record_start(job, attempts, saved_progress)
            is_resumed = has_started(job)
            key = {JOB_VARIABLE: f"{self._queue.folder.absolute()}:{job.id}"}
            where = {**job.environment, "variables": {**job.environment["variables"], **key}}
            command = job.resume_command if is_resumed else job.command
            bound = cores if self._can_bind else ()
            process = start_process(command, self._queue.output_path(job), where, [handle], bound)
        except SlipstreamError as error:
            self._end(job, str(error))
            return False
        finally:
            os.close(handle)  # the process holds it now
        self._children.append((process, job))
        self._bound[job.id] = tuple(cores)
        self._notify(f"Job {job.id} ({job.name}) {'resumes' if is_resumed else 'starts'}.")
        return True

    def _end(self, job: QueuedJob, reason: str) -> None:
        self._queue.end(job, FAILED, reason)
        self._notify(f"Job {job.id} ({job.name}) failed: {reason}")

    def _bind(self, working: Sequence[QueuedJob]) -> None:
        """Bind each job to its cores; a job that resumes can get more."""
        if not self._can_bind:
            return
        for number, cores in share_cores(working, self._cores).items():
            if self._bound.get(number) != cores:
                job = self._queue.job(number)  # includes its PID
                if bind_to_cores(job, cores):
                    self._bound[number] = cores

    def _reap(self) -> None:
        """Handle ended child processes and record how they died."""
        for process, job in list(self._children):
            if process.poll() is None:
                continue
            self._children.remove((process, job))
            now = self._queue.job(job.id)
            # The process records its own reason.
            how = now.reason or f"its process {describe_exit(process.returncode)}"
            ended = now.final_state or (STOPPED if now.target_state == STOPPED else "")
            if not ended:
                self._queue.set_waiting(now, how)
            self._notify(f"Job {job.id} ({job.name}): {ended or how}.")


def has_supervisor(queue: JobQueue) -> bool:
    """Return whether a supervisor works on a queue."""
    return is_lock_held(queue.folder / _LOCK)


def share_cores(jobs: Sequence[QueuedJob], cores: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return disjoint sets of cores for jobs that can start together, by id.

    Jobs with requested cores get them; the others share the rest, the first ones more if it does
    not divide.
    """
    left, shares = list(cores), dict[int, tuple[int, ...]]()
    for index, job in enumerate(jobs):
        later = jobs[index + 1 :]
        spare = len(left) - sum(min_cores(other) for other in later)
        equal = sum(other.cores is None for other in [job, *later])
        many = job.cores or -(-(spare + equal - 1) // equal)
        shares[job.id] = tuple(left[: max(1, min(many, spare))] or cores)  # with fewer than before
        left = left[len(shares[job.id]) :]
    return shares


def min_cores(job: QueuedJob) -> int:
    """Return the cores without which a job does not start."""
    return job.cores or 1


def stop_job(queue: JobQueue, job: QueuedJob) -> bool:
    """Set a job's target to stopped; return whether its process was stopped.

    Raises:
        ConfigError: the job has ended.
    """
    if job.final_state:
        why = f" ({job.reason.rstrip('.')})" if job.reason else ""
        raise ConfigError(f"Job {job.id} is {job.final_state}{why}: there is nothing to stop.")
    queue.set_target(job, STOPPED)
    if held := queue.is_running(job):
        stop_process(job)
    return held


def _reported_memory(job: QueuedJob) -> int:
    """Return the bytes that a job's process last reported."""
    status = get_status(Path(job.folder))
    if status is None or status.pid != job.pid:  # of one that died
        return 0
    return int(status.machine.get("memory") or 0)


def _can_bind() -> bool:
    """Return whether the system lets processes choose cores; some containers do not."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False
    return True


def _format_names(jobs: Sequence[QueuedJob]) -> str:
    return ", ".join(f"job {job.id}" for job in jobs)
