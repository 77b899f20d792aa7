"""`slipstream jobs`, `--background`, `--replace`, `--cores`; runs and studies found by name."""

import os
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from slipstream.core.child_process import JOB_VARIABLE
from slipstream.core.storage.atomic_io import acquire_lock, is_locked
from slipstream.core.storage.status_file import read_status
from slipstream.jobs.job_process import set_aside
from slipstream.jobs.queue import user_queue

MAIN = [sys.executable, "-c", "from slipstream.cli import main; main()"]
SHORT = ["cartpole", "--num-envs", "8", "--total-timesteps", "4096", "--no-report"]
ENDLESS = ["cartpole", "--num-envs", "8", "--total-timesteps", "50_000_000", "--no-report"]


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """No job of the developer's is seen, none of a test's outlives it; cores stay as they were."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)
    for path in tmp_path.rglob("status.json"):
        status = read_status(path.parent)
        if status.liveness() == "running" and status.pid != os.getpid():
            os.kill(status.pid, signal.SIGKILL)


def ended(folder, seconds=120):
    deadline = time.monotonic() + seconds
    while is_locked(folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_training_in_the_background_is_found_watched_and_stopped_by_name(slipstream, tmp_path):
    told = slipstream("train", *ENDLESS, "--out", "night", "--background")
    assert told.code == 0, told.err
    status = read_status(tmp_path / "night")
    assert status.phase == "training" and f"Process {status.pid}" in told.out
    assert not list((tmp_path / "state").rglob("*.txt"))  # its log has what it says from here on
    assert os.getsid(status.pid) == status.pid  # a session of its own: no terminal ends it
    assert f"slipstream stop {shlex.quote(str(tmp_path / 'night'))}" in told.out
    listed = slipstream("jobs")
    assert "night  run   running" in listed.out and "night/log.txt" in told.out
    os.chdir(tmp_path.parent)
    try:
        assert "training " in slipstream("status", "night").out  # by its name, from anywhere
        assert slipstream("stop", "night").code == 0
    finally:
        os.chdir(tmp_path)
    ended(tmp_path / "night")
    assert "night  run   stopped" in slipstream("jobs").out


@pytest.mark.slow
def test_a_log_is_printed_and_followed_to_the_end(slipstream, tmp_path):
    assert slipstream("train", *ENDLESS, "--out", "a", "--background").code == 0
    asked = [*MAIN, "log", "a", "--follow"]
    with subprocess.Popen(asked, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as following:
        assert "started" in following.stdout.readline()
        assert slipstream("stop", "a").code == 0
        assert "stopped" in following.stdout.read().splitlines()[-1]
    assert following.returncode == 0
    told = slipstream("log", "a").out
    assert told == (tmp_path / "a" / "log.txt").read_text() and "parallel envs" in told
    assert slipstream("log", "nobody").code == 2


def test_stopping_a_run_of_the_queue_stops_its_job(slipstream, tmp_path):
    assert slipstream("jobs", "add", "--", "train", *ENDLESS, "--out", "a").code == 0
    with subprocess.Popen([*MAIN, "jobs", "run", "--until-idle"], cwd=tmp_path) as supervisor:
        deadline = time.monotonic() + 120
        while not (tmp_path / "a" / "status.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert slipstream("stop", "a").code == 0
        assert supervisor.wait(120) == 0
    assert "a     run   stopped" in slipstream("jobs").out


def test_a_start_that_fails_is_said_at_once_with_its_own_words(slipstream, tmp_path):
    told = slipstream("train", *SHORT, "--set", "env.nope=1", "--background")
    assert told.code == 2 and "nope" in told.err and "Traceback" not in told.err
    told = slipstream("train", *SHORT, "--log", "out.txt")
    assert told.code == 2 and "Add --background" in told.err


def test_what_has_ended_is_not_stopped_and_what_is_complete_not_tried_again(slipstream, tmp_path):
    assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", "a b").code == 0
    with user_queue() as queue:
        queue.end(queue.job(1), "failed", "no such environment.")
    told = slipstream("jobs", "stop", "1")
    assert told.code == 2 and "Job 1 is failed (no such environment): there is" in told.err
    assert "no such environment" in slipstream("jobs", "--all").out
    with user_queue() as queue:
        queue.end(queue.job(1), "complete")
    assert slipstream("jobs", "stop", "²").code == 2  # a name
    told = slipstream("jobs", "retry", "1")
    assert told.code == 2 and "Job 1 is complete: there is nothing to do." in told.err
    another = shlex.split(told.err.split("`")[1])  # which works when pasted
    assert another[:2] == ["slipstream", "jobs"] and slipstream(*another[1:]).code == 0
    with user_queue() as queue:
        assert queue.job(2).folder == str(tmp_path / "a b-again")
        assert queue.job(2).command[-1] == "cartpole"


def test_a_job_that_is_stopped_while_another_process_has_its_folder_says_so(slipstream, tmp_path):
    assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", "a").code == 0
    (tmp_path / "a").mkdir()
    with acquire_lock(tmp_path / "a", "held"):
        told = slipstream("jobs", "stop", "a").out
    assert (
        "will not start until" in told
        and f"`slipstream stop {shlex.quote(str(tmp_path / 'a'))}` stops" in told
    )


def test_a_job_that_was_kept_from_its_folder_waits_though_that_process_has_ended_by_now(
    slipstream, tmp_path, monkeypatch
):
    assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", "a b").code == 0
    (tmp_path / "a b").mkdir()
    held, said = acquire_lock(tmp_path / "a b", "held"), []

    def say(text):
        said.append(text)
        held.close()

    monkeypatch.setattr("slipstream.core.storage.atomic_io._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("slipstream.cli.error_reporting.print_error", say)
    with user_queue() as queue:
        monkeypatch.setenv(JOB_VARIABLE, f"{queue.folder}:1")
        assert slipstream(*queue.job(1).command).code == 2
        assert not is_locked(tmp_path / "a b") and not queue.job(1).final_state
        assert queue.job(1).reason == "waits for another process"
    assert shlex.split(said[0].split("`")[1]) == ["slipstream", "stop", f"{tmp_path}/a b"]


def test_a_table_of_jobs_that_is_lost_is_said_in_words(slipstream, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(JOB_VARIABLE, f"{tmp_path}/file:1")
    told = slipstream("train", *SHORT)
    assert told.code == 2 and f"got '{tmp_path}/file:1'" in told.err
    assert "unset SLIPSTREAM_JOB" in told.err


def test_a_job_that_is_still_loading_is_stopped_by_its_folder(slipstream, tmp_path, monkeypatch):
    assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", "a b").code == 0
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "config.yaml").touch()
    process = SimpleNamespace(send_signal=lambda number: os.close(handle))
    monkeypatch.setattr("slipstream.jobs.job_process.find_process", lambda _: process)
    with user_queue() as queue:
        handle = queue.acquire_lock(queue.job(1))  # as its process does
        assert "Resume with: slipstream resume 'a b'" in slipstream("stop", "a b").out
        assert queue.job(1).target_state == "stopped" and not queue.is_running(queue.job(1))
        queue.retry(queue.job(1))
        handle = queue.acquire_lock(queue.job(1))
        set_aside(tmp_path / "a b", print)
        assert queue.job(1).final_state == "failed" and not queue.is_running(queue.job(1))
    assert (tmp_path / "a b.replaced-1").is_dir()


def test_a_folder_is_one_job_however_it_is_spelled(slipstream, tmp_path):
    (tmp_path / "current_environment").mkdir()
    (tmp_path / "link").symlink_to("current_environment")
    for folder, code in (
        ("current_environment/a", 0),
        ("link/a", 2),
        ("current_environment/../link/a", 2),
    ):
        assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", folder).code == code
    assert "Job 1 will not start" in slipstream("jobs", "stop", "link/a").out
    with user_queue() as queue:
        queue.retry(queue.job(1))
        (tmp_path / "current_environment" / "a").mkdir()
        (tmp_path / "current_environment" / "a" / "config.yaml").touch()
        slipstream("stop", "current_environment/../link/a")
        assert queue.job(1).target_state == "stopped"


@pytest.mark.slow
def test_replace_moves_what_lies_there_and_deletes_nothing(slipstream, tmp_path):
    assert slipstream("train", *ENDLESS, "--out", "a", "--background").code == 0
    first = read_status(tmp_path / "a").pid
    told = slipstream("train", *SHORT, "--out", "a", "--replace")
    assert told.code == 0 and "a.replaced-1" in told.out
    assert read_status(tmp_path / "a.replaced-1").pid == first
    assert read_status(tmp_path / "a.replaced-1").state == "stopped"
    assert read_status(tmp_path / "a").state == "complete"
    assert "a.replaced-1  run   stopped" in slipstream("jobs").out
    assert slipstream("train", *SHORT, "--out", "a", "--replace").code == 0
    assert (tmp_path / "a.replaced-2" / "result.json").is_file()


def test_replace_stops_nothing_for_what_cannot_begin(slipstream, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("env: cartpole\n")
    told = slipstream("train", "forex", "--set", "env.data.folder=gone", "--out=a", "--replace")
    assert told.code == 2 and "gone" in told.err
    assert [path.name for path in tmp_path.iterdir() if path.name != "state"] == ["a"]


@pytest.mark.parametrize("made", ["file", "folder"])
def test_replace_leaves_alone_what_is_no_run(slipstream, tmp_path, made):
    if made == "file":
        (tmp_path / "a").write_text("my notes")
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "notes.txt").write_text("mine")
    told = slipstream("train", *SHORT, "--out", "a", "--replace")
    assert told.code == 2 and "neither a run nor a study" in told.err
    assert (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_queue_is_worked_off_from_configs_as_they_were(slipstream, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("env: cartpole\ntraining: {num_envs: 8, total_timesteps: 4096}\n")
    assert slipstream("jobs", "add", "--", "train", "mine.yaml", "--out", "a").code == 0
    config.write_text("env: no_such_environment\n")
    assert slipstream("jobs", "add", "--", "train", "mine.yaml").code == 2
    assert slipstream("jobs", "add", "--", "train", *SHORT, "--out", "b").code == 0
    with user_queue() as queue:  # what fails only once it runs
        job = queue.jobs()[0]
        words = ["train", "--no-such-option"]
        queue.add("run", tmp_path / "c", words, words, job.environment)
    assert slipstream("jobs", "stop", "b").code == 0
    waiting = slipstream("jobs").out.splitlines()
    assert [line.split()[3] for line in waiting[1:]] == ["waiting", "stopped", "waiting"]
    worked = slipstream("jobs", "run", "--until-idle", "--cores", "1")
    assert worked.code == 0 and "Job 1 (a): complete." in worked.out
    assert (tmp_path / "a" / "report.html").is_file() and not (tmp_path / "b").exists()
    told = slipstream("jobs", "--all").out.splitlines()
    states = {line.split()[1]: line for line in told[1:]}
    assert "complete" in states["a"] and "stopped" in states["b"] and "failed" in states["c"]
    assert "--no-such-option" in states["c"]
    assert slipstream("jobs", "retry", "b").code == 0
    assert "Job 2 (b): complete." in slipstream("jobs", "run", "--until-idle").out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["add", "--", "list"], "A job must be `train`, `tune`, `resume`, `paper start` or"),
        (["add", "--", "train", "cartpole", "--nope"], "--nope"),
        (["add", "--memory", "1e300", "--", "train", "cartpole"], "of this machine"),
        (["add", "--cores", "9999", "--", "train", "cartpole"], "of this machine"),
        (["stop", "nothing"], "No job is called nothing"),
        (["stop", "9" * 30], "There is no job 999"),
        (["retry", "9"], "There is no job 9"),
    ],
)
def test_what_is_no_job_is_refused_in_words(slipstream, given, words):
    told = slipstream("jobs", *given)
    assert told.code == 2 and words in told.err


def test_a_job_without_a_folder_is_stopped_by_name_and_by_path(slipstream, tmp_path):
    place = {"python": sys.executable, "cwd": str(tmp_path), "variables": {}}
    with user_queue() as queue:
        first = queue.add("run", tmp_path / "x" / "a", ["train"], ["resume"], place)
        second = queue.add("run", tmp_path / "x" / "b", ["train"], ["resume"], place)
    for name, job in (("a", first), ("x/b", second)):  # names with slashes are paths
        told = slipstream("stop", name)
        assert told.code == 0 and f"Job {job.id} will not start until" in told.out
    with user_queue() as queue:
        assert [job.target_state for job in queue.jobs()] == ["stopped", "stopped"]
    assert slipstream("stop", "c").code == 2


def test_jobs_keep_the_space_that_they_were_added_with(slipstream, tmp_path):
    (tmp_path / "mine.yaml").write_text("agent.learning_rate: {low: 1e-4, high: 1e-3}\n")
    words = ["tune", "cartpole", "--space", "mine.yaml", "--study-name", "team/night"]
    told = slipstream("jobs", "add", "--memory", "1", "--", *words)
    assert told.code == 0, told.err
    with user_queue() as queue:
        (job,) = queue.jobs()
    assert job.folder.endswith("team/night") and job.name == "night"
    space = next(word for word in job.command if word.startswith("--space="))
    assert str(queue.folder / "configs" / "mine-") in space


def test_a_budget_of_cores_needs_no_binding_and_other_commands_say_so(slipstream, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_setaffinity", refuse)
        told = slipstream("jobs", "run", "--until-idle", "--cores", "1")
        assert told.code == 0 and "all jobs share all cores" in told.out, told.err
        told = slipstream("list", "--cores", "1")
    assert told.code == 2 and "this system does not support CPU affinity" in told.err


def test_a_second_supervisor_is_refused(slipstream):
    with user_queue() as queue:
        from slipstream.jobs.supervisor import Supervisor

        with Supervisor(queue):
            told = slipstream("jobs", "run")
    assert told.code == 2 and "Another supervisor" in told.err


def test_two_of_one_name_are_told_apart_by_their_paths(slipstream, tmp_path):
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        assert slipstream("train", *SHORT, "--out", f"{place}/same").code == 0
    told = slipstream("status", "same")
    assert told.code == 2 and f"{tmp_path}/x/same" in told.err and f"{tmp_path}/y/same" in told.err
    assert slipstream("status", "x/same").code == 0


def test_resume_takes_options_of_what_it_resumes_alone(slipstream, tmp_path):
    assert slipstream("train", *SHORT, "--out", "a").code == 0
    told = slipstream("resume", "a", "--hours", "2")
    assert told.code == 2 and "--hours applies only to studies" in told.err


def test_any_command_binds_its_process_to_so_many_cores(slipstream):
    assert slipstream("list", "--cores", "1").code == 0
    assert len(os.sched_getaffinity(0)) == 1


@pytest.mark.parametrize("words", ["train cartpole", "evaluate a", "study report a", "jobs run"])
def test_more_cores_than_there_are_is_refused(slipstream, words):
    told = slipstream(*words.split(), "--cores", "9999")
    assert told.code == 2 and "--cores 9999 is too large: this process may use" in told.err
