"""The queue's table: what it promises of rows, locks and folders."""

import os
import sqlite3
import subprocess
import sys

import pytest

from slipstream.core.child_process import JOB_VARIABLE
from slipstream.core.errors import CheckpointError, ConfigError, ResourceError
from slipstream.jobs.job_list import job_state
from slipstream.jobs.job_process import report_to_queue
from slipstream.jobs.queue import COMPLETE, FAILED, STOPPED, JobQueue

PLACE = {"python": sys.executable, "cwd": "/", "variables": {}}


@pytest.fixture
def queue(tmp_path):
    with JobQueue(tmp_path / "queue") as queue:
        yield queue


def add(queue, folder, **more):
    return queue.add("run", folder, ["train", "cartpole"], ["resume", str(folder)], PLACE, **more)


def test_a_job_is_there_for_every_process_that_opens_the_table(queue, tmp_path):
    job = add(queue, tmp_path / "a", cores=2, memory=2**30)
    with JobQueue(queue.folder) as other:
        assert other.job(job.id) == job
    assert (job.name, job.kind, job.cores, job.memory, job.progress) == ("a", "run", 2, 2**30, -1)
    assert job.command == ["train", "cartpole"] and job.environment == PLACE
    assert job_state(queue, job) == "waiting"


def test_what_was_added_is_synchronous_on_the_disk(queue):
    assert queue._table.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert queue._table.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_a_folder_has_one_job_that_has_not_ended(queue, tmp_path):
    first = add(queue, tmp_path / "a")
    with pytest.raises(ConfigError, match="Another job of this queue that has not ended writes"):
        add(queue, tmp_path / "a")
    queue.end(first, FAILED, "no such environment")
    second = add(queue, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"writes .* by now"):
        queue.retry(queue.job(first.id))
    queue.end(second, COMPLETE)
    queue.retry(queue.job(first.id))
    assert job_state(queue, queue.job(first.id)) == "waiting"


def test_a_number_that_no_job_has_is_named(queue):
    with pytest.raises(ConfigError, match="There is no job 7"):
        queue.job(7)


def test_a_lock_is_held_by_whoever_inherits_it(queue, tmp_path):
    job = add(queue, tmp_path / "a")
    assert not queue.is_running(job)
    handle = queue.acquire_lock(job)
    assert (
        queue.acquire_lock(job) is None
        and queue.is_running(job)
        and job_state(queue, job) == "running"
    )
    child = subprocess.Popen(["sleep", "60"], pass_fds=[handle])
    os.close(handle)
    assert queue.is_running(job) and queue.acquire_lock(job) is None
    child.kill()
    child.wait()
    assert not queue.is_running(job)


def test_states_follow_what_is_wanted(queue, tmp_path):
    job = add(queue, tmp_path / "a")
    handle = queue.acquire_lock(job)
    queue.set_target(job, STOPPED)
    assert job_state(queue, queue.job(job.id)) == "stopping"
    os.close(handle)
    assert job_state(queue, queue.job(job.id)) == "stopped"
    queue.retry(queue.job(job.id))
    assert job_state(queue, queue.job(job.id)) == "waiting"


def test_a_damaged_table_is_a_paragraph(tmp_path):
    folder = tmp_path / "queue"
    folder.mkdir()
    (folder / "jobs.sqlite").write_bytes(b"no table at all" * 1000)
    with pytest.raises(CheckpointError, match="cannot be used"):
        JobQueue(folder)


def test_a_table_that_may_not_be_written_is_a_paragraph(queue, tmp_path, monkeypatch):
    queue._table.close()
    queue._table = sqlite3.connect(f"file:{queue.folder}/jobs.sqlite?mode=ro", uri=True)
    with pytest.raises(ResourceError, match="cannot be written"):
        add(queue, tmp_path / "a")


def test_a_full_disk_is_a_paragraph_and_costs_no_job(queue, tmp_path):
    kept = add(queue, tmp_path / "a")
    pages = queue._table.execute("PRAGMA page_count").fetchone()[0]
    queue._table.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(ResourceError, match=r"disk is full.*Free some space"):
        for n in range(200):
            add(queue, tmp_path / f"{n:0200}")
    queue._table.execute("PRAGMA max_page_count=1000000")
    assert queue.job(kept.id) == kept
    assert add(queue, tmp_path / "b").id == queue.jobs()[-1].id


@pytest.mark.parametrize("given", ["x", "", ":1", "{}:x", "{}:1", "/nowhere:1"])
def test_a_variable_that_names_no_job_is_a_paragraph(tmp_path, monkeypatch, given):
    monkeypatch.setenv(JOB_VARIABLE, given.format(tmp_path))
    with (
        pytest.raises(ConfigError, match=r"must be FOLDER:ID .*unset SLIPSTREAM_JOB"),
        report_to_queue(),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
