"""Copies are closed when an exception passes: workers that nobody closed live on, unseen."""

import pytest

import slipstream
from slipstream.core.errors import KernelError
from slipstream.gym import gymnasium_environment
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.report.run_evaluation import evaluate_game, random_policy
from slipstream.training import shard
from slipstream.training.autotuner import BenchmarkCase, measure_steps
from slipstream.training.backend import make_workers
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.policies import evaluate_best
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

CONFIG = {
    "env": {"name": "gym:CartPole-v1"},
    "agent": {"name": "ppo", "n_steps": 16, "net_arch": [8], "batch_size": 64},
    "training": {"total_timesteps": 256, "num_envs": 16, "backend": "serial", "shards": 1},
    "evaluation": {"episodes": 2},
}


class Counted(ForeignEnv):
    """Counts those that are open, and raises where it is begun or stepped if it is `broken`."""

    open, broken = 0, True

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        Counted.open += 1

    def close(self):
        super().close()
        Counted.open -= 1

    def reset_rows(self, obs, mask=None):
        if self.broken:
            raise KernelError("broken on purpose")
        super().reset_rows(obs, mask)

    def begin(self, *args):
        if self.broken:
            raise KernelError("broken on purpose")
        super().begin(*args)


def raising(*_, **__):
    raise KernelError("broken on purpose")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return slipstream.train(CONFIG, out=out, report=False, log=lambda said: None)


@pytest.fixture
def environment(monkeypatch):
    found = resolve_environment("gym:CartPole-v1", {})
    monkeypatch.setattr(Counted, "open", 0)
    monkeypatch.setattr(gymnasium_environment, "ForeignEnv", Counted)
    return found


@pytest.mark.parametrize(
    "work",
    [
        lambda run, environment: random_policy(environment, "test", "serial"),
        evaluate_best,
        lambda run, environment: evaluate_game(run, environment, [0], 0),
        lambda run, environment: measure_steps(environment, BenchmarkCase("serial", 2, 1), 0.1),
    ],
    ids=["a random policy", "the best", "a game's page", "the machine"],
)
def test_what_is_evaluated_is_closed(run, environment, work):
    with pytest.raises(KernelError, match="on purpose"):
        work(run, environment)
    assert Counted.open == 0


@pytest.mark.parametrize("where", [(shard, "make_collector"), (Run, "best_policy")])
def test_what_is_trained_is_closed(tmp_path, environment, monkeypatch, where):
    monkeypatch.setattr(Counted, "broken", False)
    monkeypatch.setattr(*where, raising)
    with pytest.raises(KernelError, match="on purpose"):
        slipstream.train(CONFIG, out=tmp_path / "run", report=False, log=lambda said: None)
    assert Counted.open == 0


def test_the_slices_before_one_that_cannot_be_made_are_closed(environment, monkeypatch):
    config = resolve(CONFIG).with_training(num_envs=16)
    make_envs = type(environment).make_envs

    def second_fails(self, seeds, *rest, **more):
        if Counted.open:
            raising()
        return make_envs(self, seeds, *rest, **more)

    monkeypatch.setattr(type(environment), "make_envs", second_fails)
    monkeypatch.setattr(shard.Shard, "_slices", lambda self, parts: [slice(0, 8), slice(8, 16)])
    with pytest.raises(KernelError, match="on purpose"):
        make_workers(config, environment)
    assert Counted.open == 0
