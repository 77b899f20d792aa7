"""What fails in a copy or a worker costs only its own rows, and nothing outlives anyone."""

import functools
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import KernelError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.process.env_worker import HANG_SIGNAL
from slipstream.gym.process.fault_log import MAX_ATTEMPTS, backoff
from slipstream.gym.process.launcher import Launcher
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.loop import HOLD, RESET
from slipstream.kernels.vector_env import member_indices
from slipstream.training.environments.evaluator import lost_sentence, run_episodes

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Faulty(gymnasium.Env):
    """Counts its steps; fails in the way that it is told, once, when the action is 1.

    Args:
        how: what it does.
        mark: a file that says that it has failed; None: it fails whenever it is told to.
    """

    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, how, mark=None, limit=50):
        self.how, self.mark, self.limit = how, mark, limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.start = 0, self.np_random.random()
        return np.array([0.0, self.start]), {}

    def step(self, action):
        self.time += 1
        seen = np.array([float(self.time), self.start])
        if action == 1 and not (self.mark and os.path.exists(self.mark)):
            if self.mark:
                Path(self.mark).touch()
            seen = getattr(self, self.how)(seen)
        return seen, 1.0, False, self.time >= self.limit, {}

    def error(self, seen):
        raise ZeroDivisionError("the licence server is gone")

    def leave(self, seen):
        raise SystemExit(3)

    def shape(self, seen):
        return np.zeros(3)

    def nan(self, seen):
        return seen * np.nan

    def too_large(self, seen):
        return seen + 1e300

    def sleep(self, seen):
        time.sleep(100)

    def wait(self, seen):
        while not Path(f"{self.mark}.go").exists():
            time.sleep(0.001)
        return seen

    def spin(self, seen):
        while True:
            pass

    def deaf(self, seen):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        time.sleep(100)

    def kill(self, seen):
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self, seen):
        os.kill(os.getpid(), signal.SIGSEGV)

    def exit(self, seen):
        os._exit(7)

    def fork(self, seen):
        child = os.fork()
        if child:
            Path(self.mark).write_text(str(child))
            os._exit(7)
        time.sleep(20)
        os._exit(0)


IN_COPY = ("error", "leave", "shape", "nan", "too_large", "sleep", "spin")
IN_WORKER = ("deaf", "kill", "crash", "exit")
HANGS = ("sleep", "spin", "deaf", "fork")
PATIENCE_SECONDS = 120.0  # for another worker in the place of a lost one


def faulty(how, mark=None, copies=4, workers=2, policy=None, at_end=RESET, limit=50):
    if policy is None:  # where nothing hangs, nothing may be taken for it
        policy = FaultPolicy(hang_seconds=1.0) if how in HANGS else FaultPolicy()
    make = functools.partial(Faulty, how, mark, limit)
    rows = member_indices([3], copies)
    return ForeignEnv(make, *rows, workers=workers, policy=policy, at_end=at_end)


def actions_for(env, copy=None):
    rows = np.zeros((env.num_envs, 1), np.int64)
    if copy is not None:
        rows[copy] = 1
    return rows


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.slow] * (how == "sleep")) for how in IN_COPY]
)
def test_a_copy_that_fails_is_begun_again_alone(how, tmp_path):
    with faulty(how, str(tmp_path / "mark")) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        pids = [handle.pid for handle in env.driver.handles]
        first = out.obs.copy()
        env.step(actions_for(env), out, 0)
        env.step(actions_for(env, 1), out, 1)
        assert out.valid.tolist() == [True, False, True, True]
        assert out.truncated.tolist() == [False, True, False, False]
        assert not out.terminated.any() and out.reward.tolist() == [1, 0, 1, 1]
        assert out.obs[:, 0].tolist() == [2, 0, 2, 2], "it stands at a new beginning"
        assert out.obs[1, 1] != first[1, 1]
        ended = env.drain_episodes()
        assert (ended.t.tolist(), ended.e.tolist(), ended.length.tolist()) == ([1], [1], [1])
        assert ended.lost.tolist() == [True] and len(env.drain_final_obs().obs) == 0
        (fault,) = env.drain_faults()
        assert (fault.env_id, fault.worker, fault.episode, fault.step) == (1, 0, 0, 1)
        assert fault.action == [1] and fault.kind == (
            "hung" if how in ("sleep", "spin") else "raised"
        )
        env.step(actions_for(env), out, 2)
        assert out.valid.all() and out.obs[:, 0].tolist() == [3, 1, 3, 3]
        assert pids == [handle.pid for handle in env.driver.handles], "in the same processes"


