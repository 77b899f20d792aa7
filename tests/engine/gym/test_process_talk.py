"""What workers are asked beside steps: of any size, refused, failing, and while they are lost."""

import functools
import os
import pickle
import signal
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import KernelError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import NativeEnv
from slipstream.gym.process.env_worker import WorkerHandle
from slipstream.gym.process.shared_memory import anonymous_file
from slipstream.kernels.vector_env import member_indices

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

RESTART = FaultPolicy("restart")


class Answers(gymnasium.Env):
    """Has an attribute, and says something that has no place in the block."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, word="so", actions=action_space):
        self.word, self.action_space = word, actions
        self.data = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.data = 0 if options is None else options["data"]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {"word": self.word}


class DiesOverIt:
    """Its process ends when it is pickled for the first time."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        if self.file.exists():
            return str, ("again",)
        self.file.touch()
        os._exit(3)


class SaysWhatKills(Answers):
    def __init__(self, file):
        super().__init__()
        self.file = file

    def step(self, action):
        self.word = DiesOverIt(self.file)
        return super().step(action)


def two(makers=(Answers, Answers), **kwargs):
    return NativeEnv(makers, backend="process", workers=2, **kwargs)


def test_what_is_handed_over_may_be_larger_than_a_pipe():
    large = np.arange(500_000)
    with two() as env:
        env.reset(options={"data": large})
        assert all(np.array_equal(data, large) for data in env.get_attr("data"))


def test_nobody_is_asked_what_cannot_be_pickled_for_everybody():
    with two() as env:
        env.reset()
        with pytest.raises((AttributeError, pickle.PicklingError)):
            env.set_attr("data", [1, lambda: 1])
        assert env.get_attr("data") == [0, 0]


def test_steps_go_on_after_a_question_that_failed():
    with two() as env:
        env.reset()
        env.send(np.zeros(2, np.int64))
        with pytest.raises(AttributeError, match="nobody has it"):
            env.get_attr("nobody has it")
        assert sorted(env.recv(timeout=20)) == [0, 1]


def test_a_new_worker_serves_whoever_waited_for_it():
    with two(policy=RESTART) as env:
        env.reset()
        env.send(np.zeros(2, np.int64))
        env.recv()
        os.kill(env.driver.handles[1].pid, signal.SIGKILL)
        with pytest.raises(KernelError, match="worker 1 was lost"):
            env.get_attr("data", [1])
        assert env.get_attr("data", [0]) == [0]
        env.send(np.zeros(2, np.int64))
        assert sorted(env.recv(timeout=20)) == [0, 1]


def test_a_worker_may_be_lost_before_it_has_its_actions():
    make = functools.partial(Answers, "so", spaces.Dict(a=spaces.Discrete(2)))
    actions = {"a": np.zeros(2, np.int64)}
    with two([make, make], policy=RESTART) as env:
        env.reset()
        env.step(actions)
        os.kill(env.driver.handles[1].pid, signal.SIGKILL)
        env.step(actions)
        for name in ("lost", "truncated"):
            assert env.arrays[name].tolist() == [False, True]
        env.step(actions)
        assert not env.arrays["lost"].any() and env.arrays["valid"][0]


def test_a_worker_that_is_lost_over_its_infos_has_said_nothing(tmp_path):
    makers = [Answers, functools.partial(SaysWhatKills, tmp_path / "native")]
    with two(makers, policy=RESTART) as env:
        env.reset()
        env.step(np.zeros(2, np.int64))
        assert env.info_list() == [{"word": "so"}, {}]
        assert env.infos()["_word"].tolist() == [True, False]
        assert [fault.kind for fault in env.drain_faults()] == ["lost"]
    make = functools.partial(SaysWhatKills, tmp_path / "trained")
    with ForeignEnv(make, *member_indices([3], 1), workers=1, policy=RESTART) as env:
        env.reset(seed=1)
        env.step([0])
        assert env.infos() == {}
        env.step([0])
        assert [fault.kind for fault in env.drain_faults()] == ["lost"]


def test_of_last_words_the_last_are_kept():
    handle = WorkerHandle()
    handle._crash_file = anonymous_file(0)
    os.write(handle._crash_file, b"a call that hung and came back\n" * 1000 + b"the end")
    assert handle.crash_output().endswith("the end")
    handle.close()
