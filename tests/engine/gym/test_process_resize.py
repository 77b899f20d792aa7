"""More copies and fewer, while the others' episodes go on."""

import functools
import sys

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from slipstream.core.errors import ConfigError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import NativeEnv
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.vector_env import member_indices

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Counting(gymnasium.Env):
    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.start = 0, self.np_random.random()
        return np.array([0.0, self.start]), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time, self.start]), 1.0, False, self.time >= 50, {}


class Pictures(Counting):
    observation_space = spaces.Box(0, 255, (4, 5, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((4, 5, 3), self.time, np.uint8), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.full((4, 5, 3), self.time, np.uint8), *rest


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_episodes_go_on_and_new_ones_are_those_of_a_larger_environment(workers):
    with (
        ForeignEnv("CartPole-v1", *member_indices([3], 9)) as large,
        ForeignEnv("CartPole-v1", *member_indices([3], 4), workers=workers) as env,
    ):
        wanted, out = allocate_buffers(large), allocate_buffers(env)
        large.reset(wanted.obs), env.reset(out.obs)
        first = wanted.obs.copy()

        def both(n, times):
            out = allocate_buffers(env)
            for t in range(times):
                actions = np.full((9, 1), t % 2)
                large.step(actions, wanted, t), env.step(actions[:n], out, t)
                assert np.array_equal(out.obs, wanted.obs[:n]) and out.valid.all()
                assert np.array_equal(out.truncated, wanted.truncated[:n])

        both(4, 5)
        assert np.array_equal(env.resize(2), wanted.obs[:2])
        both(2, 5)
        assert len(env.driver.handles) == {1: 1, 2: 1, 3: 2}[workers]
        rows = env.resize(9)
        assert np.array_equal(rows[:2], wanted.obs[:2])
        assert np.array_equal(rows[4:], first[4:]), "they begin as in a larger environment"
        assert len(env.driver.handles) == workers
        loads = [handle.load for handle in env.driver.handles]
        assert sum(loads) == 9 and max(loads) - min(loads) <= 3
        for n in (5, 7, 3, 8):
            env.resize(n)
            out = allocate_buffers(env)
            length = env.arrays["length"].copy()
            env.step(np.zeros((n, 1), np.int64), out)
            ended = out.terminated | out.truncated
            assert (env.arrays["length"][~ended] == length[~ended] + 1).all()
        env.send([0] * 8), env.recv(8)
        for wrong in (0, -1, 2.5, True):
            with pytest.raises(ConfigError, match="a whole number"):
                env.resize(wrong)
        env.step(np.zeros((8, 1), np.int64), out)
    assert not [c for c in psutil.Process().children() if c.is_running() and "slip" in c.name()]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_native_copies_are_resized(backend):
    with NativeEnv([Counting, functools.partial(Counting)], backend=backend, workers=2) as env:
        env.reset([1, 2])
        env.step([0, 0])
        env.resize(5)
        assert env.observation()[:, 0].tolist() == [1, 1, 0, 0, 0] and env.num_envs == 5
        env.step(np.zeros(5, np.int64))
        assert env.call("time") == [2, 2, 1, 1, 1]
        env.resize(1)
        env.step(np.zeros(1, np.int64))
        assert env.call("time") == [3] and env.arrays["reward"].tolist() == [1.0]


def test_arrays_that_were_handed_out_outlive_the_copies():
    with ForeignEnv(Pictures, *member_indices([1], 2), workers=2) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        env.step(np.zeros((2, 1), np.int64), out)
        shown, own = env.resize(3), env.arrays["obs.0"]
        env.step(np.zeros((3, 1), np.int64), allocate_buffers(env))
    assert shown.shape == (3, 4, 5, 3) and shown[:, 0, 0, 0].tolist() == [1, 1, 0]
    assert own[:, 0, 0, 0].tolist() == [2, 2, 1]
    with NativeEnv([Pictures] * 2, backend="process", workers=2) as env:
        env.reset([1, 2])
        env.step([0, 0])
        own = env.arrays["obs.0"]
    assert own.sum() == 2 * 4 * 5 * 3


def test_whatever_is_asked_of_closed_copies_says_so():
    env = ForeignEnv(Counting, *member_indices([3], 2), workers=1)
    native = NativeEnv([Counting] * 2, backend="process", workers=1)
    for one in (env, native):
        one.reset()
        one.close()
    calls = [lambda: env.resize(3), env.get_state, env.infos, lambda: native.resize(3)]
    for call in (*calls, native.infos, native.info_list, native.observation):
        with pytest.raises(ConfigError, match="is closed"):
            call()


@pytest.mark.parametrize("workers", [-1, -8])
def test_a_number_of_workers_is_at_least_one(workers):
    with pytest.raises(ConfigError, match="`workers` must be at least 1"):
        ForeignEnv(Counting, *member_indices([3], 2), workers=workers)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_actions_are_kept_the_same_here_and_in_workers(one_by_one):
    states = []
    for workers in (0, 2):
        rows, draw = member_indices([3], 3), np.random.default_rng(0)
        with ForeignEnv(Counting, *rows, workers=workers) as env:
            env.reset(seed=1)
            for t in range(6):
                actions = draw.integers(0, 2, env.num_envs)
                if one_by_one and t % 2:
                    env.send(actions[1:], range(1, env.num_envs)), env.recv()
                else:
                    env.step(actions)
                if t == 2:
                    env.resize(5)
            states.append(env.get_state())
    for name, here in states[0].items():
        assert np.array_equal(here, states[1][name]), name
