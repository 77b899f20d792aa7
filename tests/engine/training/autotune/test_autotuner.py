"""Ways of stepping are measured within a budget, whatever the environment does."""

import sys

import gymnasium
import pytest

from slipstream.core.errors import ConfigError
from slipstream.training import autotuner
from slipstream.training.autotuner import BenchmarkCase
from slipstream.training.settings.config import resolve

ODD = """
import time
import gymnasium
import numpy as np

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, good=10**9, then="raise"):
        self.good, self.then = good, then

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.good -= 1
        if self.good < 0:
            if self.then == "raise":
                raise ValueError("the simulator is gone")
            time.sleep(1e6)
        return np.zeros(2, np.float32), 1.0, False, False, {}

gymnasium.register("Odd-v0", Odd)
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Return a function that creates configs of an environment that fails after some steps."""
    (tmp_path / "odd_world.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(autotuner, "_FOREIGN_NUM_ENVS", (1, 2))
    monkeypatch.setattr(autotuner, "_compile", lambda measurements: None)

    def config(**kwargs):
        small = {"agent.n_steps": 16, "agent.batch_size": 16, "agent.n_epochs": 1}
        sizes = {"training.num_envs": 2, "training.total_timesteps": 1000}
        return resolve("gym:odd_world:Odd-v0", {**small, **sizes, "env.kwargs": kwargs})

    yield config
    sys.modules.pop("odd_world", None)
    gymnasium.registry.pop("Odd-v0", None)


@pytest.fixture
def patient(monkeypatch):
    """A budget that no machine exhausts, of which a measurement takes little."""
    monkeypatch.setattr(autotuner, "_MAX_SECONDS", 0.1)
    monkeypatch.setattr(autotuner, "_MAX_TIMEOUT", 250.0)
    return 2000.0


def test_backends_copies_and_workers(odd, patient):
    said = []
    measurements = autotuner.tune(odd(), patient, said.append)
    cases = set(measurements.step_speeds)
    assert {
        BenchmarkCase("serial", 1, 1),
        BenchmarkCase("serial", 2, 1),
        BenchmarkCase("process", 2, 2),
    } <= cases
    assert not measurements.problems and not measurements.skipped and not measurements.interrupted
    for one in measurements.step_speeds.values():
        assert one.rate > 0 and one.memory > 2**20 and 0 <= one.waiting <= 1 and one.cores > 0
    assert set(measurements.learn_speeds) == {(1, 1), (2, 1)}
    assert all(
        one.update > 0 and one.steps in (16, 32) for one in measurements.learn_speeds.values()
    )
    assert any("process" in what for what in said)


def test_what_raises_is_told(odd, patient, monkeypatch):
    monkeypatch.setattr(
        autotuner, "_MAX_SECONDS", 100.0
    )  # until it raises, however slow the machine is
    measurements = autotuner.tune(odd(good=40), patient)
    assert not measurements.step_speeds
    assert all("the simulator is gone" in why for why in measurements.problems.values())


@pytest.mark.slow
def test_what_hangs_is_ended(odd, monkeypatch):
    monkeypatch.setattr(autotuner, "_MIN_SECONDS", 1.0)  # for far more steps than are good
    monkeypatch.setattr(autotuner, "_MIN_TIMEOUT", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(autotuner, "_PROBE_SHARE", 50.0)  # where making a copy takes long
        measurements = autotuner.tune(odd(good=40, then="hang"), 4.0)
    assert measurements.problems and not measurements.step_speeds
    with pytest.raises(ConfigError, match=r"could not be created and stepped.*--seconds 40"):
        autotuner.tune(odd(good=5, then="hang"), 4.0)


def test_ctrl_c_keeps_what_was_measured(odd, patient):
    def press(what):
        if "process" in what:
            raise KeyboardInterrupt

    measurements = autotuner.tune(odd(), patient, press)
    assert measurements.interrupted and list(measurements.step_speeds) == [
        BenchmarkCase("serial", 2, 1)
    ]


@pytest.mark.slow
def test_kernels_by_threads(monkeypatch, patient):
    monkeypatch.setattr(autotuner, "_KERNEL_NUM_ENVS", (16,))
    monkeypatch.setattr(autotuner, "usable_cores", lambda: 2)
    sizes = {
        "agent.n_steps": 16,
        "agent.batch_size": 256,
        "agent.n_epochs": 1,
        "agent.net_arch": [8],
    }
    measurements = autotuner.tune(resolve("cartpole", {**sizes, "training.num_envs": 16}), patient)
    assert set(measurements.step_speeds) == {
        BenchmarkCase("compiled", 16, 1),
        BenchmarkCase("compiled", 16, 2),
    }
    assert (
        set(measurements.learn_speeds) == {(16, 1), (16, 2)}
        and measurements.learn_speeds[16, 1].env > 0
    )