@pytest.mark.slow
def test_a_worker_is_missed_though_a_child_of_it_lives_on(tmp_path):
    mark = tmp_path / "mark"
    with faulty("fork", str(mark), copies=2) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        env.step(actions_for(env, 1), out, 0)
        child = psutil.Process(int(mark.read_text()))
        assert child.status() != psutil.STATUS_ZOMBIE, "it lives on"
        child.kill()
        assert out.valid.tolist() == [True, False]
        assert [fault.kind for fault in env.drain_faults()] == ["lost"]


def test_a_copy_may_hang_in_the_step_in_which_its_neighbour_begins_again(tmp_path):
    with faulty("sleep", str(tmp_path / "mark"), limit=2) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        pids = [handle.pid for handle in env.driver.handles]
        env.step(actions_for(env), out, 0)
        env.step(actions_for(env, 1), out, 1)  # copy 0 of the same worker has ended
        assert out.valid.tolist() == [True, False, True, True]
        assert out.truncated.all() and [fault.kind for fault in env.drain_faults()] == ["hung"]
        assert pids == [handle.pid for handle in env.driver.handles], "in the same processes"


def test_a_hang_says_where_it_was(tmp_path):
    with faulty("sleep", str(tmp_path / "mark")) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        env.step(actions_for(env, 2), out, 0)
        (fault,) = env.drain_faults()
        assert "time.sleep(100)" in fault.text and "took too long" in fault.text


def test_a_signal_for_a_call_that_has_come_back_hits_nobody(tmp_path):
    mark = tmp_path / "mark"
    with faulty("wait", str(mark)) as env:
        env.reset(allocate_buffers(env).obs)
        env.send([0, 1, 0, 0])
        while not mark.exists():
            time.sleep(0.001)
        os.kill(env.driver.handles[0].pid, HANG_SIGNAL)  # nobody said that this call takes too long
        Path(f"{mark}.go").touch()
        assert env.recv().valid.all() and not env.drain_faults()


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.slow] * (how == "deaf")) for how in IN_WORKER]
)
def test_a_worker_that_is_lost_is_replaced(how, tmp_path):
    with faulty(how, str(tmp_path / "mark")) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        lost = env.driver.handles[0].pid
        env.step(actions_for(env), out, 0)
        env.step(actions_for(env, 1), out, 1)
        assert out.valid.tolist() == [False, False, True, True]
        assert out.truncated.tolist() == [True, True, False, False]
        assert out.obs[2:, 0].tolist() == [2, 2] and np.isfinite(out.obs).all()
        ended = env.drain_episodes()
        assert ended.e.tolist() == [0, 1] and ended.lost.all() and ended.length.tolist() == [1, 1]
        (fault,) = env.drain_faults()
        assert fault.kind == "lost" and fault.pid == lost and fault.env_id == 1
        words = {"kill": "SIGKILL", "crash": "Segmentation", "exit": "exit code 7", "deaf": "hung"}
        assert words[how] in fault.text
        until, t = time.monotonic() + PATIENCE_SECONDS, 2
        while not out.valid.all() and time.monotonic() < until:
            env.step(actions_for(env), out, t)
            assert out.valid[2:].all() and out.obs[2:, 0].tolist() == [(t + 1) % 50] * 2
            assert not out.truncated[:2].any(), "their episodes are counted once"
            t += 1
            time.sleep(0.002)
        assert out.valid.all() and out.obs[:2, 0].tolist() == [1, 1]
        assert env.driver.handles[0].pid != lost


def test_a_worker_killed_while_nobody_steps(tmp_path):
    with faulty("error", copies=2, workers=1) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        os.kill(env.driver.handles[0].pid, signal.SIGKILL)
        env.step(actions_for(env), out, 0)
        assert not out.valid.any() and out.truncated.all()
        env.step(actions_for(env), out, 1)  # waits, for there is nothing else to step
        env.step(actions_for(env), out, 2)
        assert out.valid.all() and out.obs[:, 0].tolist() == [1, 1]


