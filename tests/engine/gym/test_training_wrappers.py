"""`env.training_wrappers`: around training environments alone; logged returns are without them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.vector_env import allocate_buffers, member_indices
from slipstream.studies.space import find_setting
from slipstream.training.environments.factory import make_environment, resolve_environment
from slipstream.training.settings.config import resolve

HALF = {
    "name": "gymnasium.wrappers:ClipReward",
    "kwargs": {"min_reward": -0.5, "max_reward": 0.5},
}
SHORT = {"name": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 4}}
SAME_CORE = f"{__name__}:"


def carts():
    return gymnasium.make("CartPole-v1", max_episode_steps=6)


class Steady(gymnasium.Env):
    """Pays 1 a step, whatever is done."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, False, self.steps == 6, {}


class Twice(gymnasium.Wrapper):
    """Two steps of the environment for one, and the better reward of both."""

    def step(self, action):
        *_, first, _, _, _ = came = self.env.step(action)
        if came[2] or came[3]:
            return came
        seen, second, over, cut, info = self.env.step(action)
        return seen, max(first, second) / 4, over, cut, info


class Lives(gymnasium.Wrapper):
    """Ends an episode after three steps, and goes on with the same one after it."""

    left = 0

    def reset(self, **arguments):
        self.lives, came = 3, (self.seen, {}) if self.left else self.env.reset(**arguments)
        self.left = self.left or 6
        return came

    def step(self, action):
        self.seen, reward, over, cut, info = self.env.step(action)
        self.lives, self.left = self.lives - 1, 0 if over or cut else self.left - 1
        return self.seen, 10.0 * reward, over, cut or self.lives == 0, info


class Wide(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-9, 9, (5,), np.float32)

    def observation(self, observation):
        return np.zeros(5, np.float32)


class NoWrapper(gymnasium.Env):
    def __init__(self, env):
        self.inner = env


def ended(env, steps=24):
    """Return, length and paid rewards of the episodes that end within some steps."""
    found, paid = [], np.zeros(env.num_envs)
    env.reset(seed=1)
    for t in range(steps):
        came = env.step(np.full(env.num_envs, t % 2))
        paid += came.reward
        for e, ret, length in zip(
            env.episodes.e, env.episodes.returns, env.episodes.length, strict=True
        ):
            found.append((float(ret), int(length), float(paid[e])))
            paid[e] = 0
    return found


GIVEN = {
    "id": ("gym:CartPole-v1", {"kwargs": {"max_episode_steps": 6}}),
    "function": (carts, {}),
    "list": ([carts, carts], {}),
    "object": (carts(), {}),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_rewards_are_those_inside_and_returns_those_without(given, backend):
    target, env = GIVEN[given]
    make = {"backend": backend, **env}
    with slipstream.make_vec(target, 2, training_wrappers=[HALF], **make) as copies:
        assert set(ended(copies)) == {(6.0, 6, 3.0)}
    with slipstream.make_vec(target, 2, training_wrappers=[HALF, SHORT], **make) as copies:
        assert set(ended(copies)) == {(4.0, 4, 2.0)}
        assert copies.spec.max_episode_steps == 6


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [("Twice", {(6.0, 3, 0.75)}), ("Lives", {(3.0, 3, 30.0)})],
)
def test_a_return_is_of_the_steps_that_the_environment_took(wrapper, expected):
    more = {"training_wrappers": [SAME_CORE + wrapper], "backend": "serial"}
    with slipstream.make_vec(carts, 2, **more) as copies:
        assert set(ended(copies)) == expected


def test_evaluations_are_without_them():
    environment = make_environment("gym:CartPole-v1", {"training_wrappers": [HALF, SHORT]})
    for backend in ("serial", "process"):
        with environment.make_eval_envs("test", 2, backend=backend) as env:
            obs = np.zeros((2, 4), np.float32)
            env.begin(np.arange(2), np.arange(2), 0, obs)
            out = allocate_buffers(env)
            for t in range(6):
                env.step(np.full((2, 1), t % 2), out)
                assert out.reward.tolist() == [1.0, 1.0] and not out.truncated.any()


long = pytest.mark.slow


@pytest.mark.parametrize(
    "agent", ["ppo", "dqn", pytest.param("sac", marks=long), pytest.param("td3", marks=long)]
)
def test_training_reports_the_score_that_evaluations_have(tmp_path, agent):
    make = carts if agent in ("ppo", "dqn") else Steady
    own = {"n_steps": 32, "batch_size": 32} if agent == "ppo" else {"learning_starts": 64}
    changes = {"env.training_wrappers": [HALF], "agent.name": agent, "evaluation.episodes": 2}
    changes |= {f"agent.{name}": value for name, value in own.items()}
    out = tmp_path / "run"
    run = slipstream.train(
        make, out=out, overrides=changes, total_timesteps=128, num_envs=1, report=False
    )
    (member,) = run.result["members"]
    assert (member["training_score"], member["best_score"]) == (6.0, 6.0)
    assert set(run.metrics()["score"]) == {6.0}
    assert {episode.episode_return for episode in slipstream.evaluate(out).episodes} == {6.0}
    assert run.config.env_settings["training_wrappers"] == [HALF]


def test_a_run_without_them_is_what_it_was():
    assert "training_wrappers" not in resolve("gym:CartPole-v1").env_settings


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            [SAME_CORE + "Wide"],
            "its observation_space with .* Move the wrapper that changes the",
        ),
        (["gymnasium.wrappers:NormalizeObservation"], "`NormalizeObservation` normalizes"),
        (["gymnasium.wrappers:NormalizeReward"], "`NormalizeReward` normalizes"),
        (["nowhere:Plus"], "`env.training_wrappers`: nowhere:Plus cannot be imported"),
        ([SAME_CORE + "NoWrapper"], "must return a gymnasium.Wrapper, got a NoWrapper"),
        (["Plus"], "write package:Wrapper, such as"),
        ("lights_here:Plus", "env.training_wrappers"),
    ],
)
def test_what_cannot_be_one_is_named(given, match):
    for name in ("gym:CartPole-v1", slipstream.register(carts, "carts")):
        with pytest.raises(ConfigError, match=match):
            config = resolve({"env": {"name": name, "training_wrappers": given}})
            resolve_environment(config.env_name, config.env_settings)


def test_a_study_does_not_vary_them():
    with pytest.raises(ConfigError, match="names code, which trials do not record"):
        find_setting("env.training_wrappers", resolve("gym:CartPole-v1"))


def test_workers_find_an_id_that_only_this_process_registered():
    gymnasium.register("SlipstreamCarts-v0", lambda: carts())
    environment = make_environment("gym:SlipstreamCarts-v0", {"training_wrappers": [HALF]})
    with environment.make_envs(*member_indices([0], 2), backend="process") as env:
        assert set(ended(env)) == {(6.0, 6, 3.0)}
