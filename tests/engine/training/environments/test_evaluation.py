"""Number of evaluation episodes within a budget; results do not depend on it."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import Episodes
from slipstream.training.environments.evaluator import Evaluator, run_episodes
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import EvaluationPlan, run_warnings

LONG = 20


class TwoLengths:
    """Copies whose episode j takes 1 or 20 steps, and pays 1 a step."""

    def __init__(self, copies, lengths):
        box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.spec, self.num_envs, self.mask_size = EnvSpec(box, box), copies, 0
        self._lengths, self._left = lengths, np.zeros(copies, np.int64)
        self._episode, self._ended, self.stepped = self._left.copy(), [], 0

    def begin(self, copies, episodes, seed, obs, mask=None):
        self._episode[copies], self._left[copies] = episodes, self._lengths[episodes]

    def step(self, actions, out, t):
        self.stepped += int((self._left > 0).sum())
        self._left -= 1
        out.terminated[:], out.valid[:] = self._left == 0, True
        self._ended += np.flatnonzero(out.terminated).tolist()

    def drain_episodes(self):
        e, self._ended = np.array(self._ended, np.int64), []
        length = self._lengths[self._episode[e]]
        return Episodes(np.zeros(len(e), np.int64), e, length.astype(float), length, {})


def lanes_of(copies, lengths, lanes, steps):
    env = TwoLengths(copies, lengths)

    def act(seen):
        return np.zeros((copies, 1), np.float32)

    tracks = run_episodes(env, act, len(lengths), 0, num_envs=lanes, steps=steps, record=False)[0]
    return tracks, env.stepped


def test_a_lane_counts_what_ends_within_its_steps():
    lengths = np.array([1, 20, 1, 1, 1, 20, 1, 20, 1])  # lanes: 1 1 1 | 20 1 20 | 1 20 1
    tracks, stepped = lanes_of(3, lengths, 3, 22)
    assert [track.number for track in tracks] == [0, 1, 2, 3, 4, 5, 6, 8]  # 7 would end at 41
    assert stepped <= 3 * 22
    for copies in (1, 2):
        again, _ = lanes_of(copies, lengths, 3, 22)
        assert [(t.number, t.episode_return) for t in again] == [
            (t.number, t.episode_return) for t in tracks
        ]


def test_short_episodes_have_no_more_say_than_long_ones():
    lengths = np.random.Generator(np.random.PCG64(0)).choice([1, LONG], 40_000)
    lanes = 2_000
    tracks, stepped = lanes_of(lanes, lengths, lanes, LONG)
    assert stepped <= lanes * LONG
    numbers = np.array([track.number % lanes for track in tracks])
    returns = np.array([track.episode_return for track in tracks])
    means = np.bincount(numbers, returns) / np.bincount(numbers)
    assert len(means) == lanes
    assert means.mean() == pytest.approx(10.5, abs=0.8)  # its standard error is 0.2
    assert returns.mean() < 8.0  # so much would short ones gain if all were thrown together


class Endless(gymnasium.Env):
    """It never ends; it counts the steps of all its copies."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Endless.steps += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.fixture
def endless(monkeypatch):
    gymnasium.register("Endless-v0", Endless)
    monkeypatch.setattr(Endless, "steps", 0)
    yield "gym:Endless-v0"
    gymnasium.registry.pop("Endless-v0")


SMALL = {"agent": {"n_steps": 64, "batch_size": 64, "n_epochs": 1, "net_arch": [8]}}


def test_what_never_ends_takes_a_fifth_at_most(endless, tmp_path):
    config = {**SMALL, "env": endless, "training": {"num_envs": 4, "backend": "serial"}}
    config["training"]["total_timesteps"] = 5_120
    run = slipstream.train(config, out=tmp_path / "run", report=False)
    trained, plan = run.result["progress"]["steps"], run.result["evaluation"]
    ends = run.result["test_episodes"] * plan["max_steps"]  # of the best policy, and of the last
    probed = 100
    assert trained == 5_120 and ends == 500
    assert Endless.steps <= 1.2 * trained + 2 * ends + probed
    assert len(run.evaluations()["steps"]) == 2 and plan["num_envs"] * plan["steps"] * 2 <= 1_024
    assert set(run.evaluations()["score"]) == {100.0}  # what a cut episode had earned
    said = " ".join(run_warnings(run.config, resolve_environment(endless, {})))
    assert "evaluation.share" in said and "after 100 steps (evaluation.max_steps)" in said


