"""Environments on which a saved policy would not score what was reported are refused in words."""

from __future__ import annotations

import os
import re
import time

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces, wrappers

import slipstream
from slipstream import portable
from slipstream.core.errors import ConfigError
from slipstream.gym import env_factory
from slipstream.gym.wrapper_checks import check_trainable
from slipstream.training.environments.factory import resolve_environment

CARTPOLE = "CartPole-v1"


class Rms:
    def __init__(self):
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4


class OwnStatistics(gymnasium.Wrapper):
    """A user's wrapper, which nothing names."""

    def __init__(self, env, frozen=None):
        super().__init__(env)
        self.statistics = Rms()
        if frozen is not None:
            self.update_running_mean = not frozen


class OwnArrays(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.running_mean, self.n = np.zeros(4), 0

    def observation(self, observation):
        return observation - self.running_mean


class FixedScale(gymnasium.ObservationWrapper):
    """Constants are no statistics."""

    def __init__(self, env):
        super().__init__(env)
        self.mean, self.std = np.zeros(4), np.ones(4)

    def observation(self, observation):
        return (observation - self.mean) / self.std


def frozen(env):
    env = wrappers.NormalizeObservation(env)
    env.update_running_mean = False
    return env


MOVING = {
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "OwnStatistics": OwnStatistics,
    "OwnArrays": OwnArrays,
}


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("outside", [lambda env: env, wrappers.RecordEpisodeStatistics])
def test_moving_statistics_are_refused_in_functions(name, outside):
    def make():
        return outside(MOVING[name](gymnasium.make(CARTPOLE)))

    for given in (make, [make, make], [lambda: gymnasium.make(CARTPOLE), make]):
        with pytest.raises(ConfigError, match=rf"`{name}` normalizes") as caught:
            slipstream.train(given, total_timesteps=64, report=False)
        assert "agent.observation_normalization: true" in str(caught.value)
        assert "agent.reward_scaling: on" in str(caught.value)


@pytest.mark.parametrize("name", ["NormalizeObservation", "NormalizeReward"])
def test_moving_statistics_are_refused_in_a_config(name):
    settings = {"wrappers": [f"gymnasium.wrappers:{name}"]}
    with pytest.raises(ConfigError, match=rf"gym:CartPole-v1: the wrapper `{name}`"):
        resolve_environment("gym:CartPole-v1", settings)


def inside(copies):
    return [lambda: wrappers.NormalizeObservation(gymnasium.make(CARTPOLE))] * copies


@pytest.mark.parametrize("kind", ["SyncVectorEnv", "AsyncVectorEnv"])
def test_moving_statistics_are_refused_in_the_copies_of_a_vector_environment(kind):
    env = getattr(gymnasium.vector, kind)(inside(2))
    try:
        with pytest.raises(ConfigError, match="`NormalizeObservation` normalizes"):
            check_trainable(env, "vec:mine")
    finally:
        env.close()


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["DummyVecEnv", "SubprocVecEnv"])
def test_moving_statistics_are_refused_in_the_copies_of_sb3(kind):
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    env = vec.VecFrameStack(getattr(vec, kind)(inside(2)), 2)
    try:
        with pytest.raises(ConfigError, match="`NormalizeObservation` normalizes"):
            check_trainable(env, "vec:mine")
    finally:
        env.close()


@pytest.mark.parametrize("wrap", [frozen, FixedScale, lambda env: OwnStatistics(env, True)])
def test_what_does_not_move_is_accepted(wrap):
    with wrap(gymnasium.make(CARTPOLE)) as env:
        check_trainable(env, "object:mine")
    with pytest.raises(ConfigError, match="update_running_mean` to False"):
        check_trainable(OwnStatistics(env, False), "object:mine")


class Camera(gymnasium.Env):
    def __init__(self, shape=(64, 64, 3), unflatten=False):
        image = spaces.Box(0, 255, shape, np.uint8)
        parts = {"camera": image, "speed": spaces.Box(-1, 1, (3,), np.float32)}
        self.observation_space = spaces.Dict(parts)
        if unflatten:
            self.observation_space = spaces.Tuple((spaces.Discrete(2), self.observation_space))
        self.action_space = spaces.Discrete(2)


class MaskedCamera(gymnasium.Env):
    """Shows an image and the mask of its two choices, of which the brighter half pays."""

    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (36, 36, 1), np.uint8),
        action_mask=spaces.Box(0, 1, (2,), np.int8),
    )
    action_space = spaces.Discrete(2)

    def _shown(self):
        image = np.zeros((36, 36, 1), np.uint8)
        self.bright = int(self.np_random.integers(2))
        image[:, 18 * self.bright :][:, :18] = 255
        return {"camera": image, "action_mask": np.ones(2, np.int8)}

    def reset(self, **arguments):
        super().reset(seed=arguments.get("seed"))
        return self._shown(), {}

    def step(self, action):
        return self._shown(), float(action == self.bright), True, False, {}


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_image_whose_only_neighbour_is_the_mask_is_trained_on_as_an_image(tmp_path, backend):
    run = slipstream.train(
        MaskedCamera, total_timesteps=64, num_envs=2, report=False, backend=backend,
        out=tmp_path / "run",
        overrides={"agent.n_steps": 16, "agent.batch_size": 16, "agent.n_epochs": 1},
    )  # fmt: skip
    seen, _ = MaskedCamera().reset(seed=1)
    policy = slipstream.load_policy(run)
    assert policy.act(seen) == policy.act([seen])[0]
    assert portable.load(run.path).act(seen) == policy.act(seen)
    assert resolve_environment(slipstream.register(MaskedCamera, "masked"), {}).spec.is_image


