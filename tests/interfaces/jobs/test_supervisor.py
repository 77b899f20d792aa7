"""The supervisor: what it begins, again and again, and how it shares the machine.

Jobs here are shell scripts in the place of Python, which the table allows: what they are given is
`-m slipstream ...`, and they say in a file that they began.
"""

import fcntl
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.child_process import EXIT_TIME_BUDGET, JOB_VARIABLE
from slipstream.core.errors import ConfigError
from slipstream.core.safe_io import read_json
from slipstream.core.storage.atomic_io import acquire_lock
from slipstream.core.storage.folder_registry import register_folder
from slipstream.core.storage.signals import is_stop_requested
from slipstream.core.storage.status_file import Status
from slipstream.jobs import job_process as working
from slipstream.jobs import supervisor as supervising
from slipstream.jobs.job_list import job_state, list_jobs
from slipstream.jobs.job_process import report_to_queue
from slipstream.jobs.queue import COMPLETE, FAILED, MAX_ATTEMPTS, STOPPED, JobQueue, QueuedJob
from slipstream.jobs.supervisor import Supervisor, has_supervisor, min_cores, share_cores

HERE = {"python": sys.executable, "cwd": "/", "variables": {}}
SECONDS = 60.0  # of patience: what takes longer has failed
GIB = 2**30


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # nothing begun by hand
    with JobQueue(tmp_path / "queue") as queue:
        yield queue


@pytest.fixture
def added(queue, tmp_path):
    """Adds a job whose process is a shell script; $1 to $9 are the command line of slipstream."""

    def add(name, script, **more):
        program = tmp_path / f"{name}.slipstream"  # its name says whose process it is
        log = shlex.quote(str(tmp_path / f"{name}.begun"))
        program.write_text(f"#!/bin/sh\necho $$ $4 >> {log}\n{script}\n")
        program.chmod(0o755)
        place = {"python": str(program), "cwd": str(tmp_path), "variables": {"PATH": "/bin"}}
        return queue.add("run", tmp_path / name, ["train", "x"], ["resume", "x"], place, **more)

    return add


@pytest.fixture
def four_cores(monkeypatch):
    """Cores for a supervisor, on a machine with any number of them."""
    monkeypatch.setattr(supervising, "_can_bind", lambda: False)
    return range(4)


def begun(tmp_path, name):
    path = tmp_path / f"{name}.begun"
    return path.read_text().splitlines() if path.exists() else []


def ticks(supervisor, until):
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline
        supervisor.tick()
        time.sleep(0.02)


def test_a_job_whose_process_dies_is_begun_again_three_times_and_then_failed(
    queue, added, tmp_path
):
    job = added("a", "echo out of luck; kill -9 $$")
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: queue.job(job.id).final_state)
        supervisor.tick()
    found = queue.job(job.id)
    assert found.final_state == "failed" and "without getting further" in found.reason
    assert "SIGKILL" in found.reason
    assert len(begun(tmp_path, "a")) == 1 + MAX_ATTEMPTS


def test_progress_on_the_disk_counts_tries_anew(queue, added, tmp_path):
    further = 'n=$(ls a/checkpoints | wc -l); mkdir -p "a/checkpoints/step-00000000000$n"'
    job = added("a", f"mkdir -p a/checkpoints; {further}; [ $n -lt 6 ] && kill -9 $$; sleep 60")
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: len(begun(tmp_path, "a")) == 7)
        assert not queue.job(job.id).final_state
    psutil.Process(int(begun(tmp_path, "a")[-1].split()[0])).kill()


def test_what_was_begun_is_gone_on_with(queue, added, tmp_path):
    added("a", "mkdir -p a; touch a/config.yaml; echo $3 >> how; exit 1")
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: len(begun(tmp_path, "a")) == 2)
        ticks(supervisor, lambda: (tmp_path / "how").read_text().count("\n") == 2)
    assert (tmp_path / "how").read_text().split() == ["train", "resume"]


