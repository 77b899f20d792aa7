"""Copies asked for one by one step as they do together."""

import functools
import os
import signal
import sys
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.errors import ConfigError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import NEXT_STEP, NativeEnv
from slipstream.gym.worker_config import EnvScheduler, LongestWaitingFirst
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.vector_env import member_indices

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

PATIENCE_SECONDS = 120.0  # for another worker in the place of a lost one

WAIT, KILL, RAISE = 7, 8, 9


class Gated(gymnasium.Env):
    """Shows its steps, and how many its process had taken; obeys an action of the three above.

    Args:
        gate: a file whose coming ends a wait.
    """

    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(10)
    turns = 0

    def __init__(self, gate=None):
        self.gate = gate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2), {}

    def step(self, action):
        if action == RAISE:
            raise ZeroDivisionError
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        while action == WAIT and not self.gate.exists():
            time.sleep(0.001)
        self.time += 1
        Gated.turns += 1
        return np.array([self.time, Gated.turns]), 1.0, False, self.time >= 5, {"n": self.time}


def gated(copies=6, workers=2, gate=None, **more):
    make = functools.partial(Gated, gate)
    return ForeignEnv(make, *member_indices([3], copies), workers=workers, **more)


def test_the_first_that_are_ready_come_first_and_nothing_is_lost(tmp_path):
    gate = tmp_path / "gate"
    with gated(6, 6, gate) as env:
        with pytest.raises(ConfigError, match="reset"):
            env.send([0] * 6)
        env.reset(seed=2)
        env.send([WAIT, 0, 0, WAIT, 0, 0])
        first = env.recv(2)
        assert set(first.env_ids.tolist()) <= {1, 2, 4, 5} and first.valid.all()
        with pytest.raises(ConfigError, match="have a step in flight"):
            env.send([0], [0])
        with pytest.raises(ConfigError, match="sent but not received"):
            env.step([0] * 6)
        assert env.arrays["actions"][0, 0] == WAIT, "what is refused writes nothing"
        with pytest.raises(TimeoutError):
            env.recv(timeout=0.01)
        gate.touch()
        rest = env.recv()
        assert sorted([*first.env_ids, *rest.env_ids]) == list(range(6))
        assert (rest.obs[:, 0] == 1).all() and rest.reward.dtype == np.float32
        with pytest.raises(ConfigError, match="0 have a step in flight"):
            env.recv(1)
        for _ in range(4):
            env.send([0, 0], [5, 1])
            last = env.recv()
        assert last.truncated.all() and (last.obs[:, 0] == 0).all()
        assert sorted(env.episodes.e.tolist()) == [1, 5] and env.episodes.length.tolist() == [5, 5]
        assert (env.final_obs.obs[:, 0] == 5).all()
        env.step([0] * 6)  # together again


def test_each_copys_trajectory_is_that_of_the_serial_backend():
    rows = member_indices([3], 5)
    with (
        ForeignEnv("CartPole-v1", *rows) as serial,
        ForeignEnv("CartPole-v1", *rows, workers=2) as env,
    ):
        draw, out = np.random.default_rng(0), allocate_buffers(serial)
        table = draw.integers(0, 2, (60, 5, 1))
        serial.reset(out.obs)
        wanted = [out.obs.copy()]
        for actions in table:
            serial.step(actions, out)
            wanted.append(out.obs.copy())
        obs = allocate_buffers(env).obs
        env.reset(obs)
        taken = np.zeros(5, int)
        env.send(table[0, :, 0])
        while taken.sum() < 5 * 60:
            ready = env.recv(2 if env.driver.in_flight.sum() > 1 else 1)
            taken[ready.env_ids] += 1
            for copy, seen in zip(ready.env_ids, ready.obs, strict=True):
                assert np.array_equal(seen, wanted[taken[copy]][copy])
            again = ready.env_ids[taken[ready.env_ids] < 60]
            if len(again):
                env.send(table[taken[again], again, 0], again)


class Backwards(EnvScheduler):
    """The last copy first."""

    def order(self, copies, waited, cost):
        assert len(copies) == len(waited) == len(cost)
        return list(copies)[::-1][:2]  # who is forgotten comes last


def test_a_scheduler_of_ones_own_decides_the_order():
    with gated(4, 1, scheduler=Backwards()) as env:
        env.reset(seed=2)
        env.send([0] * 4), env.recv(4)  # from here on a worker is told of all four at once
        env.send([0] * 4)
        came = env.recv(4)
        assert came.env_ids[np.argsort(came.obs[:, 1])].tolist() == [3, 2, 0, 1]


def test_who_has_waited_longest_is_next():
    assert LongestWaitingFirst().order([4, 7, 9], [0.1, 0.3, 0.3], [0.0] * 3) == [7, 9, 4]


@pytest.mark.parametrize("action", [RAISE, KILL])
def test_a_fault_costs_the_copies_at_hand_only(action):
    with gated(4, 2) as env:
        env.reset(seed=2)
        env.send([0] * 4), env.recv()
        env.send([action, 0, 0, 0])
        got = env.recv()
        valid = dict(zip(got.env_ids.tolist(), got.valid.tolist(), strict=True))
        assert not valid[0] and valid[2] and valid[3]
        assert env.episodes.lost is not None and 0 in env.episodes.e
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            env.send([0] * 4)
            if env.recv().valid.all():
                break
        assert time.monotonic() < until and env.fault_log.total == 1


def test_native_copies_are_asked_for_one_by_one(tmp_path):
    make = functools.partial(Gated, tmp_path / "gate")
    with NativeEnv([make] * 4, backend="process", at_end=NEXT_STEP, workers=2) as env:
        env.reset([1, 2, 3, 4])
        env.send(np.array([WAIT, 0, 0, 0]))
        first = env.recv(2)
        assert 0 not in first
        (tmp_path / "gate").touch()
        assert [env.info_list()[copy]["n"] for copy in first] == [1, 1]
        env.send([0, 1], first)  # a list goes the slow way
        assert sorted([*env.recv(), *()]) == [0, 1, 2, 3] and env.call("time") == [1, *[
            2 if copy in first else 1 for copy in (1, 2, 3)
        ]]  # fmt: skip
