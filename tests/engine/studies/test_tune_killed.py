"""A real study on CartPole: the same bits with other workers and group sizes, and after kills."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from killed_studies import CONFIG, command, contents, whole

from slipstream.studies.record.folder import StudyFolder


def kill_at_random(folder: Path, kills: int, *more: str) -> int:
    """Kills the study with all its processes while it works; returns how often, then it ends."""
    folder.mkdir(parents=True)
    (folder / "c.yaml").write_text(CONFIG)
    draws, hits = random.Random(kills), 0
    study = StudyFolder(folder / "one")
    while hits < kills:
        workers = str(draws.choice((1, 2)))
        child = subprocess.Popen(
            command(folder, "--workers", workers, *more),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not study.is_locked and child.poll() is None:
            time.sleep(0.02)
        time.sleep(draws.uniform(0.0, 2.0))
        if child.poll() is not None:
            assert child.returncode == 0
            break
        os.killpg(child.pid, signal.SIGKILL)
        hits += 1
        child.wait()
    subprocess.run(command(folder, *more), check=True, capture_output=True)
    return hits


@pytest.mark.slow
def test_workers_and_group_sizes_change_nothing(tmp_path):
    first = whole(tmp_path / "a", "--workers", "1", "--group-size", "6")
    assert len(first[0]) == 5 and len(first[3]) == sum(2 for v in first[1] if v[2] == "complete")
    assert whole(tmp_path / "b", "--workers", "2", "--group-size", "3") == first


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_leaves_a_study_that_can_be_resumed(tmp_path, number):
    (tmp_path / "c.yaml").write_text(CONFIG)
    study = StudyFolder(tmp_path / "one")
    with subprocess.Popen(
        command(tmp_path, "--total-timesteps", "60_000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "Using Vectorized Environments: 8 parallel envs" in line:
                break
        until = time.monotonic() + 200.0
        while not list(study.path.glob("live/search-*.state")):  # at a first milestone
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        child.send_signal(number)
        _, told = child.communicate(timeout=90)
    assert child.returncode == 130
    assert f"slipstream resume {shlex.quote(str(study.path))}" in told
    assert not study.is_locked and list((study.path / "live").glob("search-*.state"))
    assert study.result is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_killed_twenty_times_is_the_same_study(tmp_path):
    longer = ("--total-timesteps", "400_000")  # it must not end before the last kill
    expected = whole(tmp_path / "whole", *longer)
    assert kill_at_random(tmp_path / "killed", 20, *longer) == 20
    assert contents(tmp_path / "killed") == expected
