"""NativeSpaces copies step bit for bit as Gymnasium, in this process or in others."""

import copy
import functools
import os
import sys
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError
from slipstream.gym.gymnasium_semantics import DISABLED, NEXT_STEP, SAME_STEP, NativeEnv

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test

MODES = {
    NEXT_STEP: AutoresetMode.NEXT_STEP,
    SAME_STEP: AutoresetMode.SAME_STEP,
    DISABLED: AutoresetMode.DISABLED,
}


class Shows(gymnasium.Env):
    """Samples of any space from its own seeded streams, with infos of every kind."""

    def __init__(self, observation, action, fails_at=None, how="error"):
        self.observation_space = copy.deepcopy(observation)
        self.action_space = copy.deepcopy(action)
        self.fails_at, self.how = fails_at, how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {"options": options} if options else {}

    def step(self, action):
        assert self.action_space.contains(action), repr(action)
        self.time += 1
        if self.fails_at == self.time:
            if self.how == "exit":
                os._exit(3)
            raise ZeroDivisionError("the licence server is gone")
        draw = self.np_random.random()
        info = {}
        if draw < 0.5:
            info = {"time": self.time, "draw": draw, "lucky": draw < 0.2, "half": np.float32(draw),
                    "row": np.full(2, draw), "word": "so", "in": {"depth": self.time}}  # fmt: skip
        return self.observation_space.sample(), draw, draw < 0.15, self.time >= 6, info


SPACES = {
    "box": (spaces.Box(-9, 9, (2, 3), np.float64), spaces.Discrete(3, start=5)),
    "half": (spaces.Box(-1, 1, (3,), np.float16), spaces.Box(-2, 2, (2,), np.float32)),
    "choices": (spaces.MultiDiscrete([3, 2], dtype=np.int8), spaces.MultiDiscrete([3, 2])),
    "bits": (spaces.MultiBinary(4), spaces.MultiBinary(3)),
    "tree": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Box(0, 1, (3,)),))}),
        spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Box(-1, 1, (2,))}),
    ),
    "text": (spaces.Text(5), spaces.Discrete(2)),
}


def assert_same(one, other):
    if isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in other:
            assert_same(one[key], other[key])
    elif isinstance(other, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(other, np.ndarray) and other.dtype == object:
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(other, np.ndarray):
        assert one.dtype == other.dtype and np.array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("name", "at_end", "backend"),
    [
        *((name, mode, "serial") for name in SPACES for mode in MODES),
        *(("tree", mode, "process") for mode in MODES),
        *(
            pytest.param(name, mode, "process", marks=pytest.mark.slow)
            for name in ("box", "choices", "text")
            for mode in MODES
        ),
    ],
)
def test_steps_are_those_of_gymnasium(name, at_end, backend):
    makers = [functools.partial(Shows, *SPACES[name])] * 5
    theirs = SyncVectorEnv(makers, autoreset_mode=MODES[at_end])
    with NativeEnv(makers, backend=backend, at_end=at_end, workers=2) as ours:
        seen, infos = theirs.reset(seed=list(range(7, 12)))
        ours.reset(list(range(7, 12)))
        theirs.action_space.seed(1)
        assert_same(ours.observation(), seen)
        for t in range(20):
            actions = theirs.action_space.sample()
            if t == 9:
                seen, infos = theirs.reset(seed=None, options={"how": 3})
                ours.reset(options={"how": 3})
            seen, reward, terminated, truncated, infos = theirs.step(actions)
            ours.step(actions)
            assert_same(ours.observation(), seen)
            assert_same(ours.infos(), infos)
            for mine, own in (("reward", reward), ("terminated", terminated)):
                assert np.array_equal(ours.arrays[mine], own)
            assert np.array_equal(ours.arrays["truncated"], truncated)
            ended = terminated | truncated
            if at_end == DISABLED and ended.any():
                seen, infos = theirs.reset(options={"reset_mask": ended})
                ours.reset(selected=ended)
                assert_same(ours.observation(), seen)
            for e in np.flatnonzero(ended):
                if at_end == SAME_STEP:
                    assert_same(
                        ours.get_final_observation(e), infos["final_obs"][e] if infos else None
                    )


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_copies_answer_and_errors_are_those_of_the_environment(backend):
    make = functools.partial(Shows, *SPACES["box"])
    with NativeEnv([make] * 2 + [functools.partial(make, 2)], backend=backend, workers=2) as env:
        env.reset([1, 2, 5])
        assert env.call("time") == [0, 0, 0] and env.get_attr("fails_at", [2]) == [2]
        env.set_attr("fails_at", [9, 8], [0, 1])
        assert env.get_attr("fails_at") == [9, 8, 2]
        for wrong, error in (([5, 6], ValueError), (3, TypeError)):
            with pytest.raises(error):
                env.step(wrong)
        env.step(np.array([5, 6, 7]))
        with pytest.raises(KernelError, match="environment 2") as raised:
            env.step([5, 6, 7])
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        env.reset([1, 2, 5])
        env.step([5, 6, 7])
    with pytest.raises(ConfigError, match="closed"):
        env.step([5, 6, 7])


