"""What is too large for a pipe is written by the process that holds it, once, and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

Q_LEARNING = Path(__file__).parents[1] / "samples/q_learning.py"


class StopAt:
    def __init__(self, n):
        self.n = n

    def __call__(self, event):
        if isinstance(event, Updated) and event.progress.iterations == self.n:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def config():
    settings = {
        "env": {"name": "cartpole", "max_steps": 50},
        "agent": {"name": str(Q_LEARNING), "steps": 32, "buffer_size": 1_500, "alpha": 0.5},
        "training": {
            "members": 3,
            "num_envs": 8,
            "total_timesteps": 2_560,
            "checkpoint_every": 0.2,
        },
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


@pytest.mark.slow
def test_resume_is_exact_with_other_shards(config, tmp_path):
    whole = Run.create(config, tmp_path / "whole")
    train(whole.config, whole)
    whole.close()
    run = stopped(resolve(config, {"training.shards": 2}), tmp_path / "stopped")
    before = {file: file.stat().st_mtime_ns for file in run.bulk.glob("*/*")}
    again = Run(run.path, resolve(run.config, {"training.shards": 1}))
    resume(again)
    again.close()
    assert weights(whole) == weights(again)
    after = {file: file.stat().st_mtime_ns for file in run.bulk.glob("*/*")}
    kept = before.keys() & after.keys()
    assert len(kept) > 3 * 20  # most chunks of the ring are those of before the stop ...
    assert all(after[file] == before[file] for file in kept)  # ... and were not written again
    assert {file.name for file in after} == {file.name for file in whole.bulk.glob("*/*")}


def test_a_damaged_chunk_is_named(config, tmp_path):
    run = stopped(config, tmp_path / "stopped")
    chunk = min((run.bulk / "member-002").glob("*"))
    chunk.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=rf"member-002/{chunk.stem}\.chunk"):
        resume(run)
    run.close()
    assert np.all([file.exists() for file in run.bulk.glob("*/*")])
