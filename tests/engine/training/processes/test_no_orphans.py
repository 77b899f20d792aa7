"""Shards have worker processes of their own, and none of them outlives anyone."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

SCRIPT = """
import slipstream, sys

slipstream.train(
    {
        "env": "gym:CartPole-v1",
        "agent": {"name": "ppo", "n_steps": 32, "net_arch": [8], "n_epochs": 1, "batch_size": 64},
        "training": {"num_envs": 2, "members": 2, "shards": 2, "backend": "process",
                     "workers": 1, "total_timesteps": 50_000_000},
        "evaluation": {"episodes": 1, "every": 1.0},
    },
    out=sys.argv[1], report=False,
)
"""


def family(parent, least, seconds=120.0):
    """Descendants, once there are so many."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = psutil.Process(parent.pid).children(recursive=True)
        if len(found) >= least or parent.poll() is not None:
            return found
        time.sleep(0.05)
    return []


def lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "whom",
    ["trainer", *(pytest.param(one, marks=pytest.mark.slow) for one in ("shard", "interrupted"))],
)
def test_nobody_is_left(whom, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            found = family(parent, 6)  # two shards, each with a server and a worker
            assert len(found) >= 6, parent.stderr.read() if parent.poll() is not None else found
            until = time.monotonic() + 60.0
            while not (tmp_path / "run" / "metrics.csv").exists() and time.monotonic() < until:
                time.sleep(0.05)
            found = psutil.Process(parent.pid).children(recursive=True)
            shards = psutil.Process(parent.pid).children()
            if whom == "shard":
                os.kill(shards[0].pid, signal.SIGKILL)
            elif whom == "trainer":
                os.kill(parent.pid, signal.SIGKILL)
            else:  # as a terminal sends it: to all of them
                os.killpg(parent.pid, signal.SIGTERM)
            parent.wait(120)
        finally:
            parent.kill()
    left = psutil.wait_procs(found, timeout=60.0)[1]
    assert not [p for p in left if lives(p)]
    assert parent.returncode != 0
