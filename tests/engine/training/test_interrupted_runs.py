"""Runs that are asked to stop after any iteration: their last state has the same bits."""

import pytest

from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

_ROLLOUTS = {"agent.n_steps": 64, "agent.batch_size": 32}
_REPLAY = {"agent.learning_starts": 100, "agent.iteration": 50, "agent.batch_size": 16}
RUNS = {
    "ppo": ("cartpole", "ppo", _ROLLOUTS),
    "dqn": ("cartpole", "dqn", _REPLAY),
    "td3": ("pendulum", "td3", _REPLAY),
    "sac": ("pendulum", "sac", _REPLAY),
    "gym": ("gym:Pendulum-v1", "sac", _REPLAY),
}


def _stop_after(run, iterations):
    """Ask for a stop at the end of an iteration."""
    left = [iterations]

    def listen(event):
        if isinstance(event, Updated):
            left[0] -= 1
            if left[0] == 0:
                request_stop(run.path)

    return listen


def _last(run):
    folder = checkpoint.checkpoints(run.path / "checkpoints")[-1]
    tensors, manifest = checkpoint.load(folder)
    return {name: value.tobytes() for name, value in tensors.items()}, manifest["bulk"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_asked_to_stop_ends_with_the_same_state(tmp_path, name):
    target, agent, sizes = RUNS[name]
    training = {"num_envs": 2, "total_timesteps": 640, "checkpoint_every": 0.25}
    sizes = {**sizes, "agent.net_arch": [8, 8], "evaluation.episodes": 2}
    config = resolve({"env": target, "agent": {"name": agent}, "training": training}, sizes)
    whole = Run.create(config, tmp_path / "whole")
    iterations = []
    train(config, whole, [lambda event: iterations.append(isinstance(event, Updated))])
    whole.close()
    count = sum(iterations)
    for after in sorted({1, count // 2, count}):  # the last one cuts the last validation short
        run = Run.create(config, tmp_path / f"after-{after}")
        with pytest.raises(Interrupted):
            train(config, run, [_stop_after(run, after)])
        run.close()
        again = Run.open(run.path)
        resume(again)
        again.close()
        assert _last(again) == _last(whole), after
        weights = [sorted(one.path.glob("best/*/*.safetensors")) for one in (again, whole)]
        assert [one.read_bytes() for one in weights[0]] == [one.read_bytes() for one in weights[1]]
