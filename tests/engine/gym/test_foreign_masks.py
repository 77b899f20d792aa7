"""Action masks of Gymnasium environments: read by all three conventions, everywhere agents act."""

from __future__ import annotations

import fcntl
import functools
import os
import resource
import select
import subprocess
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream import portable
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError
from slipstream.gym import action_masks, env_factory
from slipstream.gym.env_factory import WrappedEnv
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.kernels.vector_env import allocate_buffers, member_indices
from slipstream.report.run_evaluation import random_policy
from slipstream.training.environments.factory import make_environment, resolve_environment
from slipstream.training.runs.policies import sample_observations

TAXI = "gym:Taxi-v4" if "Taxi-v4" in gymnasium.registry else "gym:Taxi-v3"
HOWS = ("method", "info", "dict")
LONG = (("dqn", "info"), ("ppo", "dict"), ("ppo", "method"), ("dqn", "method"))
SIZES = {"one": (4,), "several": (3, 4)}


class Picky(gymnasium.Env):
    """Two choices are allowed, of which the first pays; any other one raises.

    Args:
        how: where the mask is; sizes: of the components; odd: `bad(mask, steps)` in place of it.
    """

    def __init__(self, how="info", sizes=(4,), bad=None):
        self.owner = os.getpid()
        self.how, self.sizes, self.bad = how, sizes, bad
        several = len(sizes) > 1
        self.action_space = spaces.MultiDiscrete(sizes) if several else spaces.Discrete(sizes[0])
        self.observation_space = spaces.Box(-1, 1, (5,), np.float32)
        if how == "dict":
            mask = spaces.Box(0, 1, (sum(sizes),), np.int8)
            self.observation_space = spaces.Dict(
                action_mask=mask, observation=self.observation_space
            )

    def masks(self):
        parts = [np.isin(np.arange(n), [self.k % n, (self.k + 1) % n]) for n in self.sizes]
        mask = np.concatenate(parts).astype(np.int8)
        return mask if self.bad is None else self.bad(mask, self.steps)

    def shown(self):
        self.k = int(self.np_random.integers(4))
        seen = np.append(np.eye(4)[self.k], 0).astype(np.float32)
        if self.how == "dict":
            return {"observation": seen, "action_mask": self.masks()}, {}
        mask = self.masks() if self.how == "info" else None
        return seen, {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown()

    def step(self, action):
        for own, n in zip(np.ravel(action), self.sizes, strict=True):
            if own not in (self.k % n, (self.k + 1) % n):
                raise RuntimeError(f"the action {action} is forbidden")
        self.steps += 1
        pays = float(np.ravel(action)[-1] == self.k)
        seen, info = self.shown()
        return seen, pays, self.steps == 6, False, info


class Methodical(Picky):
    def action_masks(self):
        return self.masks()


def picky(how, sizes=(4,), bad=None):
    made = (Methodical if how == "method" else Picky)(how, sizes, bad)
    return gymnasium.wrappers.OrderEnforcing(made)


def maker(*how, **more):
    make = functools.partial(picky, *how, **more)
    make.__qualname__ = make.__name__ = "Picky"
    return make


def vectors(num_envs, kind="NextStep", how="info", sizes=(4,), bad=None, first=None):
    """A function that `vec:` names."""
    makers = [maker(how, tuple(sizes), None if bad is None else BAD[bad][0])] * num_envs
    if first is not None:
        makers[0] = maker(first, tuple(sizes))
    if kind == "Async":
        return gymnasium.vector.AsyncVectorEnv(makers)
    if kind in ("DummyVecEnv", "SubprocVecEnv"):
        vec = pytest.importorskip("stable_baselines3.common.vec_env")
        return vec.VecMonitor(getattr(vec, kind)(makers))
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=kind)


def allowed(draw, mask, sizes):
    """Random allowed actions [E, K]."""
    chance = np.where(mask, draw.random(mask.shape), -1.0)
    parts = np.split(chance, np.cumsum(sizes)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], axis=1)


