"""`reset(seed=...)` and `step(actions)` with return values, for every kind of environment."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.rl.nets.policy import Policy

KERNELS = Path(__file__).parents[1] / "samples"


class Mixed(gymnasium.Env):
    """Shows a Dict, takes choices from 5 on; ends after three steps."""

    observation_space = spaces.Dict(
        {"where": spaces.Discrete(4, start=2), "speed": spaces.Box(-9, 9, (2,), np.float64)}
    )
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return self._show(), float(action), False, self.time == 3, {}

    def _show(self):
        return {"where": 2 + self.time, "speed": self.np_random.random(2)}


gymnasium.register("SlipstreamMixed-v0", Mixed)


@pytest.mark.parametrize(
    "target", ["cartpole", "pendulum", str(KERNELS / "duel.py"), str(KERNELS / "masked.py")]
)
def test_values_equal_what_is_written_into_arrays(target):
    values, arrays = (slipstream.make_vec(target, 6, seed=3) for _ in range(2))
    draw = np.random.default_rng(0)
    out = allocate_buffers(arrays)
    first = values.reset()
    arrays.reset(out.obs, out.mask)
    assert np.array_equal(first, out.obs)
    seen, kept = [first], [first.copy()]
    ended = 0
    for t in range(40):
        mask = values.mask
        assert (mask is None) == (out.mask is None)
        assert mask is None or np.array_equal(mask, out.mask)
        actions = random_actions(values.spec, 6, draw, mask)
        obs, reward, terminated, truncated = values.step(actions)
        arrays.step(actions, out, t)
        for mine, theirs in zip((obs, reward, terminated, truncated), out, strict=False):
            assert np.array_equal(mine, theirs)
        over = np.flatnonzero(terminated | truncated)
        assert values.episodes.e.tolist() == over.tolist()
        assert (
            values.final_obs.index[:, 1].tolist()
            == np.flatnonzero(truncated & ~terminated).tolist()
        )
        ended += len(over)
        seen.append(obs)
        kept.append(obs.copy())
    assert ended or target == "pendulum"
    assert all(map(np.array_equal, seen, kept)), "arrays are the caller's"
    arrays.close(), values.close()


@pytest.mark.parametrize("target", ["cartpole", str(KERNELS / "masked.py"), "gym:CartPole-v1"])
def test_a_seed_begins_the_same_episodes(target):
    def walk(env, obs):
        draw, seen = np.random.default_rng(1), [obs]
        for _ in range(30):
            seen.append(env.step(random_actions(env.spec, 4, draw, env.mask)).obs)
        return np.array(seen)

    env = slipstream.make_vec(target, 4, seed=9)
    once = walk(env, env.reset())
    other = walk(env, env.reset())
    assert not np.array_equal(once, other)
    assert np.array_equal(walk(env, env.reset(seed=9)), once)
    assert np.array_equal(walk(env, env.reset(seed=np.int64(9))), once)
    assert not np.array_equal(walk(env, env.reset(seed=10)), once)
    env.close()


def test_foreign_observations_and_actions_are_native():
    with slipstream.make_vec("gym:SlipstreamMixed-v0", 2) as env:
        obs = env.reset(seed=1)
        assert obs["where"].tolist() == [2, 2] and obs["speed"].shape == (2, 2)
        obs, reward, _, truncated = env.step([5, 7])
        assert reward.tolist() == [5, 7] and obs["where"].tolist() == [3, 3]
        with pytest.raises(ConfigError, match="integer from 5 to 7"):
            env.step([0, 5])
        env.step([5, 5])
        obs, _, _, truncated = env.step([5, 6])
        assert truncated.all() and obs["where"].tolist() == [2, 2]
        assert env.episodes.returns.tolist() == [15, 18]
        policy = Policy([env.spec], [0])
        assert set(policy.act(obs)) <= {5, 6, 7}
        env.step(policy.act(obs, deterministic=False))


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([0, 1], r"\(2,\) instead of \(3,\): the batch axis comes first"),
        (1, "batch axis"),
        ([0, 1, 2], "2 at .2, 0., which is no integer from 0 to 1"),
        ([0, -1, 0], "-1 at"),
        ([0.0, 1.0, 1.0], "float64"),
        ([[0, 1, 1]], "batch axis"),
        (None, "None"),
        ("left", "left"),
        ([[0], [1, 1], [0]], "lengths"),
    ],
)
def test_actions_that_do_not_fit_are_explained(actions, words):
    env = slipstream.make_vec("cartpole", 3)
    env.reset()
    with pytest.raises(ConfigError, match=words):
        env.step(actions)


def test_boxes_take_any_float_but_nan():
    env = slipstream.make_vec("pendulum", 2)
    env.reset()
    env.step(np.zeros((2, 1), np.float64))
    env.step([[0.5], [1]])
    with pytest.raises(ConfigError, match="NaN"):
        env.step([[0.5], [np.nan]])


def test_step_needs_a_reset_and_seeds_are_numbers():
    env = slipstream.make_vec("cartpole", 3)
    with pytest.raises(ConfigError, match=r"reset\(\)"):
        env.step([0, 0, 0])
    for seed in ("1", 1.5, True):
        with pytest.raises(ConfigError, match="seed"):
            env.reset(seed=seed)


def test_several_players_are_stepped():
    """No agent trains them, but `make_vec` does what its message promises."""
    env = slipstream.make_vec(KERNELS / "duel.py", 3)
    obs = env.reset()
    assert obs.shape[:2] == (3, 2)
    actions = random_actions(env.spec, 3, np.random.default_rng(0), env.mask)
    assert env.step(actions[..., 0]).reward.shape == (3, 2)
    with pytest.raises(ConfigError, match="player"):
        env.step(np.zeros(3, np.int64))


def test_forbidden_choices_are_refused():
    shop = Path(__file__).parents[3] / "examples" / "kernels" / "shop.py"
    env = slipstream.make_vec(shop, 5)
    env.reset(seed=1)
    most = env.mask.shape[1] - 1 - env.mask[:, ::-1].argmax(axis=1)
    full = most.copy()
    full[3] = env.mask.shape[1] - 1
    assert not env.mask[3, -1]
    with pytest.raises(
        ConfigError,
        match=r"The mask forbids some of the actions, the first in environment 3.*env.mask",
    ):
        env.step(full)
    env.step(most)
    two = slipstream.make_vec(KERNELS / "masked.py", 4)
    two.reset()
    draw = np.random.default_rng(0)
    for _ in range(20):
        two.step(random_actions(two.spec, 4, draw, two.mask))


STARTED = """
from slipstream.kernels.classic.probes import *
from slipstream.kernels.spec import EnvSpec
from gymnasium import spaces