@pytest.mark.parametrize("how", ["error", "exit"])
def test_lost_copies_end_truncated_and_go_on(how):
    make = functools.partial(Shows, *SPACES["box"])
    makers = [make, functools.partial(make, 3, how), make, make]
    policy = FaultPolicy("restart")
    with NativeEnv(makers, backend="process", policy=policy, workers=2) as env:
        env.reset([4, 5, 6, 7])
        for _ in range(2):
            env.step([5] * 4)
        if env.arrays["ended"].any():
            pytest.fail("choose other seeds")
        env.step([5] * 4)
        assert env.arrays["truncated"][1] and env.arrays["lost"][1] and not env.arrays["valid"][1]
        if how == "error":
            assert "licence" in env.infos()["fault"][1]
        until = time.monotonic() + 120.0
        while not env.arrays["valid"].all() and time.monotonic() < until:
            env.step([5] * 4)
        assert env.arrays["valid"].all() and env.drain_faults()[0].env_id == 1


def test_what_was_begun_can_be_awaited_again(tmp_path):
    gate = tmp_path / "gate"

    class Slow(Shows):
        def step(self, action):
            while not gate.exists():
                time.sleep(0.001)
            return super().step(action)

    with NativeEnv([functools.partial(Slow, *SPACES["box"])], backend="process") as env:
        env.reset([1])
        env.step_async(np.array([5]))
        with pytest.raises(TimeoutError):
            env.wait(0.01)
        gate.touch()
        env.wait()
        assert env.call("time") == [1]


class OneInfo(Shows):
    """Fills one dict, and one list in it, again and again."""

    def __init__(self):
        super().__init__(*SPACES["box"])
        self.info = {"row": [0]}

    def _told(self, what):
        self.info["what"], self.info["row"][0] = what, self.time
        return self.info

    def reset(self, *, seed=None, options=None):
        seen, _ = super().reset(seed=seed)
        return seen, self._told("reset")

    def step(self, action):
        *came, _ = super().step(action)
        return *came, self._told("step")


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_infos_outlive_a_dict_that_is_used_again(backend):
    with NativeEnv([OneInfo], backend=backend, at_end=SAME_STEP) as env:
        env.reset([3])
        first = env.info_list()
        for _ in range(6):
            env.step([5])
            if env.arrays["ended"].any():
                break
        assert env.final_info_list()[0]["what"] == "step"
        assert env.info_list() == first == [{"row": [0], "what": "reset"}]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_spaces_are_the_callers_own(backend):
    make = functools.partial(Shows, *SPACES["box"])
    with NativeEnv([make] * 2, backend=backend, workers=2) as env:
        env.observation_space.low[...] = -1
        assert env.env_config.observation_space == SPACES["box"][0]
        env.reset([1, 2])
        env.resize(3)  # the new copy is compared with the first one as it was
        assert env.observation().shape == (3, 2, 3)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_is_refused_leaves_actions_under_way_alone(backend):
    make = functools.partial(Shows, *SPACES["box"])
    with NativeEnv([make] * 4, backend=backend, workers=2) as env:
        env.reset([1, 2, 3, 4])
        for wrong in ([0, 0], [-1, 0], [0, 4]):
            with pytest.raises(ConfigError, match="distinct environment ids from 0 to 3"):
                env.send(np.array([5, 5]), wrong)
        env.send(np.array([6, 7]), [0, 1])
        with pytest.raises(ConfigError, match="have a step in flight"):
            env.send(np.array([5, 5]), [1, 2])
        with pytest.raises(ConfigError, match="sent"):
            env.step(np.full(4, 5))
        assert env.arrays["actions"][:2].tolist() == [6, 7]
        assert sorted(env.recv(2)) == [0, 1]
    for call in (env.wait, env.recv):
        with pytest.raises(ConfigError, match="is closed"):
            call()
