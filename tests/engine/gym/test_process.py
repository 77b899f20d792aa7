"""Worker processes step the same trajectories as this process does, and leave nothing behind."""

import copy
import functools
import gc
import os
import sys
import threading
from contextlib import suppress

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from slipstream.core.child_process import BEAT
from slipstream.core.errors import ConfigError, KernelError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.kernels.loop import HOLD, RESET_KEEP_ALL
from slipstream.kernels.vector_env import member_indices

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Tree(gymnasium.Env):
    """Shows samples of any space, seeded by its episode; keeps one buffer where it is an array."""

    def __init__(self, observation, action=None, limit=7):
        self.observation_space = copy.deepcopy(observation)  # copies draw from their own
        self.action_space = spaces.Discrete(3, start=5) if action is None else action
        self.limit, self.buffer = limit, None

    def _show(self):
        seen = self.observation_space.sample()
        if not isinstance(seen, np.ndarray):
            return seen
        self.buffer = seen.copy() if self.buffer is None else self.buffer
        self.buffer[...] = seen
        return self.buffer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        draw = self.np_random.random()
        total = float(np.sum(action))
        return self._show(), draw + total, draw < 0.1, self.time >= self.limit, {}


SPACES = {
    "box": spaces.Box(-9, 9, (2, 3), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "half": spaces.Box(-1, 1, (3,), np.float16),
    "choice": spaces.Discrete(4, start=2),
    "choices": spaces.MultiDiscrete([3, 2], start=[1, 4]),
    "bits": spaces.MultiBinary((2, 2)),
    "tree": spaces.Dict(
        {
            "a": spaces.Discrete(2),
            "b": spaces.Tuple((spaces.Box(0, 1, (3,)), spaces.MultiBinary(2))),
            "c": spaces.Box(-5, 5, (), np.int64),
        }
    ),
}
ACTIONS = {
    "image": spaces.Box(-2, 2, (2, 2), np.float64),
    "choices": spaces.MultiDiscrete([3, 2], start=[1, 4]),
    "bits": spaces.MultiBinary(3),
}


def same(mine, theirs, steps, reset=True, rows=None):
    """Two environments that must step alike; what ended in both."""
    one, other = rows or (allocate_buffers(mine), allocate_buffers(theirs))
    if reset:
        mine.reset(one.obs, one.mask), theirs.reset(other.obs, other.mask)
        assert np.array_equal(one.obs, other.obs)
    draw = np.random.default_rng(0)
    for t in range(steps):
        actions = random_actions(mine.spec, mine.num_envs, draw, one.mask)
        mine.step(actions, one, t), theirs.step(actions, other, t)
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a, b)
    finals = mine.drain_final_obs(), theirs.drain_final_obs()
    assert all(map(np.array_equal, *finals))
    ended = mine.drain_episodes(), theirs.drain_episodes()
    assert all(map(np.array_equal, ended[0][:4], ended[1][:4])) and ended[1].lost is None
    for name, values in ended[0].metrics.items():
        assert np.array_equal(values, ended[1].metrics[name])
    return len(ended[0].t), len(finals[0].obs)


def leftovers():
    """Children of this process, and its descriptors of pipes, sockets and memory files."""
    found = {("process", child.pid) for child in psutil.Process().children(recursive=True)}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            kind = os.readlink(f"/proc/self/fd/{fd}")
            if any(word in kind for word in ("slipstream", "pipe", "socket")):
                found.add((kind, int(fd)))
    return found


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    before = leftovers()
    yield
    gc.collect()  # views of a block in the frames of an exception hold its memory
    assert leftovers() <= before  # what an earlier test has left may go meanwhile