def test_a_supervisor_that_ends_leaves_its_jobs_to_the_next_one_and_none_begins_twice(
    queue, added, tmp_path
):
    job = added("a", "exec sleep 60")
    code = (
        "import sys; from pathlib import Path; from slipstream.jobs.queue import JobQueue; "
        "from slipstream.jobs.supervisor import Supervisor; "
        "Supervisor(JobQueue(Path(sys.argv[1]))).run()"
    )
    for end in (signal.SIGKILL, signal.SIGHUP, signal.SIGTERM):  # SIGHUP: its terminal was closed
        process = subprocess.Popen([sys.executable, "-c", code, str(queue.folder)])
        deadline = time.monotonic() + SECONDS
        while not (begun(tmp_path, "a") and has_supervisor(queue)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(ConfigError, match="Another supervisor"):
            Supervisor(queue)
        process.send_signal(end)
        process.wait(SECONDS)
        assert not has_supervisor(queue) and job_state(queue, job) == "running"
    with Supervisor(queue) as supervisor:
        assert supervisor.tick() == 1
    assert len(begun(tmp_path, "a")) == 1
    psutil.Process(int(begun(tmp_path, "a")[0].split()[0])).kill()


def test_a_job_waits_while_another_process_works_in_its_folder_and_holds_up_nobody(
    queue, added, tmp_path, four_cores
):
    first, second = added("a", "exec sleep 60"), added("b", "exec sleep 60")
    (tmp_path / "a").mkdir()
    with Supervisor(queue, four_cores) as supervisor:
        with acquire_lock(tmp_path / "a", "held"):  # as `slipstream train` by hand does
            ticks(supervisor, lambda: begun(tmp_path, "b"))
            assert not begun(tmp_path, "a") and not queue.job(second.id).reason
            (line, _), _ = list_jobs(queue)
            assert (line.job, line.state) == ("1", "running")  # the process, not its own
            assert line.reason == "waits for another process, which works in its folder"
            assert queue.job(first.id).reason == line.reason
        ticks(supervisor, lambda: begun(tmp_path, "a"))
    assert not queue.job(first.id).reason
    for name in "ab":
        psutil.Process(int(begun(tmp_path, name)[0].split()[0])).kill()


def test_a_job_that_finds_its_folder_taken_once_it_has_begun_waits(
    queue, added, tmp_path, monkeypatch
):
    job, folder = added("a", "exit 2"), tmp_path / "a"
    folder.mkdir()
    queue.record_start(job, 2, 0)
    (queue.folder / "1.txt").write_text("Another process is training it.")
    for held, ended in ((True, ""), (False, "failed")):
        monkeypatch.setenv(JOB_VARIABLE, f"{queue.folder}:{job.id}")
        with report_to_queue() as end, acquire_lock(folder, "") if held else nullcontext():
            end(2)
        now = queue.job(job.id)
        assert now.final_state == ended and now.attempts == 0
        assert now.reason.startswith("waits for another process" if held else "Another process")


def test_a_job_whose_time_budget_ended_is_stopped_until_it_is_retried(
    queue, added, tmp_path, monkeypatch
):
    job, sentence = added("a", "true"), "The time budget ended during: search."
    (queue.folder / "1.txt").write_text(f"Something else.\n{sentence}\n")
    monkeypatch.setenv(JOB_VARIABLE, f"{queue.folder}:{job.id}")
    with report_to_queue() as end:
        end(EXIT_TIME_BUDGET)
    now = queue.job(job.id)
    assert (job_state(queue, now), now.reason) == (STOPPED, sentence)
    with Supervisor(queue) as supervisor:
        assert supervisor.tick() == 0 and not begun(tmp_path, "a")
        queue.retry(now)
        ticks(supervisor, lambda: begun(tmp_path, "a"))


def test_a_job_that_is_stopped_before_it_has_its_folder_stops_nobody_else(
    queue, added, tmp_path, monkeypatch
):
    job, asked = added("a", "true"), []
    (tmp_path / "a").mkdir()
    status = Status("run", pid=os.getpid(), host=platform.node(), started=time.time())
    (tmp_path / "a" / "status.json").write_text(json.dumps(status.as_dict()))
    process = SimpleNamespace(send_signal=asked.append)
    monkeypatch.setattr(working, "find_process", lambda _: process)
    with acquire_lock(tmp_path / "a", "held"):
        working.stop_process(job)
        assert asked == [signal.SIGTERM] and not is_stop_requested(tmp_path / "a")
        queue.set_pid(job, os.getpid())
        working.stop_process(queue.job(job.id))
    assert len(asked) == 1 and is_stop_requested(tmp_path / "a")


def test_jobs_begin_in_their_order_as_cores_become_free(queue, added, tmp_path, four_cores):
    first, second, *_ = (added(name, "exec sleep 60") for name in "abcd")
    waiting = ["waits for `slipstream jobs run`", *["waits behind job 1"] * 3]
    assert [line.reason for line in list_jobs(queue)[0]] == waiting
    with Supervisor(queue, four_cores[:2]) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a") and begun(tmp_path, "b"))
        supervisor.tick()
        assert not begun(tmp_path, "c")
        waiting = ["waits for 1 of 2 cores, taken by job 1, job 2", "waits behind job 3"]
        assert [line.reason for line in list_jobs(queue)[0]] == ["", "", *waiting]
        queue.end(first, COMPLETE)  # as its process would, at its end
        os.kill(int(begun(tmp_path, "a")[0].split()[0]), signal.SIGKILL)
        ticks(supervisor, lambda: begun(tmp_path, "c"))
    assert job_state(queue, queue.job(second.id)) == "running"
    for name in "bc":
        psutil.Process(int(begun(tmp_path, name)[0].split()[0])).kill()


def test_who_needs_more_memory_than_there_is_waits_and_says_for_what(
    queue, added, tmp_path, monkeypatch, four_cores
):
    memory = SimpleNamespace(available=10 * GIB)
    monkeypatch.setattr(supervising, "total_memory", lambda: 100 * GIB)
    monkeypatch.setattr(supervising, "free_memory", lambda: memory.available)
    first = added("a", "exec sleep 60", memory=30 * GIB)
    second = added("b", "exec sleep 60", memory=30 * GIB)
    third = added("c", "exec sleep 60", memory=30 * GIB)

    def reason(job):
        return queue.job(job.id).reason

    with Supervisor(queue, four_cores) as supervisor:
        assert supervisor.tick() and not queue.is_running(first)  # --until-idle goes on
        assert reason(first) == "waits for 30.0 GiB of memory: beside other programs there are 8.0"
        memory.available = 60 * GIB
        ticks(supervisor, lambda: begun(tmp_path, "a"))
        said = "waits for 30.0 GiB of memory: beside job 1 there are 18.0"  # 30 to come
        assert reason(second) == said
        memory.available = 90 * GIB
        ticks(supervisor, lambda: begun(tmp_path, "b"))
        assert reason(third) == "waits for 30.0 GiB of memory: beside job 1, job 2 there are 12.0"
    for name in "ab":
        psutil.Process(int(begun(tmp_path, name)[0].split()[0])).kill()


def test_a_forecast_beyond_the_machine_waits_for_all_of_it(queue, added, tmp_path, monkeypatch):
    memory = SimpleNamespace(available=80 * GIB)
    monkeypatch.setattr(supervising, "total_memory", lambda: 100 * GIB)
    monkeypatch.setattr(supervising, "free_memory", lambda: memory.available)
    job = added("a", "exec sleep 60", memory=200 * GIB)
    with Supervisor(queue) as supervisor:
        supervisor.tick()
        reason = queue.job(job.id).reason
        assert reason == "waits for 72.0 GiB of memory: beside other programs there are 64.0"
        memory.available = 95 * GIB
        ticks(supervisor, lambda: begun(tmp_path, "a"))
    psutil.Process(int(begun(tmp_path, "a")[0].split()[0])).kill()


def test_a_job_that_is_to_stop_gets_a_signal_while_it_loads(queue, added, tmp_path, monkeypatch):
    job = added("a", "exec sleep 60")
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a"))
        queue.set_pid(job, int(begun(tmp_path, "a")[0].split()[0]))  # as slipstream does itself
        queue.set_target(job, STOPPED)
        monkeypatch.setattr(working, "find_process", psutil_process)  # it is called `sleep`
        ticks(supervisor, lambda: job_state(queue, queue.job(job.id)) == "stopped")
        for _ in range(5):
            supervisor.tick()
    assert len(begun(tmp_path, "a")) == 1 and not queue.job(job.id).reason


def psutil_process(job):
    return psutil.Process(job.pid) if psutil.pid_exists(job.pid) else None


def test_a_number_that_another_program_has_by_now_is_no_job(queue, added):
    job = added("a", "true")
    queue.set_pid(job, os.getppid())
    name = " ".join(psutil.Process(os.getppid()).cmdline())
    found = working.find_process(queue.job(job.id))
    assert found is None or "slipstream" in name


def test_a_folder_that_no_disk_can_hold_fails_its_job_and_no_supervisor(queue, tmp_path):
    queue.add("run", tmp_path / ("x" * 300), ["train"], ["resume"], HERE)
    with Supervisor(queue) as supervisor:
        supervisor.tick()
    ((line,), _) = list_jobs(queue)
    assert line.state == "failed" and "File name too long" in line.reason


def test_an_interpreter_that_is_gone_fails_the_job_in_words(queue, tmp_path):
    place = {"python": str(tmp_path / "nowhere"), "cwd": str(tmp_path), "variables": {}}
    job = queue.add("run", tmp_path / "a", ["train"], ["resume"], place)
    with Supervisor(queue) as supervisor:
        supervisor.tick()
    assert queue.job(job.id).final_state == "failed"
    assert "could not be started" in queue.job(job.id).reason


def test_where_no_process_may_choose_its_cores_jobs_begin_on_all(
    queue, added, tmp_path, monkeypatch
):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    added("a", "exec sleep 60")
    said = []
    with Supervisor(queue, notify=said.append) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a"))
    assert said[0].startswith("This system does not support CPU affinity")
    process = psutil.Process(int(begun(tmp_path, "a")[0].split()[0]))
    assert process.cpu_affinity() == sorted(os.sched_getaffinity(0))
    process.kill()


def test_supervisors_of_all_versions_hold_one_lock(queue):
    path = queue.folder / "supervisor.lock"
    with Supervisor(queue), path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_running_job_is_moved_to_other_cores(queue, added, tmp_path):
    job = added("a", "sleep 60; true")
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a"))
        number = int(begun(tmp_path, "a")[0].split()[0])
        queue.set_pid(job, number)  # as slipstream does itself
        process, last = psutil.Process(number), max(os.sched_getaffinity(0))
        ticks(supervisor, lambda: process.children())
        assert working.bind_to_cores(queue.job(job.id), [last])
        for one in [process, *process.children()]:
            assert one.cpu_affinity() == [last]
            one.kill()


@pytest.mark.parametrize("left", ["running", "complete"])
def test_a_job_that_was_resumed_by_hand_is_listed_as_it_is(
    queue, added, tmp_path, monkeypatch, left
):
    job = added("a", "true")
    queue.set_target(job, STOPPED)
    status = Status("run", left, pid=os.getpid(), host=platform.node(), started=time.time())
    monkeypatch.setattr("slipstream.jobs.job_list.get_status", lambda _: status)
    (tmp_path / "a").mkdir()
    with acquire_lock(tmp_path / "a", "") if left == "running" else nullcontext():
        assert [line.state for line in list_jobs(queue)[0]] == [left]
        queue.end(job, FAILED, "no such environment")
        (line,), _ = list_jobs(queue)
        assert line.state == ("running" if left == "running" else "failed")
        shown = [one.state for one in list_jobs(queue, include_ended=False)[0]]
        assert shown == (["running"] if left == "running" else [])


def test_a_number_that_another_program_has_by_now_holds_up_no_job(queue, added, tmp_path):
    added("a", "exec sleep 60")
    (tmp_path / "a").mkdir()
    left = Status("run", pid=os.getpid(), host=platform.node(), started=time.time())
    (tmp_path / "a" / "status.json").write_text(json.dumps(left.as_dict()))
    assert left.liveness() == "running"  # as where the clock was set back since
    with Supervisor(queue) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a"))
    psutil.Process(int(begun(tmp_path, "a")[0].split()[0])).kill()


def test_a_list_of_many_jobs_reads_the_table_once_and_each_status_once(
    queue, tmp_path, monkeypatch
):
    """Regression: reading 1,000 jobs took a quarter of a second of CPU time."""
    queue._table.execute("BEGIN")
    status = json.dumps(Status("run", "stopped", completed=7, total=9).as_dict())
    for n in range(100):
        folder = tmp_path / str(n)
        job = queue.add("run", folder, ["train"], ["resume"], HERE)
        folder.mkdir()
        (folder / "status.json").write_text(status)
        (folder / "provenance.json").write_text(json.dumps({"id": f"{n}"}))
        register_folder(folder, "run", "x", log=print) if n % 2 else queue.set_target(job, STOPPED)
    queue._table.execute("COMMIT")
    queries, read = [], []
    queue._table.set_trace_callback(queries.append)

    def look(path, *more, **others):
        read.append(path)
        return read_json(path, *more, **others)

    monkeypatch.setattr("slipstream.core.storage.status_file.read_json", look)
    lines, _ = list_jobs(queue)
    assert len(lines) == 100 and {line.progress for line in lines} == {"7 of 9 steps"}
    assert len(queries) == 1 and len(read) == len(set(read)) == 100


def test_a_clock_that_is_set_back_changes_no_order(queue, added, tmp_path, monkeypatch, four_cores):
    added("a", "exec sleep 60")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    later = added("b", "exec sleep 60")
    assert later.added == 0.0 and [job.name for job in queue.jobs()] == ["a", "b"]
    with Supervisor(queue, four_cores[:1]) as supervisor:
        ticks(supervisor, lambda: begun(tmp_path, "a"))
        supervisor.tick()
        assert not begun(tmp_path, "b")
        assert [line.name for line in list_jobs(queue)[0]] == ["a", "b"]
    psutil.Process(int(begun(tmp_path, "a")[0].split()[0])).kill()


def test_looks_that_take_longer_come_more_rarely(queue, monkeypatch):
    """Half a second of a core, of which it may have one in a hundred."""
    clock, slept = [0.0], []

    def look(self):
        clock[0] += 0.005 if not slept else 0.5
        return len(slept) < 2

    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(Supervisor, "tick", look)
    with Supervisor(queue) as supervisor:
        supervisor.run(until_idle=True)
    assert slept == pytest.approx([1.0, 50.0])


@given(st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=8), st.integers(1, 16))
def test_shares_are_disjoint_and_leave_nothing_that_somebody_may_use(wanted, many):
    jobs = [
        QueuedJob(n, "", "run", "", [], [], {}, COMPLETE, "", "", cores, 0, 0, 0, 0, 0.0)
        for n, cores in enumerate(wanted)
    ]
    while sum(map(min_cores, jobs)) > many and len(jobs) > 1:
        jobs.pop()
    jobs[0:1] = [j for j in jobs[:1] if min_cores(j) <= many] or jobs[:1]
    found = share_cores(jobs, range(many))
    used = [core for cores in found.values() for core in cores]
    assert all(found.values())
    if sum(map(min_cores, jobs)) <= many:
        assert len(used) == len(set(used))
        assert all(len(found[j.id]) == j.cores for j in jobs if j.cores)
        if any(j.cores is None for j in jobs):
            assert set(used) == set(range(many))


def test_it_is_not_idle_while_another_supervisors_job_has_not_left(queue, tmp_path):
    job = queue.add("run", tmp_path / "a", ["train"], ["resume"], HERE)
    handle = queue.acquire_lock(job)  # its process began under a supervisor that was killed
    with Supervisor(queue) as supervisor:
        assert supervisor.tick() == 1
        queue.end(job, COMPLETE)
        assert supervisor.tick() == 1  # it is closing its files
        os.close(handle)
        assert supervisor.tick() == 0
