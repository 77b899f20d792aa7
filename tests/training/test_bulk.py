"""What is too large for a pipe is written by the process that holds it, once, and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError
from slipstream.training import checkpoint
from slipstream.training.config import resolve
from slipstream.training.events import Updated
from slipstream.training.interruption import Interrupted
from slipstream.training.run import Run
from slipstream.training.trainer import resume, train

HOARDER = '''
"""REINFORCE that keeps the sum of every rollout's rewards, and learns at a rate that follows."""
import importlib.util
import sys

import numpy as np

_spec = importlib.util.spec_from_file_location("reinforce_of_hoarder", {path!r})
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)


class Config(_module.Config):
    pass


class Agent(_module.Agent):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sums = [[] for _ in range(self.members)]

    def update(self, rollout, progress=0.0, run=None):
        by_member = rollout.reward.reshape(len(rollout.reward), self.members, -1)
        for own, reward in zip(self.sums, by_member.sum((0, 2)), strict=True):
            own.append(reward)
        self.rate = np.array([0.1 + np.mean(own) % 1.0 for own in self.sums])[:, None, None]
        return super().update(rollout, progress)

    def bulk(self, member):
        return {{f"rollout-{{k:03d}}": np.array(v) for k, v in enumerate(self.sums[member])}}

    def load_bulk(self, member, chunks):
        self.sums[member] = [chunk[()] for _, chunk in sorted(chunks)]
'''


class StopAt:
    def __init__(self, n):
        self.n = n

    def __call__(self, event):
        if isinstance(event, Updated) and event.progress.iterations == self.n:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def config(tmp_path):
    reinforce = Path(__file__).parents[1] / "agents/reinforce.py"
    (tmp_path / "hoarder.py").write_text(HOARDER.format(path=str(reinforce)))
    settings = {
        "env": {"name": "cartpole", "max_steps": 50},
        "agent": {"name": str(tmp_path / "hoarder.py"), "steps": 32},
        "training": {"members": 3, "num_envs": 8, "total_steps": 2_560, "checkpoint_every": 0.2},
        "evaluation": {"episodes": 10, "every": 0.5},
    }
    return resolve(settings)


def stopped(config, path):
    run = Run.create(config, path)
    with pytest.raises(Interrupted):
        train(run.config, run, [StopAt(5)])
    run.close()
    return Run.open(run.path)


def weights(run):
    newest = checkpoint.checkpoints(run.path / "checkpoints")[-1]
    return {name: value.tobytes() for name, value in checkpoint.load(newest)[0].items()}


def test_resume_is_exact_with_other_shards(config, tmp_path):
    whole = Run.create(config, tmp_path / "whole")
    train(whole.config, whole)
    whole.close()
    run = stopped(resolve(config, {"training.shards": 2}), tmp_path / "stopped")
    files = sorted(file.name for file in run.bulk.glob("member-001/*"))
    assert files == [f"rollout-{k:03d}.chunk" for k in range(5)]
    ages = {file: file.stat().st_mtime_ns for file in run.bulk.glob("*/*")}
    again = Run(run.path, resolve(run.config, {"training.shards": 1}))
    resume(again)
    again.close()
    assert weights(whole) == weights(again)
    assert len(list(run.bulk.glob("*/*"))) == 3 * 10
    assert all(file.stat().st_mtime_ns == age for file, age in ages.items())  # not written again


def test_a_damaged_chunk_is_named(config, tmp_path):
    run = stopped(config, tmp_path / "stopped")
    (run.bulk / "member-002/rollout-003.chunk").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"member-002/rollout-003\.chunk"):
        resume(run)
    run.close()
    assert np.all([file.exists() for file in run.bulk.glob("*/*")])