def test_the_server_of_workers_killed(tmp_path):
    with faulty("error", copies=2, workers=2) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        os.kill(env.driver._process_pool._launcher._server.pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE_SECONDS
        for t in itertools.count():
            env.step(actions_for(env), out, t)
            if env.fault_log.total == 2 and out.valid.all():
                break
            assert time.monotonic() < until
            time.sleep(0.01)
        assert env.fault_log.total == 2


@pytest.mark.parametrize("how", ["error", "kill"])
def test_evaluation_repeats_the_episode_that_was_lost(how, tmp_path):
    """`valid` false says that a copy stands at its episode's beginning again."""
    make = functools.partial(Faulty, how, str(tmp_path / "mark"), 4)
    rows = member_indices([0], 2)
    with (
        ForeignEnv(functools.partial(Faulty, how, "/", 4), *rows, at_end=HOLD) as serial,
        ForeignEnv(make, *rows, at_end=HOLD, workers=1) as env,
    ):
        out, wanted = allocate_buffers(env), allocate_buffers(serial)
        every = np.arange(2)
        env.begin(every, every + 4, 9, out.obs), serial.begin(every, every + 4, 9, wanted.obs)
        first = out.obs.copy()
        assert np.array_equal(first, wanted.obs)
        env.step(actions_for(env), out, 0)
        env.step(actions_for(env, 0), out, 1)
        assert not out.valid[0] and not out.truncated.any()
        for t in range(2, 40):
            if t > 2 and out.valid.all() and env.arrays["held"].all():
                break
            env.step(actions_for(env), out, t)
            for copy in np.flatnonzero(~out.valid & (how == "error")):
                assert np.array_equal(out.obs[copy], first[copy])
        ended = env.drain_episodes()
        assert sorted(ended.length.tolist()) == [4, 4] and ended.lost is None
        assert np.array_equal(out.obs[:, 1], first[:, 1])


def test_whoever_steps_by_hand_sees_which_rows_are_real(tmp_path):
    with faulty("error", str(tmp_path / "mark")) as env:
        env.reset(seed=1)
        assert env.valid.all()
        obs, reward, _, truncated = env.step([0, 1, 0, 0])
        assert env.valid.tolist() == [True, False, True, True]
        assert reward.tolist() == [1, 0, 1, 1] and truncated.tolist() == [False, True, False, False]
        assert obs[:, 0].tolist() == [1, 0, 1, 1]
        env.step([0, 0, 0, 0])
        assert env.valid.all()


class Poor(Faulty):
    """Fails at one start in some, whenever an episode begins there."""

    def __init__(self, how, share):
        super().__init__(how, limit=4)
        self.share = share

    def reset(self, **more):
        seen = super().reset(**more)
        if self.how == "reset" and self.start < self.share:
            raise ZeroDivisionError("no way to begin here")
        return seen

    def step(self, action):
        return super().step(int(self.how != "reset" and self.time == 1 and self.start < self.share))


def evaluated(how, share, episodes=24):
    make = functools.partial(Poor, how, share)
    with ForeignEnv(make, *member_indices([0], 4), at_end=HOLD, workers=2) as env:
        act = functools.partial(np.zeros, (4, 1), np.int64)
        return run_episodes(env, lambda seen: act(), episodes, 5, record=False), env.drain_faults()


@pytest.mark.parametrize("how", [pytest.param("reset", marks=pytest.mark.slow), "error", "exit"])
def test_an_episode_that_always_fails_counts_as_lost(how):
    (tracks,), faults = evaluated(how, 0.2)
    lost = [fault for fault in faults if fault.kind == "given up"]
    assert 0 < len(lost) < 12 and len(tracks) == 24 - len(lost)
    assert all((track.length, track.episode_return) == (4, 4.0) for track in tracks)
    assert len({track.name for track in tracks}) == len(tracks), "each episode once"
    assert len(faults) - len(lost) >= MAX_ATTEMPTS * len(lost)
    assert f"Lost evaluation episodes: {len(lost)}." in lost_sentence(faults)


@pytest.mark.slow
def test_an_evaluation_of_which_half_is_lost_ends_in_words():
    with pytest.raises(
        KernelError,
        match=r"(?s)More than half.*24 episodes.*no way to begin here.*max_episode_steps=100",
    ):
        evaluated("reset", 0.8)


def test_good_work_forgets_failures():
    """A copy that crashes now and then loses the rows at which it does, and no others."""
    draw = np.random.default_rng(0)
    with faulty("error", policy=FaultPolicy(max_faults_per_minute=10)) as env:
        out, rows, real = allocate_buffers(env), 0, 0
        env.reset(out.obs)
        for t in range(1000):
            actions = (draw.random((4, 1)) < 0.005).astype(np.int64)
            env.step(actions, out, t)
            assert out.valid.tolist() == (actions[:, 0] == 0).tolist()
            rows, real = rows + 4, real + out.valid.sum()
        assert env.fault_log.total > 10 and real >= 0.95 * rows


def test_tests_may_ask_for_an_error_at_once(tmp_path):
    with faulty("error", policy=FaultPolicy("raise")) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        with pytest.raises(KernelError) as error:
            env.step(actions_for(env, 3), out, 0)
        pid, said = env.driver.handles[1].pid, str(error.value)
        for part in (
            "environment 3",
            f"process {pid}",
            "last action [1]",
            "licence server",
            "line",
        ):
            assert part in said
        env.reset(out.obs)
        env.step(actions_for(env), out, 0)
        assert out.valid.all(), "it is good again after a reset"


@pytest.mark.parametrize(
    ("how", "policy", "words"),
    [
        ("error", FaultPolicy(max_consecutive_faults=3), "environment 0.*3 times in a row"),
        ("kill", FaultPolicy(max_consecutive_faults=2), "SIGKILL.*2 times in a row"),
        ("error", FaultPolicy(max_faults_per_minute=5), "more than 5 faults in a minute"),
    ],
)
def test_too_many_faults_stop_the_run(how, policy, words):
    with faulty(how, policy=policy, copies=2, workers=1) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        good = policy.max_consecutive_faults > 3
        with pytest.raises(KernelError, match=rf"(?s){words}") as error:
            until = time.monotonic() + PATIENCE_SECONDS  # a failed copy is away for a while
            while time.monotonic() < until:
                env.step(actions_for(env, 0), out, 0)
                if good:
                    env.step(actions_for(env), out, 0)
        assert "last action [1]" in str(error.value)


def test_failures_are_tried_again_later_and_later():
    assert [backoff(n) for n in range(1, 5)] == [0.0, 0.1, 0.2, 0.4] and backoff(99) == 10.0


SCRIPT = """
import gymnasium, json, os, signal, sys, time
import numpy as np
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.kernels.vector_env import member_indices

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs

class Slow(gymnasium.Env):  # of the main program, and without a guard around it
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        time.sleep(0.01 if action == 0 else 1000)
        return np.zeros(2, np.float32), 0.0, False, False, {}

env = ForeignEnv(lambda: Slow(), *member_indices([0], 4), workers=2, method=sys.argv[1])
env.reset(allocate_buffers(env).obs)
server = env.driver._process_pool._launcher._server
handles = [handle.pid for handle in env.driver.handles]
print(json.dumps(handles + ([server.pid] if server else [])))
sys.stdout.flush()
if sys.argv[2] == "raise":
    raise ValueError("over")
if sys.argv[2] == "end":
    sys.exit(0)
rows = np.full((4, 1), int(sys.argv[2] == "hang"))
while True:
    env.step(rows, allocate_buffers(env))
"""


def gone(pids, seconds=60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(lives, pids)):
            return True
        time.sleep(0.02)
    return False


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("method", "what", "number"),
    [
        ("forkserver", "end", None),
        ("forkserver", "hang", signal.SIGKILL),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("forkserver", "raise", None),
                ("forkserver", "step", signal.SIGINT),
                ("forkserver", "step", signal.SIGKILL),
                ("spawn", "hang", signal.SIGKILL),
            )
        ),
    ],
)
def test_nothing_outlives_its_parent(method, what, number, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), method, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        line = parent.stdout.readline()
        assert line, parent.stderr.read()
        pids = json.loads(line)
        if number is not None:
            time.sleep(0.2)
            if number == signal.SIGINT:
                os.killpg(parent.pid, number)  # as a terminal sends Ctrl-C: to all of them
            else:
                os.kill(parent.pid, number)
        try:
            said = parent.communicate(timeout=120)[1]
        finally:
            parent.kill()  # or the end of `with` waits for it
    assert gone(pids), f"{pids} outlived their parent: {said}"
    assert parent.returncode == {None: 0 if what == "end" else 1}.get(number, -int(number or 0)), (
        said
    )
    if number is None and what == "end":
        assert not said


def test_a_worker_killed_while_it_makes_its_copies_is_replaced(tmp_path):
    mark = tmp_path / "mark"

    def make():
        if Path("/proc/self/stat").exists() and os.getpid() != parent and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Faulty("error")

    parent = os.getpid()
    with ForeignEnv(make, *member_indices([3], 2), workers=1) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        env.step(actions_for(env), out, 0)
        assert out.valid.all() and "SIGKILL" in env.drain_faults()[0].text


def test_a_server_of_workers_ends_with_a_launcher_that_nobody_closed():
    launcher = Launcher()
    before = set(psutil.Process().children())
    launcher._begin()
    (server,) = set(psutil.Process().children()) - before
    del launcher
    gc.collect()
    assert not server.is_running()