def trajectory(env, sizes, steps=40):
    draw, found = np.random.default_rng(0), [env.reset(seed=3)]
    for _ in range(steps):
        found.append(env.mask.copy())
        actions = allowed(draw, env.mask, sizes)
        came = env.step(actions[:, 0] if len(sizes) == 1 else actions)
        found += [came.obs, came.reward, came.terminated, env.episodes.returns]
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("width", SIZES)
def test_masks_are_those_of_the_observation_and_the_same_in_workers(how, width):
    sizes, found = SIZES[width], []
    for backend in ("serial", "process"):
        with slipstream.make_vec(maker(how, sizes), 3, backend=backend) as env:
            assert env.spec.has_action_mask and env.mask_size == sum(sizes)
            found.append(trajectory(env, sizes))  # a forbidden action would raise
    for one, other in zip(*found, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize(
    ("agent", "how"),
    [
        ("ppo", "info"),
        ("dqn", "dict"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in LONG),
    ],
)
def test_agents_train_and_are_evaluated_on_allowed_choices_alone(tmp_path, agent, how):
    own = {"n_steps": 32, "batch_size": 64, "learning_rate": 3e-3}
    if agent == "dqn":
        own = {"learning_starts": 200, "exploration_steps": 1_000, "learning_rate": 3e-3}
    changes = {f"agent.{name}": value for name, value in own.items()}
    changes |= {"agent.name": agent, "evaluation.episodes": 8}
    steps = 4_000 if how == "method" else 400  # learns once
    changes["training.backend"] = "process" if (agent, how) == ("ppo", "info") else "serial"
    out = tmp_path / "run"
    run = slipstream.train(
        maker(how), out=out, overrides=changes, total_timesteps=steps, num_envs=2, report=False
    )
    (member,) = run.result["members"]
    scores = [episode.episode_return for episode in slipstream.evaluate(out).episodes]
    if steps > 400:
        assert member["best_score"] >= 5.5 and np.mean(scores) >= 5.5
    policy, light = slipstream.load_policy(out), portable.load(out)
    with slipstream.make_vec(maker(how), 2) as env:
        obs = env.reset(seed=9)
        if how == "dict":
            assert set(obs) == {"observation"}
        with pytest.raises(ConfigError, match="trained with action masks"):
            policy.act(obs)
        for _ in range(20):
            for deterministic in (True, False) if agent == "ppo" else (True,):
                actions = policy.act(obs, mask=env.mask, deterministic=deterministic)
                assert env.mask[[0, 1], actions].all()
            explored = policy.act_batch(obs, exploration=None, mask=env.mask)
            assert env.mask[[0, 1], explored].all()
            obs = env.step(actions).obs
    if how != "dict":
        return
    environment = resolve_environment(run.config.env_name, run.config.env_settings)
    rows, masks = sample_observations(policy, environment, 20)
    assert masks.shape == (len(rows), 4) and (masks.sum(1) == 2).all()
    assert len(random_policy(environment, "test", "serial", games=4)) == 4
    # The environment's own observation holds the mask.
    single = picky("dict")
    seen, _ = single.reset(seed=1)
    for _ in range(5):
        action = policy.act(seen)
        assert light.act(seen) == action and seen["action_mask"][action]
        assert policy.act([seen, seen]).tolist() == light.act([seen, seen]).tolist()
        seen = single.step(action)[0]


def test_the_mask_of_taxi_is_read():
    with slipstream.make_vec(TAXI, 2, backend="serial") as env:
        env.reset(seed=1)
        own = env.driver.group.sub_envs
        for _ in range(30):
            np.testing.assert_array_equal(env.mask, [copy.info["action_mask"] for copy in own])
            env.step(env.mask.argmax(1))
    assert not make_environment("gym:CartPole-v1", {}).spec.has_action_mask


BAD = {
    "missing": (lambda mask, t: None if t == 3 else mask, "returned no action mask"),
    "short": (lambda mask, t: mask[:3] if t == 3 else mask, r"of 3 entries .* instead of 4"),
    "empty": (lambda mask, t: mask * 0 if t == 3 else mask, "allows no action"),
    "raises": (lambda mask, t: mask if t < 3 else 1 // 0, "raised ZeroDivisionError"),
    "late": (lambda mask, t: None if t < 3 else mask, "action_mask`, but the first `reset`"),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", [kind for kind in BAD if kind != "late"])
def test_a_bad_mask_is_one_paragraph_that_names_the_environment(how, kind):
    bad, words = BAD[kind]
    with slipstream.make_vec(maker(how, bad=bad), 2, backend="serial") as env:
        env.reset(seed=1)
        with pytest.raises(KernelError, match=rf"^gym:Picky.*{words}"):
            for _ in range(6):
                env.step(env.mask.argmax(1))


def test_a_mask_that_comes_in_some_infos_only_is_refused():
    bad, words = BAD["late"]
    with slipstream.make_vec(maker("info", bad=bad), 1, backend="serial") as env:
        env.reset(seed=1)
        assert env.mask is None
        with pytest.raises(KernelError, match=words):
            for _ in range(6):
                env.step([env.driver.group.sub_envs[0].unwrapped.k])


def test_a_bad_mask_begins_one_copy_of_a_worker_again():
    bad = BAD["empty"][0]
    policy = FaultPolicy(on_fault="restart", max_faults_per_minute=100, max_consecutive_faults=100)
    rows = member_indices([0], 2)
    make = [maker("method"), maker("method", bad=bad)]
    with ForeignEnv(make, *rows, workers=2, policy=policy) as env:
        out = allocate_buffers(env)
        env.reset(out.obs, out.mask)
        lost = []
        for _ in range(12):
            env.step(allowed(np.random.default_rng(0), out.mask, (4,)), out)
            lost.append((~out.valid).tolist())
            assert out.mask.any(1).all()
        assert not any(first for first, _ in lost) and sum(second for _, second in lost) >= 3
        assert {fault.env_id for fault in env.drain_faults()} == {1}


def test_single_steps_and_more_copies_keep_the_masks():
    with slipstream.make_vec(maker("info"), 2, backend="process") as env:
        env.reset(seed=1)
        with pytest.raises(
            ConfigError, match="The mask forbids some of the actions, the first in environment 1"
        ):
            env.send([env.mask[1].argmin()], [1])
        for _ in range(8):
            env.send(env.mask.argmax(1))
            env.recv()
        env.resize(4)
        assert env.mask.shape == (4, 4) and (env.mask.sum(1) == 2).all()
        for _ in range(8):
            env.step(env.mask.argmax(1))


KINDS = (
    *("NextStep", "SameStep", "Disabled", "Async"),
    pytest.param("DummyVecEnv", marks=pytest.mark.peers),
    pytest.param(
        "SubprocVecEnv", marks=[pytest.mark.slow, pytest.mark.peers]
    ),  # each worker imports SB3
)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_vector_environments(kind, how):
    sizes = (3, 4) if kind == "NextStep" else (4,)
    kwargs = {"kind": kind, "how": how, "sizes": sizes}
    with slipstream.make_vec(f"vec:{__name__}:vectors", 3, kwargs=kwargs) as env:
        assert env.spec.has_action_mask and env.mask_size == sum(sizes)
        found = trajectory(env, sizes)  # a forbidden action would raise
        assert np.sum([one for one in found if np.shape(one) == (3,)]) > 0
    environment = make_environment(f"vec:{__name__}:vectors", {"kwargs": kwargs})
    assert len(random_policy(environment, "test", "serial", games=7)) == 7


@pytest.mark.parametrize(
    ("how", "kind"), [("info", "empty"), ("info", "missing"), ("method", "short")]
)
def test_a_bad_mask_of_a_vector_environment_is_one_paragraph(how, kind):
    kwargs = {"how": how, "bad": kind}
    words = BAD[kind][1].removeprefix("returned ")
    with slipstream.make_vec(f"vec:{__name__}:vectors", 2, kwargs=kwargs) as env:
        env.reset(seed=1)
        with pytest.raises(KernelError, match=rf"^vec:.*:vectors: environment .*{words}"):
            for _ in range(6):
                env.step(env.mask.argmax(1))


@pytest.mark.peers
def test_training_on_a_vector_environment_that_is_lent_takes_allowed_choices(tmp_path):
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    lent = vec.VecFrameStack(vec.DummyVecEnv([maker("info")] * 2), 2)
    changes = {"agent.n_steps": 32, "agent.batch_size": 64, "evaluation.episodes": 4}
    run = slipstream.train(
        lent, out=tmp_path / "run", overrides=changes, total_timesteps=400, report=False
    )
    (member,) = run.result["members"]
    assert member["best_score"] > 0 and slipstream.load_policy(run).native.masked


def test_masks_that_cannot_be_read_are_reported():
    hidden = {"flat": lambda: gymnasium.wrappers.FlattenObservation(picky("dict"))}
    (note,) = (
        one
        for one in make_environment(slipstream.register(hidden["flat"], "flat"), {}).notes
        if "mask" in one
    )
    assert "a wrapper removes it from the observation" in note
    for how in HOWS:
        name = slipstream.register(maker(how), f"picky-{how}")
        assert not any("mask" in note for note in make_environment(name, {}).notes)

    class Boxed(Picky):
        def __init__(self):
            super().__init__("dict")
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    environment = make_environment(slipstream.register(Boxed, "boxed"), {})
    assert any("its action space cannot be masked" in one for one in environment.notes)
    assert not environment.spec.has_action_mask and environment.spec.observation_shape == (9,)


def test_a_reset_that_ends_the_process_is_not_looked_at_here():
    class Ends(Picky):
        def reset(self, **arguments):
            os._exit(3)

    assert make_environment(slipstream.register(Ends, "ends"), {}).spec.has_action_mask is None


OWNER = os.getpid()


class Slow(Picky):
    """The first `reset`, in a forked process, does not end."""

    def reset(self, **arguments):
        if os.getpid() != OWNER:
            time.sleep(600)
        return super().reset(**arguments)


def test_a_first_reset_that_takes_too_long_is_reported_if_a_mask_comes_later(monkeypatch):
    monkeypatch.setattr(env_factory, "PROBE_SECONDS", 0.2)
    with slipstream.make_vec(lambda: Slow("none"), 1, backend="serial") as env:
        assert env.spec.has_action_mask is None and env.mask is None
        env.reset(seed=1)
    with slipstream.make_vec(Slow, 1, backend="serial") as env:
        words = "`reset`, in a forked process, failed or took more than 10 s, .* `action_masks"
        with pytest.raises(KernelError, match=words):
            env.reset(seed=1)


def test_what_a_first_reset_starts_is_ended_and_what_is_here_is_kept():
    ear, mouth = os.pipe()
    sleeps = ["sleep", "600"]

    class Serves(Picky):
        def __init__(self):
            super().__init__()
            self.server = subprocess.Popen(sleeps)

        def reset(self, **arguments):
            self.more = subprocess.Popen(sleeps, pass_fds=[mouth])
            return super().reset(**arguments)

        def close(self):
            assert os.getpid() == OWNER
            self.server.kill()
            self.server.wait()

    env = Serves()
    try:
        assert action_masks.probe_mask(env)
        assert env.server.poll() is None
        os.close(mouth)
        waiting = select.poll()
        waiting.register(ear, select.POLLIN)
        assert waiting.poll(20_000) and os.read(ear, 1) == b""  # nothing else holds it open
    finally:
        env.close()
        os.close(ear)


def test_a_first_info_is_read_through_any_descriptor(monkeypatch):
    pipe, high = os.pipe, 1100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= high + 2:
        pytest.skip("the system allows too few descriptors")

    def above():
        ends = pipe()
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD, high) for end in ends]
        for end in ends:
            os.close(end)
        return moved

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, high + 2), hard))
    try:
        monkeypatch.setattr(os, "pipe", above)
        assert action_masks.probe_mask(Picky()) is True
        assert action_masks.probe_mask(Picky("none")) is False
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_fork_that_fails_leaves_no_pipe(monkeypatch):
    ends, pipe = [], os.pipe

    def noted():
        ends.extend(pipe())
        return ends

    def fork():
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "pipe", noted)
    monkeypatch.setattr(os, "fork", fork)
    assert action_masks.probe_mask(Picky()) is None
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


