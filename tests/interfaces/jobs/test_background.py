"""--replace: whose folders it leaves alone, and what it says."""

import json
import os
import platform
from types import SimpleNamespace

import pytest

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.storage.atomic_io import acquire_lock
from slipstream.core.storage.status_file import Status
from slipstream.jobs import job_process
from slipstream.jobs.job_process import run_in_background, set_aside
from slipstream.studies.record.inspection import is_running


@pytest.fixture
def folder(tmp_path):
    """Return the directory of a run."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "config.yaml").write_text("env: cartpole\n")
    return tmp_path / "a b"


def test_a_folder_of_another_user_is_left_alone(folder, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=r"belongs to user \d+: --replace moves folders of yours"):
        set_aside(folder, print)
    assert folder.is_dir()


@pytest.mark.parametrize("state", ["running", "silent"])
def test_what_another_machine_works_on_is_left_alone(folder, monkeypatch, state):
    status = SimpleNamespace(host="elsewhere", pid=7, liveness=lambda: state)
    monkeypatch.setattr(job_process, "get_status", lambda _: status)
    with pytest.raises(ConfigError) as caught:
        set_aside(folder, print)
    assert f"process 7 on elsewhere: stop it there, with `slipstream stop '{folder}'`" in str(
        caught.value
    )
    assert folder.is_dir()


def test_a_process_that_the_clock_makes_a_later_one_is_at_work_by_its_lock(folder):
    left = Status("run", pid=os.getpid(), host=platform.node(), started=0.0)  # before it began
    (folder / "status.json").write_text(json.dumps(left.as_dict()))
    assert left.liveness() == "gone" and not is_running(folder)
    with acquire_lock(folder, "held"):
        assert is_running(folder)


def test_a_log_makes_its_folder_and_what_was_read_is_removed(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no luck\nexit 2\n")
    program.chmod(0o755)
    where = {"python": str(program), "cwd": str(tmp_path), "variables": {"PATH": "/bin"}}
    monkeypatch.setattr(job_process, "current_environment", lambda: where)
    log = tmp_path / "logs" / "deep" / "one.txt"
    for output in (None, log):
        with pytest.raises(ConfigError, match="The command ended early: no luck"):
            run_in_background(["train"], folder, output, print)
    assert log.read_text() == "no luck\n"
    assert not [one for one in (tmp_path / "state").rglob("*") if one.is_file()]
    with pytest.raises(ResourceError, match=r"one.txt may not be written \(File exists\)"):
        run_in_background(["train"], folder, log / "two.txt", print)
