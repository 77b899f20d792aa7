"""`auto`: worker processes where they pay, by what a step was measured to take."""

import gymnasium
import numpy as np
import pytest

from slipstream.gym import gymnasium_environment as chosen
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_environment import is_process_backend_faster, measure_step_seconds


def test_processes_are_for_long_steps_of_many_copies(monkeypatch):
    monkeypatch.setattr(chosen, "usable_cores", lambda: 4)
    assert not is_process_backend_faster(10e-6, 8)  # 80 us in all
    assert not is_process_backend_faster(1e-3, 1)  # one copy has nobody to share with
    assert is_process_backend_faster(1e-3, 8) and is_process_backend_faster(1e-3, 8, 4)
    assert not is_process_backend_faster(1e-3, 8, 1)
    monkeypatch.setattr(chosen.multiprocessing, "parent_process", lambda: object())
    assert not is_process_backend_faster(1e-3, 8), "a shard has one core"


def test_the_quicker_steps_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(chosen.time, "perf_counter", lambda: now[0])

    class Naps(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)
        count = 0

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.count += 1
            now[0] += 0.02 if self.count % 3 == 0 else 0.002  # a nap
            return np.zeros(2, np.float32), 0.0, False, False, {}

    one = np.zeros(1, np.uint64)
    with ForeignEnv(Naps, one, one) as env:
        assert measure_step_seconds(env) == pytest.approx(0.002)