@pytest.mark.parametrize(
    ("name", "workers"),
    [pytest.param(n, 1 + i % 3, marks=[pytest.mark.slow] * (i % 2)) for i, n in enumerate(SPACES)],
)
def test_trajectories_are_those_of_the_serial_backend(name, workers):
    make = functools.partial(Tree, SPACES[name], ACTIONS.get(name))
    rows = member_indices([3, 4], 2)
    with (
        ForeignEnv(make, *rows, limit=5) as serial,
        ForeignEnv(make, *rows, limit=5, workers=workers) as process,
    ):
        assert process.backend == "process" and len(process.driver.handles) == workers
        ended, finals = same(serial, process, 20)
        assert ended > 12 and finals > 8
        state = serial.get_state()
        assert all(np.array_equal(process.get_state()[k], state[k]) for k in state)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_any_number_of_workers_steps_alike(workers):
    rows = member_indices([1], 5)
    with (
        ForeignEnv("CartPole-v1", *rows, at_end=RESET_KEEP_ALL) as serial,
        ForeignEnv("CartPole-v1", *rows, at_end=RESET_KEEP_ALL, workers=workers) as process,
    ):
        assert min(same(serial, process, 60)) > 5


def test_workers_can_be_spawned():
    rows = member_indices([1], 3)
    with (
        ForeignEnv("Pendulum-v1", *rows) as serial,
        ForeignEnv("Pendulum-v1", *rows, workers=2, method="spawn") as process,
    ):
        assert same(serial, process, 5) == (0, 0)


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_another_start_method_is_refused(method):
    with pytest.raises(ConfigError, match=rf"got `{method}`\. Use `forkserver`"):
        ForeignEnv("CartPole-v1", *member_indices([1], 1), method=method, workers=None)


def test_evaluation_holds_and_begins_chosen_episodes():
    rows = member_indices([0], 4)
    make = functools.partial(Tree, SPACES["box"])
    with (
        ForeignEnv(make, *rows, at_end=HOLD) as serial,
        ForeignEnv(make, *rows, at_end=HOLD, workers=2) as process,
    ):
        one, other = allocate_buffers(serial), allocate_buffers(process)
        every = np.arange(4)
        for env, out in ((serial, one), (process, other)):
            env.begin(every, every + 6, 11, out.obs)
        assert np.array_equal(one.obs, other.obs)
        assert same(serial, process, 9, False, (one, other))[0] == 4
        assert process.arrays["held"].all()
        for env, out in ((serial, one), (process, other)):
            env.begin(np.array([3, 1]), np.array([2, 3]), 11, out.obs)
        assert np.array_equal(one.obs[[1, 3]], other.obs[[1, 3]])
        assert same(serial, process, 9, False, (one, other))[0] == 2


def test_saved_copies_go_on_in_either_backend():
    rows = member_indices([4], 3)
    with (
        ForeignEnv("CartPole-v1", *rows) as serial,
        ForeignEnv("CartPole-v1", *rows, workers=2) as process,
        ForeignEnv("CartPole-v1", *rows, workers=3) as again,
    ):
        same(serial, process, 33)
        obs = allocate_buffers(again).obs
        again.set_state(serial.get_state(), obs)
        assert again.num_restarted == 0 and np.array_equal(obs, serial.get_state()["seen"])
        assert same(process, again, 40, reset=False)[0] > 2
        strange = {**serial.get_state(), "ret": np.full(3, 0.5)}
        again.set_state(strange, obs)
        assert again.num_restarted == 3 and (again.get_state()["length"] == 0).all()


def test_values_come_back_as_the_environment_shows_them():
    make = functools.partial(Tree, SPACES["tree"])
    with ForeignEnv(make, *member_indices([0], 3), workers=2) as env:
        obs = env.reset(seed=4)
        assert set(obs) == {"a", "b", "c"} and obs["c"].shape == (3,)
        again, reward, *_ = env.step([5, 6, 7])
        assert reward.dtype == np.float32 and again["b"][0].shape == (3, 3)
        with pytest.raises(ConfigError, match="no integer from 5"):
            env.step([0, 1, 2])
        with pytest.raises(ConfigError, match="shape"):
            env.step([5, 6])
        env.step([5, 6, 7])  # it is still good