@pytest.mark.parametrize(
    "kind", ["NextStep", "Async", pytest.param("DummyVecEnv", marks=pytest.mark.peers)]
)
@pytest.mark.parametrize("first", ["none", "method"])
def test_a_method_of_only_some_environments_is_refused(kind, first):
    other = {"none": "method", "method": "none"}[first]
    kwargs = {"kind": kind, "how": other, "first": first}
    has, lacks = (0, 1) if first == "method" else (1, 0)
    words = rf"vec:.*: environment {has} has a method .* environment {lacks} has none"
    with pytest.raises(ConfigError, match=words):
        slipstream.make_vec(f"vec:{__name__}:vectors", 2, kwargs=kwargs)


def test_masks_of_only_some_environments_are_refused():
    kwargs = {"how": "info", "first": "none"}
    words = "but the first `reset` of its first environment did not"
    with (
        slipstream.make_vec(f"vec:{__name__}:vectors", 2, kwargs=kwargs) as env,
        pytest.raises(KernelError, match=words),
    ):
        env.reset(seed=1)
    rows = member_indices([0], 2)
    with pytest.raises(ConfigError, match="environment 1 has a method `action_masks"):
        ForeignEnv([maker("none"), maker("method")], *rows)
    with ForeignEnv([maker("method"), maker("none")], *rows) as env:
        out = allocate_buffers(env)
        with pytest.raises(KernelError, match="environment 1 returned no action mask"):
            env.reset(out.obs, out.mask)


