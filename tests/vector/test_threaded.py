"""Threads for slices: the same results, errors that reach the caller, a choice that pays."""

import threading

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, KernelError
from slipstream.vector import choice as choice_module
from slipstream.vector import threaded
from slipstream.vector.choice import Choice
from slipstream.vector.loop import HOLD
from slipstream.vector.threaded import ThreadedVectorEnv, usable_cores
from slipstream.vector.vector_env import member_indices


@pytest.fixture
def threads(make):
    """Copies of the clock kernel in slices."""
    made = []

    def build(num_envs=6, config=None, name="clock", **settings):
        plain = make(name, num_envs=1)
        kernel = plain.kernel
        loaded = kernel.load(kernel.configure(config or {}))
        env = ThreadedVectorEnv(kernel, loaded, *member_indices([7], num_envs), **settings)
        made.append(env)
        return env

    build.forget = made.remove
    yield build
    for env in made:
        env.close()


@pytest.mark.parametrize("workers", [1, 2, 5, 99])
@pytest.mark.parametrize("name", ["clock", "masked", "duel"])
def test_any_number_of_workers(make, steps, threads, name, workers):
    runs = [steps(make(name, num_envs=6)), steps(threads(name=name, workers=workers))]
    assert runs[1].env.workers == min(workers, 6)
    outs = [run.reset() for run in runs]
    for t in range(12):
        for mine, theirs in zip(*outs, strict=True):
            assert np.array_equal(mine, theirs)
        outs = [run.step(t % 2) for run in runs]
    for mine, theirs in zip(*[run.env.drain_finals() for run in runs], strict=True):
        assert np.array_equal(mine, theirs)
    episodes = [run.env.drain_episodes() for run in runs]
    for mine, theirs in zip(episodes[0][:4], episodes[1][:4], strict=True):
        assert np.array_equal(mine, theirs)
    assert len(episodes[0].e) > 6


def test_state_travels_between_numbers_of_workers(steps, threads):
    config = {"records": [[3, 0], [0, 5]]}
    three = steps(threads(config=config, workers=3))
    three.reset()
    three.step(1)
    two = steps(threads(config=config, workers=2))
    out = two.fresh()
    two.env.set_state(three.env.get_state(), out.obs)
    for _ in range(7):
        assert (three.step(2).obs == two.step(2).obs).all()
    read = two.env.read(("time", "seen"))
    assert read["time"].shape == (6,) and read["seen"].shape == (6, 2, 2)


def test_begin_across_slices(make, steps, threads):
    config = {"records": [[0, 3], [0, 4]]}
    envs = [make(num_envs=6, config=config, at_end=HOLD)]
    envs.append(threads(config=config, at_end=HOLD, workers=3))
    shown = []
    for env in envs:
        obs = steps(env).fresh().obs
        env.begin(np.array([5, 0, 2]), np.array([1, 2, 3]), 9, obs)
        shown.append(obs)
    assert (shown[0] == shown[1]).all()


def test_records_are_dealt_over_slices(steps, threads):
    config = {"records": [[3, 0], [4, 0], [5, 0]]}
    assert steps(threads(config=config, workers=4)).reset().obs[:, 2].tolist() == [0, 1, 2] * 2
    which = np.array([2, 1, 0, 0, 1, 2])
    run = steps(threads(config=config, workers=4, which=which))
    assert run.reset().obs[:, 2].tolist() == which.tolist()


def test_errors_reach_the_caller(steps, threads):
    """The first slice's error, numbered over all slices; the threads go on."""
    config = {"records": [[0, 0], [0, 0]], "nan_at": 2}
    run = steps(threads(config=config, workers=3))
    run.reset()
    run.step(1)
    with pytest.raises(KernelError, match="environment 0 "):
        run.step(1)
    state = run.env.get_state()
    state["state.time"][:5] = 0
    state["state.time"][5] = 1
    run.env.set_state(state, run.fresh().obs)
    with pytest.raises(KernelError, match=r"environment 5 \(seed 7, index 5, "):
        run.step(1)
    run.reset()
    run.step(1)


def test_threads_end(threads):
    for end in (lambda env: env.close(), lambda env: None):
        before = set(threading.enumerate())
        env = threads(workers=4)
        helpers = set(threading.enumerate()) - before
        assert len(helpers) == 3
        end(env)
        threads.forget(env)
        del env
        for thread in helpers:
            thread.join(timeout=10)
            assert not thread.is_alive()


def test_workers_must_be_some(threads):
    with pytest.raises(ConfigError, match="at least 1 or `auto`"):
        threads(workers=0)
    assert usable_cores() >= 1


def timed(choice, alone, together, steps):
    """Feeds a choice with made-up times; returns how often threads were used."""
    used = 0
    for _ in range(steps):
        used += choice.threads
        choice.note(together if choice.threads else alone)
    return used


def test_small_batches_are_never_handed_over():
    assert timed(Choice(), 5e-5, 1e-6, 10_000) == 0


def test_threads_are_used_where_they_pay():
    steps = 2 * choice_module.TRIALS + choice_module.HOLD
    assert timed(Choice(), 1e-2, 6e-3, steps) == choice_module.TRIALS + choice_module.HOLD


@pytest.mark.parametrize("together", [9.5e-3, 0.4])
def test_threads_are_left_where_they_do_not(together):
    """A busy machine costs the trial's few steps, not the run."""
    steps = 2 * choice_module.TRIALS + choice_module.HOLD
    assert timed(Choice(), 1e-2, together, steps) == choice_module.TRIALS


def test_the_choice_is_looked_at_again():
    choice = Choice()
    steps = 2 * choice_module.TRIALS + choice_module.HOLD
    assert timed(choice, 1e-2, 6e-3, steps) > choice_module.TRIALS
    timed(choice, 1e-2, 5e-2, 2 * choice_module.TRIALS)
    assert not choice.threads


def test_cut_on_the_way(make, steps, threads, monkeypatch):
    """From one slice to three while running: what ended before is not lost."""
    monkeypatch.setattr(threaded, "usable_cores", lambda: 3)
    monkeypatch.setattr(choice_module, "LEAST_SECONDS", 0.0)
    runs = [steps(make(num_envs=6)), steps(threads())]
    for run in runs:
        run.reset()
    counts = set()
    for t in range(2 * choice_module.TRIALS):
        outs = [run.step(t % 3) for run in runs]
        assert all(np.array_equal(a, b) for a, b in zip(*(out[:4] for out in outs), strict=True))
        counts.add(runs[1].env.workers)
    assert counts == {1, 3}
    for mine, theirs in zip(*[run.env.drain_episodes()[:4] for run in runs], strict=True):
        assert len(mine) > 6 and np.array_equal(mine, theirs)
    states = [run.env.get_state() for run in runs]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])


def test_auto_starts_alone(threads, monkeypatch, steps):
    monkeypatch.setattr(threaded, "usable_cores", lambda: 3)
    run = steps(threads())
    run.reset()
    for _ in range(30):
        run.step()
        assert run.env.workers == 1, "six copies are far below what a thread costs"
