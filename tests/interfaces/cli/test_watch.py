"""`status`, `watch` and `stop`, of a run that another process trains."""

import signal
import subprocess
import sys
import time

import pytest

import slipstream as package
from slipstream.core.storage.signals import STOP
from slipstream.core.storage.status_file import read_status

LONG = ["train", "cartpole", "--num-envs", "8", "--total-timesteps", "50_000_000", "--out", "run"]
MAIN = [sys.executable, "-c", "from slipstream.cli import main; main()"]


def done_in(folder, above=0):
    """Waits until a run has done more steps than that; how many."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status = read_status(folder) if folder.is_dir() else None
        if status is not None and status.completed > above:
            return status.completed
        time.sleep(0.1)
    raise AssertionError(f"{folder} did not get beyond {above} steps")


@pytest.fixture
def training(tmp_path):
    """A process that trains for hours in ./run, past its first iteration; SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    process = subprocess.Popen([*MAIN, *LONG], cwd=tmp_path, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGHUP, before)
    done_in(tmp_path / "run")
    yield process
    process.kill()
    process.wait()


def test_a_run_is_watched_and_stopped_from_another_shell(slipstream, training, tmp_path):
    told = slipstream("status", "run")
    assert told.code == 0 and f"(process {training.pid} on" in told.out
    assert "training " in told.out and "of 50,000,000 steps" in told.out
    assert package.status("run").liveness() == "running"
    asked = slipstream("stop", "run")
    assert asked.code == 0 and "slipstream resume run" in asked.out
    assert training.wait(200) == 130
    assert slipstream("watch", "run").out.count("No process works on it") == 1  # and returns
    assert not (tmp_path / "run" / STOP).exists()
    assert "nothing to stop" in slipstream("stop", "run").out
    assert package.stop("run") is False


@pytest.mark.slow
def test_watch_without_a_name_tells_of_the_machine_and_of_all(slipstream, training, tmp_path):
    told = slipstream("watch")
    first, _, *table = told.out.splitlines()
    assert told.code == 0 and first.startswith("CPU ") and "GiB" in first
    row = next(line for line in table if str(tmp_path / "run") in line or " run " in line)
    assert "running" in row and "of 50,000,000 steps" in row


@pytest.mark.slow
def test_a_run_under_nohup_outlives_its_terminal(training, tmp_path):
    training.send_signal(signal.SIGHUP)
    done = done_in(tmp_path / "run")
    for _ in range(2):  # the status is written once a second: iterations lie between
        done = done_in(tmp_path / "run", done)
    assert training.poll() is None
    training.send_signal(signal.SIGTERM)
    assert training.wait(200) == 130


def test_a_killed_run_is_told_as_such(slipstream, training, tmp_path):
    training.send_signal(signal.SIGKILL)
    training.wait()
    told = slipstream("status", "run").out
    assert f"Process {training.pid} on" in told and "ended unexpectedly" in told
    assert "nothing to stop" in slipstream("stop", "run").out
    assert not (tmp_path / "run" / STOP).exists()


@pytest.mark.parametrize("command", ["status", "watch", "stop"])
def test_what_is_neither_run_nor_study_is_refused(slipstream, command):
    refused = slipstream(command, "nowhere")
    assert refused.code == 2 and "neither a run nor a study" in refused.err


def test_looking_loads_no_learning(tmp_path):
    (tmp_path / "config.yaml").touch()
    code = (
        "import sys\nfrom slipstream.studies.record.inspection import describe\n"
        f"print(describe({str(tmp_path)!r}))\n"
        "heavy = {'torch', 'numba', 'polars', 'optuna', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