class Unreal(gymnasium.Env):
    """Each step pays 1; the sixth one shows NaN, or its wrapper raises."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, np.nan if self.steps == 6 else 0.0, np.float32), 1.0, False, False, {}


class Twice(gymnasium.Wrapper):
    """Every step is two of the environment, which pay 10."""

    def __init__(self, env, raises=False):
        super().__init__(env)
        self.raises = raises

    def step(self, action):
        self.env.step(action)
        seen, *rest = self.env.step(action)
        if self.raises and np.isnan(seen).any():
            raise RuntimeError("broken")
        return (seen, 10.0, *rest[1:])


@pytest.mark.parametrize("raises", [False, True])
def test_a_discarded_step_is_no_part_of_the_raw_return(raises):
    made = WrappedEnv(Unreal, (), ((f"{__name__}:Twice", {"raises": raises}),))
    policy = FaultPolicy(on_fault="restart", max_faults_per_minute=100, max_consecutive_faults=100)
    with ForeignEnv(made, *member_indices([0], 1), workers=1, policy=policy) as env:
        out = allocate_buffers(env)
        env.reset(out.obs, out.mask)
        for _ in range(3):
            env.step(np.zeros((1, 1), np.int64), out)
        ended = env.drain_episodes()
        assert ended.length.tolist() == [2] and ended.returns.tolist() == [4.0]
