"""A kernel's mask is honoured from the first rollout to the evaluation."""

from __future__ import annotations

import pytest

from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import train

# Choosing what the mask forbids costs 1; a policy that is never told would pay.
KERNEL = """
from slipstream.kernels.classic.probes import *
from slipstream.kernels.spec import EnvSpec
from gymnasium import spaces


def step(s, action, p, d):
    allowed = 1 if s.seen[0] > 0.0 else 0
    reward = 0.0 if int(action[0]) == allowed else -1.0
    s.time = s.time + 1
    s.seen[0] = -s.seen[0]
    return reward, s.time >= 6, False


def mask(s, p, d, out):
    out[0] = s.seen[0] <= 0.0
    out[1] = s.seen[0] > 0.0


def spec(p, d):
    return EnvSpec(spaces.Box(-1.0, 1.0, (WIDTH,), np.float32), spaces.Discrete(2))
"""


@pytest.mark.parametrize("members", [1, 2])
def test_forbidden_choices_are_never_taken(tmp_path, members):
    path = tmp_path / "choosy.py"
    path.write_text(KERNEL)
    agent = {"n_steps": 16, "batch_size": 64}
    training = {"num_envs": 8, "total_timesteps": 512, "members": members}
    config = resolve({"env": {"name": str(path)}, "agent": agent, "training": training})
    run = Run.create(config, tmp_path / "run")
    result = train(run.config, run)
    run.close()
    assert [member["training_score"] for member in result["members"]] == [0.0] * members
    assert [member["best_score"] for member in result["members"]] == [0.0] * members
