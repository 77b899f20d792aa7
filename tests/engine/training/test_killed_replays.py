"""Runs that learn from a replay, killed at random moments: the same bits at their end."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from slipstream.core.storage import checkpoint
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

STEPS = 20_000
KILLS = 6
AGENTS = {
    "dqn": {"env": "cartpole", "agent": {"name": "dqn", "net_arch": [16, 8], "batch_size": 16}},
    "sac": {"env": "pendulum", "agent": {"name": "sac", "net_arch": [16, 16], "batch_size": 32}},
    "td3": {"env": "pendulum", "agent": {"name": "td3", "net_arch": [16, 16], "batch_size": 32}},
}
PROGRAM = (
    "import sys; from slipstream.training import trainer; "
    "from slipstream.training.runs.run import Run; "
    "run = Run.open(sys.argv[1]); trainer.resume(run); run.close()"
)


def _kill_after_a_checkpoint(path, seconds):
    """Lets a process go on with the run until it has saved once more and some time has passed."""
    folder = path / "checkpoints"
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = checkpoint.checkpoints(folder)[-1:]
    while child.poll() is None and checkpoint.checkpoints(folder)[-1:] == before:
        time.sleep(0.01)
    time.sleep(seconds)
    child.kill()
    child.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [150, 2 * STEPS], ids=["wrapped", "not wrapped"])
@pytest.mark.parametrize("agent", AGENTS)
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, agent, size):
    sizes = {"agent.buffer_size": size, "agent.n_step": 3, "agent.learning_starts": 100}
    rhythm = {"agent.iteration": 50, "agent.utd_ratio": 0.5}
    training = {"num_envs": 1, "members": 2, "total_timesteps": STEPS, "checkpoint_every": 0.05}
    config = resolve({**AGENTS[agent], "training": training}, {**sizes, **rhythm})
    whole = Run.create(config, tmp_path / "whole")
    train(whole.config, whole)
    whole.close()
    Run.create(config, tmp_path / "killed").close()
    draw, path = np.random.default_rng(5), tmp_path / "killed"
    for _ in range(KILLS):
        _kill_after_a_checkpoint(path, float(draw.uniform(0, 0.5)))
    again = Run.open(path)
    if again.result is None:
        resume(again)
    again.close()
    one, other = (
        checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]
        for run in (whole, again)
    )
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.tobytes() == other[name].tobytes(), name