def step(s, action, p, d):
    return float(action[0]), False, False


def mask(s, p, d, out):
    out[0], out[1], out[2] = True, False, True


def spec(p, d):
    return EnvSpec(spaces.Box(-1.0, 1.0, (WIDTH,), np.float32), spaces.Discrete(3, start=5))
"""


def test_a_kernels_choices_may_begin_anywhere(tmp_path):
    """Its action row holds 5 to 7, and so does what a policy returns."""
    path = tmp_path / "started.py"
    path.write_text(STARTED)
    env = slipstream.make_vec(path, 3, backend="serial")  # actions are looked at before the loop
    obs = env.reset()
    assert env.step([5, 7, 5]).reward.tolist() == [5, 7, 5]
    with pytest.raises(ConfigError, match="no integer from 5 to 7"):
        env.step([0, 5, 5])
    with pytest.raises(
        ConfigError, match="The mask forbids some of the actions, the first in environment 1"
    ):
        env.step([5, 6, 5])
    policy = Policy([env.spec], [0])
    assert set(policy.act(obs, mask=env.mask).tolist()) <= {5, 7}
    env.step(policy.act(obs, mask=env.mask, deterministic=False))


@pytest.mark.parametrize("target", ["cartpole", "gym:CartPole-v1"])
@pytest.mark.parametrize("num_envs", ["2", None, float("nan"), 1.5, 0, -1, True])
def test_a_number_of_copies_is_a_whole_number(target, num_envs):
    with pytest.raises(ConfigError, match=rf"`num_envs` must be .*{num_envs!r}"):
        slipstream.make_vec(target, num_envs)


def test_numbers_may_be_numpys():
    mine = slipstream.make_vec("cartpole", 2, seed=3).reset()
    assert np.array_equal(
        slipstream.make_vec("cartpole", np.int32(2), seed=np.int32(3)).reset(), mine
    )
    for seed in ("3", None, 1.5):
        with pytest.raises(ConfigError, match="`seed` must be int, got"):
            slipstream.make_vec("cartpole", 2, seed=seed)
