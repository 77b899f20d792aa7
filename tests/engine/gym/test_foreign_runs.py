"""Runs of foreign environments: killed and resumed, episodes that never end, and signals."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.gym import gymnasium_environment
from slipstream.training.callbacks.events import Evaluated, Finished, Started, Updated
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

pytestmark = pytest.mark.usefixtures("one_server")

TAXI = "gym:Taxi-v4" if "Taxi-v4" in gymnasium.registry else "gym:Taxi-v3"  # has a mask
DRAWS = iter(range(10**9))


class Endless(gymnasium.Env):
    """Nothing ends an episode."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, restless=False):
        self.restless = restless

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        seen = next(DRAWS) % 1000 / 1000 if self.restless else self.np_random.random()
        return np.full(2, seen, np.float32), 1.0, False, False, {}


gymnasium.register("SlipstreamEndless-v0", Endless)


def settings(env, members=1, **more):
    return resolve(
        {
            "env": env,
            "agent": {"n_steps": 32, "batch_size": 64, "n_epochs": 2},
            "training": {
                "num_envs": 4,
                "total_timesteps": 1_280,
                "checkpoint_every": 0.2,
                "members": members,
            },
            "evaluation": {"episodes": 3, "every": 0.3},
        },
        more,
    )


def final_state(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def whole(tmp_path, config):
    run = Run.create(config, tmp_path / "whole")
    train(run.config, run)
    run.close()
    return run


class Killed(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize(
    ("env", "members", "how"),
    [
        ("gym:CartPole-v1", 1, "stopped"),
        (
            {
                "name": "gym:CartPole-v1",
                "training_wrappers": [
                    {"name": "gymnasium.wrappers:ClipReward", "kwargs": {"max_reward": 0.5}}
                ],
            },
            1,
            "killed",
        ),
        (TAXI, 1, "killed"),
        pytest.param("gym:CartPole-v1", 3, "killed", marks=pytest.mark.slow),
        pytest.param("gym:Pendulum-v1", 2, "stopped", marks=pytest.mark.slow),
        pytest.param("gym:Blackjack-v1", 1, "killed", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_ends_with_the_same_weights(tmp_path, env, members, how):
    config = settings(env, members)
    straight = whole(tmp_path, config)
    seen = []

    def listen(event):
        seen.append(event)
        if sum(isinstance(one, Updated) for one in seen) == 7:
            if how == "killed":
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)

    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises((Interrupted, Killed)):
        train(run.config, run, [listen])
    run.close()
    said = []
    again = Run.open(run.path, said.append)
    resume(again)
    again.close()
    assert said == []
    left, right = final_state(straight), final_state(again)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name
    assert straight.result["members"] == again.result["members"]
    assert straight.metrics()["score"] == again.metrics()["score"]
    assert straight.evaluations()["score"] == again.evaluations()["score"]


def test_a_run_says_and_records_that_its_environment_does_not_repeat_itself(tmp_path):
    config = settings("gym:SlipstreamEndless-v0", **{"evaluation.max_steps": 20})
    config = resolve(config, {"env.kwargs": {"restless": True}})
    run = Run.create(config, tmp_path / "run")

    def listen(event):
        if isinstance(event, Updated) and event.progress.iterations == 5:
            raise Killed

    with pytest.raises(Killed):
        train(run.config, run, [listen])
    run.close()
    said = []
    again = Run.open(run.path, said.append)
    resume(again)
    again.close()
    assert "4 of 4 environments" in said[0] and "new episodes" in said[0]
    assert again.provenance["fresh_episodes"] == 4 and said[0] in again.provenance["notes"]


KERNEL = """
from slipstream.kernels.classic.probes import *
from slipstream.kernels.spec import EnvSpec
from gymnasium import spaces


def step(s, action, p, d):
    return 1.0, False, False


def spec(p, d):
    return EnvSpec(spaces.Box(-1.0, 1.0, (WIDTH,), np.float32), spaces.Discrete(2))
"""


@pytest.fixture(params=[pytest.param("foreign", marks=pytest.mark.slow), "kernel"])
def endless(request, tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(KERNEL)
    return "gym:SlipstreamEndless-v0" if request.param == "foreign" else str(path)


def test_an_episode_that_never_ends_is_cut_and_that_is_said(tmp_path, endless):
    events = []
    run = Run.create(settings(endless, **{"evaluation.max_steps": 50}), tmp_path / "run")
    result = train(run.config, run, [events.append])
    run.close()
    (started,) = [event for event in events if isinstance(event, Started)]
    assert any("no time limit" in note and "after 50 steps" in note for note in started.notes)
    (member,) = result["members"]
    assert member["best_score"] == member["test_score"] == member["last_score"] == 50.0


def test_an_environment_that_hangs_at_once_is_named(monkeypatch):
    told = threading.Event()

    class Screen(io.StringIO):
        def flush(self):
            told.set()

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(gymnasium_environment, "_SLOW_SECONDS", 0.01)
    taken = Endless.step
    monkeypatch.setattr(Endless, "step", lambda self, a: told.wait(60) and taken(self, a))
    here = settings("gym:SlipstreamEndless-v0", **{"training.backend": "serial"}).training
    resolve_environment("gym:SlipstreamEndless-v0", {}).probed(here.stepping)
    assert screen.getvalue().startswith(
        "gym:SlipstreamEndless-v0: its first steps have not finished"
    )


def test_the_bound_leaves_time_limits_and_markets_alone():
    for name, length in (("gym:Pendulum-v1", 200), ("pendulum", 200)):
        environment = resolve_environment(name, {})
        env = environment.make_eval_envs("train", 1, max_steps=7)
        env.close()
        assert environment.spec.max_episode_steps == length
        if name == "pendulum":
            assert env.episode_state["next_limit"].tolist() == [200]
    assert settings("cartpole").evaluation.max_steps == "auto"


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_signals_are_heard_within_an_evaluation(tmp_path, endless, members):
    """The validation that was cut short is done by the resumed run: the results are the same."""
    more = {"evaluation.max_steps": 300, "training.shards": members}
    straight = whole(tmp_path, settings(endless, members, **more))
    long = settings(endless, members, **{**more, "evaluation.max_steps": 2_000_000_000})
    run = Run.create(long, tmp_path / "run")

    def listen(event):
        if isinstance(event, Updated) and event.progress.iterations == 3:  # a validation follows
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()

    with pytest.raises(Interrupted):
        train(run.config, run, [listen])
    run.close()
    tensors, manifest = run.load_checkpoint()
    assert manifest["steps"] == 3 * 128 and (tensors["validated"] == 0).all()
    # The same run with a bound that lets it end: its checkpoint's config is the only difference.
    config = resolve(long, {"evaluation.max_steps": 300}).with_training(out=str(run.path))
    (run.path / "config.yaml").write_text(config.to_yaml())
    again = Run.open(run.path)
    again.save_checkpoint(tensors, manifest)
    events = []
    resume(again, [events.append])
    again.close()
    first = next(event for event in events if isinstance(event, Evaluated | Updated))
    assert isinstance(first, Evaluated) and first.progress.steps == 3 * 128
    assert again.result["members"] == straight.result["members"]
    assert again.evaluations()["steps"] == straight.evaluations()["steps"]


@pytest.mark.slow
def test_signals_are_heard_while_the_result_is_measured(tmp_path):
    config = settings("gym:CartPole-v1")
    straight = whole(tmp_path, config)
    run = Run.create(config, tmp_path / "run")

    def listen(event):
        if isinstance(event, Evaluated) and event.progress.finished:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(run.config, run, [listen])
    run.close()
    assert run.result is None
    again = Run.open(run.path)
    resume(again)
    again.close()
    assert again.result["members"] == straight.result["members"]


@pytest.mark.parametrize(
    "env", ["cartpole", pytest.param("gym:CartPole-v1", marks=pytest.mark.slow)]
)
def test_a_run_killed_late_keeps_its_training_score(tmp_path, env):
    """Between the last checkpoint and the result."""
    config = settings(env, members=2)
    straight = whole(tmp_path, config)
    run = Run.create(config, tmp_path / "run")

    def listen(event):
        if isinstance(event, Finished):
            raise Killed

    with pytest.raises(Killed):
        train(run.config, run, [listen])
    run.close()
    (run.path / "result.json").unlink()
    again = Run.open(run.path)
    resume(again)
    again.close()
    members = again.result["members"]
    assert members == straight.result["members"]
    assert all(member["training_score"] is not None for member in members)


@pytest.mark.slow
def test_the_result_is_of_episodes_that_chose_nothing(tmp_path):
    run = whole(tmp_path, settings("gym:CartPole-v1", members=2, **{"evaluation.episodes": 20}))
    evaluation = run.config.evaluation
    assert evaluation.test_seed != evaluation.seed
    environment = resolve_environment("gym:CartPole-v1", {})
    for member in run.result["members"]:
        evaluator = Evaluator(environment, "test", games=20, seed=evaluation.test_seed)
        values = evaluator.values(run.best_policy(member["member"]))[0]
        assert member["test_score"] == values.mean() != member["best_score"]
        assert member["test_error"] == pytest.approx(values.std(ddof=1) / np.sqrt(20))
    assert run.result["test_is"] == "new episodes"


def test_few_steps_are_said_to_be_a_whole_rollout(tmp_path):
    events = []
    run = Run.create(settings("cartpole", **{"training.total_timesteps": 1}), tmp_path / "run")
    train(run.config, run, [events.append])
    run.close()
    (started,) = [event for event in events if isinstance(event, Started)]
    (note,) = started.notes
    assert "total_timesteps is 1, but 128 steps per member are trained: one iteration" in note
    (run.path / "result.json").unlink()
