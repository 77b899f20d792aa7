"""Wrappers around `gym:ID`, modules of the working folder, and the page that shows both."""

import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.gym.gymnasium_environment import image_warnings
from slipstream.kernels.vector_env import allocate_buffers, member_indices
from slipstream.training.environments.factory import make_environment
from slipstream.training.settings.config import resolve

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guides/third-party-environments.md").read_text()
FILES = dict(re.findall(r"<!-- file: ([\w.]+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))

LIGHTS = """
import gymnasium
import numpy as np


class Lights(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        shown = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return shown, float(action), self.steps >= 9, False, {}


class Times(gymnasium.RewardWrapper):
    def __init__(self, env, factor=10.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


class Plus(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward + 1.0


def carts(num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")


gymnasium.register("Lights-v0", entry_point="lights_here:Lights", max_episode_steps=20)
"""
WRAPPERS = ["lights_here:Plus", {"name": "lights_here:Times", "kwargs": {"factor": 3.0}}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, where lights_here.py lies; on no path."""
    (tmp_path / "lights_here.py").write_text(LIGHTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    yield tmp_path
    sys.modules.pop("lights_here", None)
    gymnasium.registry.pop("Lights-v0", None)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_modules_of_the_working_folder_and_wrappers_around(folder, backend):
    section = resolve({"env": {"name": "gym:lights_here:Lights-v0", "wrappers": WRAPPERS}})
    environment = make_environment(section.env_name, section.env_settings)
    env = environment.make_envs(*member_indices([0], 2), backend=backend)
    try:
        out = allocate_buffers(env)
        env.reset(out.obs)
        env.step(np.array([[0], [1]]), out)
        assert out.reward.tolist() == [3.0, 6.0]  # (r + 1) * 3: the first one is the innermost
    finally:
        env.close()


def test_vec_finds_functions_of_the_working_folder(folder):
    environment = make_environment("vec:lights_here:carts", {})
    assert environment.spec.observation_shape == (4,)
    with pytest.raises(ConfigError, match=r"`env.wrappers` requires gym:ID"):
        make_environment("vec:lights_here:carts", {"wrappers": ["lights_here:Plus"]})


def test_wrappers_are_recorded_and_used_in_evaluations_too(folder, monkeypatch):
    sections = {
        "env": {"name": "gym:lights_here:Lights-v0", "wrappers": WRAPPERS},
        "evaluation": {"episodes": 2},
    }
    run = slipstream.train(
        sections,
        out=folder / "run",
        total_timesteps=256,
        num_envs=2,
        backend="process",
        report=False,
    )
    written = run.config.env_settings["wrappers"]
    assert written == [
        {"name": "lights_here:Plus", "kwargs": {}},
        {"name": "lights_here:Times", "kwargs": {"factor": 3.0}},
    ]
    sys.modules.pop("lights_here")  # as in another process, whose own run it is
    gymnasium.registry.pop("Lights-v0")
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(folder)])
    again = slipstream.evaluate(folder / "run")
    assert all(
        27.0 <= episode.episode_return <= 54.0 for episode in again.episodes
    )  # 9 steps of 3 or 6


def test_a_run_without_wrappers_is_what_it_was():
    assert "wrappers" not in resolve("gym:CartPole-v1").env_settings


@pytest.mark.parametrize(
    ("wrappers", "match"),
    [
        (["lights_here:Nobody"], "lights_here:Nobody cannot be imported"),
        (["nowhere:Plus"], "nowhere:Plus cannot be imported"),
        ([{"name": "lights_here:Times", "kwargs": {"by": 2}}], "Times cannot be applied to"),
        (["lights_here:carts"], "carts cannot be applied to|must return a gymnasium.Env"),
        (["Plus"], "write package:Wrapper, such as"),
        ("lights_here:Plus", "env.wrappers"),
        ([{"kwargs": {}}], "env.wrappers"),
    ],
)
def test_what_is_no_wrapper_is_named(folder, wrappers, match):
    with pytest.raises(ConfigError, match=match):
        config = resolve({"env": {"name": "gym:lights_here:Lights-v0", "wrappers": wrappers}})
        make_environment(config.env_name, config.env_settings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gym:MiniGrid-Empty-5x5-v0", "write gym:minigrid:MiniGrid-Empty-5x5-v0"),
        ("gym:ALE/Pong-v5", "write gym:ale_py:ALE/Pong-v5"),
        ("gym:Nobody-v0", "write gym:PACKAGE:ID"),
    ],
)
def test_an_id_that_a_package_registers_says_which(name, words):
    if name.removeprefix("gym:") in gymnasium.registry:
        pytest.skip("the package was imported by another test")
    with pytest.raises(ConfigError, match=words):
        make_environment(name, {})


def test_images_that_are_learned_from_badly_are_said():
    raw = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    assert "AtariPreprocessing" in image_warnings("gym:ale_py:ALE/Pong-v5", raw)[0]
    first = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert "84 channels of 4 x 84" in image_warnings("gym:mine:Frames-v0", first)[0]
    for fine in (spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Box(-1, 1, (3,)), None):
        assert image_warnings("gym:ale_py:ALE/Pong-v5", fine) == ()


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("file", "needed"),
    [
        ("grid.yaml", ("minigrid",)),
        pytest.param("pong.yaml", ("ale_py", "cv2", "torch"), marks=pytest.mark.slow),
    ],
)
def test_the_pages_configs_train(file, needed, tmp_path, monkeypatch):
    for package in needed:
        pytest.importorskip(package, reason=f"{package} is not installed ({PAGE.splitlines()[0]})")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    changes = {"evaluation.episodes": 1, "evaluation.max_steps": 20, "training.num_envs": 1}
    out = tmp_path / "run"
    run = slipstream.train(
        tmp_path / file, out=out, overrides=changes, total_timesteps=128, report=False
    )
    assert run.result is not None and run.config.env_settings["wrappers"]