def test_calls_at_the_wrong_time():
    env = ForeignEnv("CartPole-v1", *member_indices([0], 2), workers=1)
    out, actions = allocate_buffers(env), np.zeros((2, 1), np.int64)
    with pytest.raises(ConfigError, match="reset"):
        env.step(actions, out)
    env.reset(out.obs)
    with pytest.raises(ConfigError, match="actions of shape"):
        env.step(actions[:1], out)
    env.step(actions, out)
    env.close(), env.close()
    with pytest.raises(ConfigError, match="closed"):
        env.step(actions, out)
    with pytest.raises(ConfigError, match="closed"):
        env.reset(out.obs)


def test_copies_must_agree_in_their_spaces(tmp_path):
    count = tmp_path / "count"
    count.write_text("")

    def make():
        count.write_text(count.read_text() + "x")
        return Tree(spaces.Box(0, 1, (3 if len(count.read_text()) == 3 else 2,)))

    with pytest.raises(ConfigError, match=r"environment 1.*Box.*\(3,\).*the same"):
        ForeignEnv(make, *member_indices([0], 3), workers=1)


def test_what_cannot_travel_is_named():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"pickled for worker.*lock.*inside"):
        ForeignEnv(
            lambda: (lock, gymnasium.make("CartPole-v1"))[1],
            *member_indices([0], 1),
            workers=None,
        )


def test_what_fails_in_a_constructor_is_said_at_once(tmp_path):
    only = os.getpid()

    def make():
        if os.getpid() != only:
            raise FileNotFoundError("no licence")
        return Tree(SPACES["box"])

    with pytest.raises(KernelError, match=r"worker 0.*no licence"):
        ForeignEnv(make, *member_indices([0], 2), workers=1)


class Says(Tree):
    """Says something besides, of all kinds."""

    def step(self, action):
        seen, draw, *ends, _ = super().step(action)
        info = {"time": self.time, "draw": draw, "word": "so"} if draw > 3.0 else {}
        return seen, draw, *ends, info


def test_infos_come_on_request_as_arrays_with_masks():
    rows = member_indices([3], 4)
    make = functools.partial(Says, SPACES["box"])
    theirs = gymnasium.vector.SyncVectorEnv([make] * 4)
    with (
        ForeignEnv(make, *rows) as serial,
        ForeignEnv(make, *rows, workers=2) as process,
    ):
        assert serial.infos() == {}
        one, other, seen = allocate_buffers(serial), allocate_buffers(process), 0
        serial.reset(one.obs), process.reset(other.obs)
        assert process.infos() == {}
        for _ in range(12):
            actions = np.arange(4)[:, None] % 3
            serial.step(actions, one), process.step(actions, other)
            infos, others = serial.infos(), process.infos()
            assert infos.keys() == others.keys()
            for key, values in infos.items():
                assert values.dtype == others[key].dtype and list(values) == list(others[key])
            if infos:
                seen += 1
                assert infos["time"].dtype == np.int64 and infos["_word"].dtype == np.bool_
                wanted = {}
                for e in np.flatnonzero(infos["_time"]):
                    said = {key: infos[key][e].item() for key in ("time", "draw")}
                    wanted = theirs._add_info(wanted, said, int(e))
                assert all(np.array_equal(wanted[key], infos[key]) for key in wanted)
        assert seen > 3


def test_each_call_of_a_replay_has_its_own_time_to_hang():
    with ForeignEnv("CartPole-v1", *member_indices([1], 1), workers=1) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        for t in range(6):
            env.step(np.array([[t % 2]]), out, t)
        state, words = env.get_state(), env.driver.handles[0].words
        beat = words[BEAT]
        env.set_state(state, out.obs)
        assert env.num_restarted == 0 and words[BEAT] - beat >= 6