def plan_of(target, **settings):
    config = resolve(target, {"training.num_envs": 1, **settings})
    environment = resolve_environment(config.env_name, config.env_settings)
    return EvaluationPlan.from_config(config, environment)


@pytest.mark.parametrize("steps", [3_000, 20_000, 100_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("target", ["cartpole", "gym:Pendulum-v1", "gym:Blackjack-v1"])
def test_a_fifth_of_the_budget(target, steps):
    plan = plan_of(target, **{"training.total_timesteps": steps})
    longest = {"cartpole": 500, "gym:Pendulum-v1": 200}.get(target, plan.max_steps)
    each = plan.steps if plan.steps is not None else longest
    number = np.ceil(1 / plan.every)
    assert number <= 10 and plan.test_episodes >= 4
    assert number * plan.num_envs * each <= max(0.2 * steps, 500)  # one whole episode at least


def test_numbers_are_taken_as_they_are():
    given = {"evaluation.episodes": 30, "evaluation.max_steps": 7_000, "evaluation.every": 0.02}
    plan = plan_of("gym:Blackjack-v1", **{"training.total_timesteps": 1_000, **given})
    assert plan == EvaluationPlan(0.02, 30, None, 30, 30, 7_000)
    rarer = plan_of("cartpole", **{"training.total_timesteps": 30_000})
    assert (rarer.every, rarer.num_envs, rarer.steps) == (1 / 3, 4, 500)


@pytest.mark.parametrize("stochastic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_copies_and_neighbours_change_nothing(tmp_path, stochastic):
    target = {**SMALL, "env": "cartpole", "training": {"members": 2, "num_envs": 4}}
    target["training"]["total_timesteps"] = 256
    run = slipstream.train(target, out=tmp_path / "run", report=False)
    environment = resolve_environment("cartpole", {})
    policy = slipstream.load_policy(run)

    def tracks(copies):
        evaluator = Evaluator(
            environment,
            "test",
            games=30,
            num_envs=3,
            steps=500,
            seed=4,
            max_envs=copies,
            stochastic=stochastic,
        )
        return evaluator.run(policy)[0], evaluator.values(policy)

    one, scores = tracks(3)
    for copies in (1, 2):
        again, values = tracks(copies)
        assert [track.episode_return for track in again] == [track.episode_return for track in one]
        np.testing.assert_array_equal(values, scores)
    greedy = Evaluator(environment, "test", games=30, num_envs=3, steps=500, seed=4).run(policy)[0]
    assert ([t.episode_return for t in greedy] != [t.episode_return for t in one]) == stochastic


def test_drawn_actions_are_recorded_and_evaluated_again(tmp_path):
    target = {**SMALL, "env": "cartpole", "evaluation": {"deterministic": False, "episodes": 5}}
    target["training"] = {"members": 2, "num_envs": 4, "total_timesteps": 256}
    run = slipstream.train(target, out=tmp_path / "run", report=False)
    assert run.result["evaluation"]["deterministic"] is False
    means = [member.mean_return for member in slipstream.evaluate(run).members.values()]
    assert means == [member["test_score"] for member in run.result["members"]]
    target["evaluation"]["deterministic"] = True
    other = slipstream.train(target, out=tmp_path / "greedy", report=False)
    assert means != [member["test_score"] for member in other.result["members"]]
    target["evaluation"]["deterministic"] = False
    target["training"] |= {"members": 1, "seed": 1}
    alone = slipstream.train(target, out=tmp_path / "alone", report=False)
    assert alone.result["members"][0]["test_score"] == run.result["members"][1]["test_score"]
