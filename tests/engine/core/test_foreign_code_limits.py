"""Foreign code that does not end, or that forks the process and returns twice."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest

import slipstream
from slipstream.core import child_process
from slipstream.core.child_process import TimeLimitError, time_limit
from slipstream.core.errors import KernelError
from slipstream.gym import env_factory
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve

FORKING = """
import os
import gymnasium as gym, numpy as np
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.kernels.vector_env import allocate_buffers

class Forking(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        if {method!r} == "reset":
            os.fork()
        return np.zeros(2, np.float32), {{}}
    def step(self, action):
        if {method!r} == "step":
            os.fork()
        return np.zeros(2, np.float32), 1.0, False, False, {{}}
    def close(self):
        if {method!r} == "close":
            os.fork()

def make():
    if {method!r} == "make":
        os.fork()
    return Forking()

if __name__ == "__main__":
    numbers = np.arange(3, dtype=np.uint64)
    with ForeignEnv(make, numbers, numbers, workers={workers}) as env:
        out = allocate_buffers(env)
        env.reset_rows(out.obs)
        for t in range(3):
            env.step_rows(np.zeros((3, 1), np.int64), out, t)
    print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("method", "workers"),
    [("step", 0), ("step", 2), *(pytest.param(m, 0) for m in ("make", "reset", "close"))],
)
def test_a_process_that_returns_from_a_fork_in_foreign_code_is_ended(tmp_path, method, workers):
    (tmp_path / "forking.py").write_text(FORKING.format(method=method, workers=workers))
    done = subprocess.run(
        [sys.executable, "forking.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"
    assert "forked the process, and the new process returned into slipstream" in done.stderr


@pytest.mark.usefixtures("_free_alarm")
def test_foreign_code_that_sleeps_is_ended():
    began = time.monotonic()
    with pytest.raises(TimeLimitError), time_limit(0.1):
        time.sleep(60.0)
    assert time.monotonic() - began < 30.0
    with time_limit(0.2):
        pass
    time.sleep(0.3)  # no alarm is left


@pytest.mark.usefixtures("_free_alarm")
def test_a_thread_and_a_debugger_have_no_limit():
    ended = []

    def slowly():
        with time_limit(0.05):
            time.sleep(0.2)
        ended.append("thread")

    thread = threading.Thread(target=slowly)
    thread.start()
    thread.join()
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        with time_limit(0.05):
            time.sleep(0.2)
    finally:
        sys.settrace(before)
    assert ended == ["thread"]


class Endless(gym.Env):
    observation_space, action_space = (
        gym.spaces.Box(-1, 1, (2,), np.float32),
        gym.spaces.Discrete(2),
    )

    def close(self):
        time.sleep(60.0)


@pytest.mark.usefixtures("_free_alarm")
def test_a_constructor_that_does_not_end_is_refused_by_its_line(monkeypatch):
    monkeypatch.setattr(child_process, "START_SECONDS", 0.1)
    child_process.hang_timeout.set(0.0)  # of a config of an earlier test
    with pytest.raises(KernelError, match=r"constructor .* more than 0.1 s .*limits\.py:\d+\)"):
        env_factory.make_gymnasium(lambda: time.sleep(60.0))


class Slow(Endless):
    def __init__(self):
        time.sleep(0.3)

    def close(self):
        pass


@pytest.mark.usefixtures("_free_alarm")
def test_a_slow_constructor_may_be_allowed_more_by_what_its_refusal_names(monkeypatch):
    monkeypatch.setattr(child_process, "START_SECONDS", 0.1)
    refused = resolve(slipstream.register(Slow, "slow"), {"training.hang_seconds": 0.1})
    with pytest.raises(KernelError) as caught:
        resolve_environment(refused.env_name, refused.env_settings)
    (setting,) = re.findall(r"`--set (training\.hang_seconds=\S+)`", str(caught.value))
    config = resolve(refused, [setting])
    assert resolve_environment(config.env_name, config.env_settings).spec.num_actions == 2
    assert config.training.hang_seconds == 1.0


@pytest.mark.usefixtures("_free_alarm")
def test_a_close_that_does_not_end_is_given_up_and_named_once(monkeypatch, capsys):
    monkeypatch.setattr(env_factory, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(env_factory, "_failed_closes", {})
    for _ in range(3):
        env_factory.close_env(Endless(), "gym:Endless")
    said = capsys.readouterr().err
    assert said.count("`close` took more than 0.1 s") == 1
