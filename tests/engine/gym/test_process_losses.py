"""No transition crosses from an episode that was lost with its worker into the next one."""

import functools
import os
import random
import signal
import sys
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.child_process import FaultPolicy
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import SAME_STEP, NativeEnv
from slipstream.gym.process.env_worker import UP
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import member_indices

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

PATIENT = FaultPolicy(max_faults_per_minute=10_000)
LIMIT = 12


class Marked(gymnasium.Env):
    """Shows its time and the mark of its episode; says both, too."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.mark = 0, self.np_random.random()
        return self.shown(), {"time": self.time, "mark": self.mark}

    def step(self, action):
        self.time += 1
        over = self.time >= LIMIT
        return self.shown(), 1.0, False, over, {"time": self.time, "mark": self.mark}

    def shown(self):
        return np.array([self.time, self.mark], np.float64)


class Checked:
    """What each copy showed last; every valid step must follow from it."""

    def __init__(self, obs):
        self.obs = np.array(obs)
        self.lost = self.valid = 0

    def see(self, rows, obs, valid, truncated):
        for row, new, real, over in zip(rows, obs, valid, truncated, strict=True):
            time, mark = self.obs[row]
            if not real:
                assert new[0] == 0, "it stands at a beginning, or shows nothing"
                self.lost += bool(over)
            elif over:
                assert time == LIMIT - 1 and new[0] == 0 and new[1] != mark
            else:
                assert (new == (time + 1, mark)).all()
            self.obs[row], self.valid = new, self.valid + bool(real)


class Killer:
    """Kills a worker now and then, each process once."""

    def __init__(self, handles, seed, most=5):
        self.handles, self.draw, self.left, self.killed = handles, random.Random(seed), most, set()

    def __call__(self):
        handle = self.draw.choice(self.handles)
        there = handle.state == UP and handle.episodes_started and handle.pid not in self.killed
        if self.left and there and self.draw.random() < 0.05:
            os.kill(handle.pid, signal.SIGKILL)
            self.killed.add(handle.pid)
            self.left -= 1


def marked(**more):
    return ForeignEnv(Marked, *member_indices([3], 6), workers=2, policy=PATIENT, **more)


def rounds(killer, checked, most=20_000):
    """Until all kills have happened and 300 good steps followed."""
    good = None
    for t in range(most):
        killer()
        yield t
        if not killer.left:
            good = checked.valid if good is None else good
            if checked.valid > good + 300:
                return
    raise AssertionError("copies did not come back")


def told(env, infos, checked):
    """What is said belongs to what was shown."""
    if "time" in infos:
        rows = np.flatnonzero(infos["_time"])
        assert np.allclose(infos["mark"][rows], checked.obs[rows, 1], rtol=1e-6)


def test_steps():
    with marked() as env:
        checked, draw = Checked(env.reset(seed=1)), random.Random(5)
        for _ in rounds(Killer(env.driver.handles, 1), checked):
            if draw.random() < 0.2:
                told(env, env.infos(), checked)
            obs, _, terminated, truncated = env.step(np.zeros(6, np.int64))
            assert not terminated.any()
            checked.see(range(6), obs, env.arrays["valid"], truncated)
        assert env.fault_log.total == 5 and checked.lost > 0


def test_steps_asked_for_one_by_one():
    with marked() as env:
        checked, draw = Checked(env.reset(seed=1)), random.Random(5)
        env.send(np.zeros(6, np.int64))
        for _ in rounds(Killer(env.driver.handles, 2), checked):
            if draw.random() < 0.1:
                env.infos()  # in between, whoever is away
            got = env.recv(draw.randint(1, 6 if draw.random() < 0.1 else 3))
            checked.see(got.env_ids, got.obs, got.valid, got.truncated)
            env.send(np.zeros(len(got.env_ids), np.int64), got.env_ids)
        env.recv()
        assert env.fault_log.total == 5 and checked.lost > 0


@pytest.mark.parametrize("one_by_one", [False, True])
def test_native_steps_and_what_copies_say(one_by_one):
    envs = [functools.partial(Marked)] * 6
    with NativeEnv(envs, backend="process", at_end=SAME_STEP, workers=2, policy=PATIENT) as env:
        env.reset([1] * 6)
        checked, draw, every = Checked(env.observation()), random.Random(5), np.arange(6)
        for _ in rounds(Killer(env.driver.handles, 4, most=4), checked):
            rows = every
            if one_by_one:
                env.send(np.zeros(6, np.int64))
                rows = env.recv()
            else:
                env.step(np.zeros(6, np.int64))
            for row, obs in zip(rows, env.observations_at(rows), strict=True):
                valid, over = env.arrays["valid"][row], env.arrays["truncated"][row]
                if valid:
                    checked.see([row], [obs], [valid], [over])
                else:
                    checked.lost, checked.obs[row] = checked.lost + bool(over), obs
            told(env, env.infos(), checked)
            if draw.random() < 0.1:
                assert env.call("get_wrapper_attr", ("time",), None, [draw.randrange(6)])[0] >= 0
        assert checked.lost > 0


def test_an_evaluation_has_each_episode_once_whoever_is_killed():
    rows = member_indices([5], 4)

    def scores(kill):
        with ForeignEnv("CartPole-v1", *rows, workers=2, at_end=HOLD, policy=PATIENT) as env:
            out, every = allocate_buffers(env), np.arange(4)
            if kill:
                env.reset(out.obs)
                os.kill(env.driver.handles[0].pid, signal.SIGKILL)
            env.begin(every, every + 10, 7, out.obs)
            found = {}
            for t in range(100_000):
                env.step((out.obs[:, 2:3] > 0).astype(np.int64), out, t)
                ended = env.drain_episodes()
                for copy, length in zip(ended.e.tolist(), ended.length.tolist(), strict=True):
                    assert copy not in found
                    found[copy] = length
                    if kill and len(found) == 1:  # one is held, the others are not
                        os.kill(env.driver.handles[copy // 2].pid, signal.SIGKILL)
                if len(found) == 4:
                    return found
            raise AssertionError("an episode never ended")

    assert scores(kill=True) == scores(kill=False)


@pytest.mark.parametrize("size", [3, 9])
def test_a_worker_may_be_lost_over_a_resize(size):
    with marked() as env:
        checked = Checked(env.reset(seed=1))
        obs, _, _, truncated = env.step(np.zeros(6, np.int64))
        checked.see(range(6), obs, env.arrays["valid"], truncated)
        gone = np.arange(6)[env.driver.handles[0].rows]
        os.kill(env.driver.handles[0].pid, signal.SIGKILL)
        obs, both = env.resize(size), min(size, 6)
        stays = np.setdiff1d(np.arange(both), gone)
        assert (obs[stays] == checked.obs[stays]).all()
        _, _, _, truncated = env.step(np.zeros(size, np.int64))
        assert env.arrays["valid"][stays].all()
        assert not env.arrays["valid"][gone[gone < size]].any()
        assert truncated[gone[gone < size]].all()
        while not env.arrays["valid"].all():
            env.step(np.zeros(size, np.int64))


def test_a_new_worker_may_fail_to_make_a_copy(tmp_path):
    fails = tmp_path / "fails"

    def make():
        if fails.exists():
            fails.unlink()
            raise OSError("no licence")
        return Marked()

    with ForeignEnv(make, *member_indices([3], 2), workers=1, policy=PATIENT) as env:
        checked = Checked(env.reset(seed=1))
        Path(fails).touch()
        os.kill(env.driver.handles[0].pid, signal.SIGKILL)
        valid = np.zeros(2, bool)
        while not valid.all():
            obs, _, _, truncated = env.step(np.zeros(2, np.int64))
            valid = env.arrays["valid"]
            checked.see(range(2), obs, valid, truncated)
        assert [fault.kind for fault in env.drain_faults()] == ["lost", "raised"]


def test_observations_without_a_place_are_shown_again_until_their_copy_is_back():
    with NativeEnv(
        [Marked] * 2, backend="process", workers=2, policy=PATIENT, fixed_size=False
    ) as env:
        env.reset([1, 2])
        env.step(np.zeros(2, np.int64))
        before = env.observation()
        os.kill(env.driver.handles[1].pid, signal.SIGKILL)
        env.step(np.zeros(2, np.int64))
        after = env.observation()
        assert after[0][0] == 2 and not env.arrays["valid"][1]
        assert np.array_equal(after[1], before[1])


def test_a_copy_that_is_made_again_has_the_attributes_that_it_was_given():
    class Raises(Marked):
        level = 0

        def step(self, action):
            if action == 1:
                raise ZeroDivisionError
            return super().step(action)

    with NativeEnv([Raises] * 4, backend="process", workers=2, policy=PATIENT) as env:
        env.reset([1, 2, 3, 4])
        env.set_attr("level", [5, 6, 7], [0, 1, 3])
        env.step(np.array([1, 0, 0, 0]))
        os.kill(env.driver.handles[1].pid, signal.SIGKILL)
        for _ in range(1000):
            env.step(np.zeros(4, np.int64))
            if env.arrays["valid"].all():
                break
        assert env.get_attr("level") == [5, 6, 0, 7]
        assert [fault.kind for fault in env.drain_faults()] == ["raised", "lost"]