@pytest.mark.parametrize("unflatten", [False, True])
def test_an_image_beside_numbers_is_refused(unflatten):
    with pytest.raises(ConfigError, match=r"image 'camera' \(64, 64, 3\) and other keys"):
        slipstream.train(lambda: Camera(unflatten=unflatten), total_timesteps=64, report=False)
    check_trainable(Camera((5, 5, 3), unflatten), "object:grid")  # a few cells are no image


def test_changed_rewards_are_reported():
    halved = {
        "wrappers": [{"name": "gymnasium.wrappers:ClipReward", "kwargs": {"max_reward": 0.5}}]
    }
    notes = " ".join(resolve_environment("gym:CartPole-v1", halved).notes)
    assert "the wrapper `ClipReward` changes rewards" in notes
    (advice,) = re.findall(r"`env.training_wrappers: (.*)`", notes)
    moved = {"training_wrappers": yaml.safe_load(advice)}
    assert moved["training_wrappers"] == halved["wrappers"]
    assert not resolve_environment("gym:CartPole-v1", moved).notes
    name = slipstream.register(lambda: wrappers.ClipReward(gymnasium.make(CARTPOLE), -1, 1), "clip")
    notes = " ".join(resolve_environment(name, {}).notes)
    (advice,) = re.findall(r"`env.training_wrappers: (.*)`", notes)
    (given,) = yaml.safe_load(advice)
    assert given["kwargs"] == {"min_reward": -1, "max_reward": 1}
    plain = slipstream.register(lambda: gymnasium.make(CARTPOLE), "cart")
    resolve_environment(plain, {"training_wrappers": [given]})
    assert not resolve_environment("gym:CartPole-v1", {}).notes


class Welford(gymnasium.ObservationWrapper):
    """Running statistics under names that nothing looks for."""

    def __init__(self, env):
        super().__init__(env)
        self.m, self.s, self.n = np.zeros(4), np.ones(4), 0

    def observation(self, observation):
        self.n += 1
        self.m = self.m + (observation - self.m) / self.n
        return (observation - self.m).astype(np.float32)


class Counted(gymnasium.Wrapper):
    """Keeps a number from episode to episode, and shows it to nobody."""

    steps = 0

    def step(self, action):
        self.steps += 1
        return super().step(action)


class Noise(gymnasium.ObservationWrapper):
    """Draws from nobody's seed."""

    def observation(self, observation):
        return observation + np.random.default_rng().normal(size=4).astype(np.float32)


@pytest.mark.parametrize(
    ("wrapper", "expected"), [(Welford, True), (Counted, False), (Noise, False)]
)
def test_what_is_carried_from_episode_to_episode_is_reported(wrapper, expected):
    name = slipstream.register(lambda: wrapper(gymnasium.make(CARTPOLE)), wrapper.__name__)
    notes = " ".join(resolve_environment(name, {}).notes)
    assert ("keep state between episodes" in notes) is expected
    assert (f"`{wrapper.__name__}`" in notes) is expected


class Ends(gymnasium.Wrapper):
    def step(self, action):
        raise SystemExit(0)


class Crashes(gymnasium.Wrapper):
    def step(self, action):
        os._exit(3)


class Hangs(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(100.0)


@pytest.mark.parametrize("wrapper", [Ends, Crashes, Hangs])
def test_a_step_that_ends_or_hangs_is_left_to_the_training(wrapper, monkeypatch):
    monkeypatch.setattr(env_factory, "PROBE_SECONDS", 0.2)
    name = slipstream.register(lambda: wrapper(gymnasium.make(CARTPOLE)), wrapper.__name__)
    assert not resolve_environment(name, {}).notes


class Scaled(gymnasium.RewardWrapper):
    """Does not record its arguments."""

    def __init__(self, env, factor=1.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


@pytest.mark.parametrize(
    "make",
    [
        lambda: wrappers.TransformReward(gymnasium.make(CARTPOLE), lambda r: 2 * r),
        lambda: Scaled(gymnasium.make(CARTPOLE), 2.0),
    ],
)
def test_no_setting_is_advised_that_makes_another_wrapper(make):
    notes = " ".join(resolve_environment(slipstream.register(make, "scaled"), {}).notes)
    assert "with its arguments in place of `...`" in notes


def test_minus_one_is_no_time_limit_as_in_gymnasium():
    unlimited = resolve_environment("gym:CartPole-v1", {"kwargs": {"max_episode_steps": -1}})
    assert unlimited.spec.max_episode_steps is None
