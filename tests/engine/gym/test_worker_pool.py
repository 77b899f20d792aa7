"""A pool lends its processes to several environments, keeps them warm, and keeps to its budget."""

import json
import os
import resource
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

import slipstream
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.process import process_pool as process_pool
from slipstream.gym.process.process_pool import Budget, WorkerPool, process_memory
from slipstream.kernels.vector_env import member_indices


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Whoever is given back comes to rest, however slow the machine is."""
    monkeypatch.setattr(process_pool, "_LEAVE_SECONDS", 120.0)


@pytest.fixture
def budget(tmp_path):
    return Budget(tmp_path)


def made(pool, num_envs=4, env="CartPole-v1", workers=2):
    return ForeignEnv(env, *member_indices([3], num_envs), workers=workers, process_pool=pool)


def pids(env):
    return {handle.pid for handle in env.driver.handles}


def test_workers_are_used_again_and_end_with_the_pool(budget):
    with WorkerPool(workers=2, budget=budget) as pool:
        with made(pool) as env:
            first = pids(env)
            env.reset(seed=1)
            env.step([0, 1, 0, 1])
        assert set(pool.pids) == first and all(map(psutil.pid_exists, first))
        with made(pool, 3, "Pendulum-v1") as env, made(pool, 1, workers=1) as other:
            assert pids(env) == first and not pids(other) & first
            env.reset(seed=1)
            env.step(np.zeros((3, 1), np.float32))
        idle = psutil.Process(pool.pids[0])  # one that dies is not lent
        idle.kill()
        with suppress(psutil.NoSuchProcess):
            while idle.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)  # the signal is on its way
        with made(pool) as env:
            env.reset(seed=1)
            env.step([0, 1, 0, 1])
            assert not env.drain_faults()
            last = pids(env)
    assert WorkerPool.current() is None and budget.reserved == 0
    until = time.monotonic() + 60.0
    while any(map(psutil.pid_exists, first | last)):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
def test_several_trainings_share_a_budget(budget, tmp_path):
    pool = WorkerPool(max_concurrent_envs=6, budget=budget, wait=0.2)
    other = WorkerPool(max_concurrent_envs=6, budget=Budget(tmp_path), wait=120.0)
    with made(pool, 4, workers=1) as env:
        with pytest.raises(ResourceError, match=r"4 environments.*=6: 4 are leased"):
            made(pool, 4)
        with pytest.raises(ResourceError, match=r"7 environments"):
            made(other, 7)  # never: it does not wait
        env.resize(6)
        with pytest.raises(ResourceError, match="1 environments"):
            env.resize(7)
        env.resize(2)
        assert budget.reserved == 2
        env.resize(5)
        began = time.monotonic()
        threading.Timer(0.5, env.close).start()
        with made(other, 6, workers=1) as waited:
            assert time.monotonic() - began > 0.4 and waited.num_envs == 6
    pool.close(), other.close()
    assert budget.reserved == 0


def test_leases_of_the_dead_do_not_count(budget, tmp_path):
    gone = {"pid": 2**22 - 1, "started": 1.0, "num_envs": 50}
    (tmp_path / "leases.json").write_text(json.dumps([gone]))
    assert budget.reserved == 0 and budget.acquire(3, 4) == (True, 0)
    (tmp_path / "leases.json").write_text('[{"pid": 1')  # cut off by a kill
    assert budget.acquire(4, 4) == (True, 0)


def test_memory_is_measured_and_kept_to(budget, exact_memory):
    pool = WorkerPool(memory_mib=100_000, budget=budget)
    try:
        with made(pool, 2, workers=1) as env:
            (pid,) = pids(env)
            assert (
                pool.used == pytest.approx(process_memory(pid), rel=0.5)
                and process_memory(pid) > 2**20
            )
            pool.memory = pool.used * 1.2
            with pytest.raises(ResourceError, match=r"MiB.*memory_mib"):
                made(pool, 50)
            assert budget.reserved == 2
    finally:
        pool.close()
    assert process_memory(2**22 - 1) == 0.0


def test_a_training_takes_its_workers_there(budget, tmp_path):
    config = {
        "env": "gym:CartPole-v1",
        "agent": {"n_steps": 16, "net_arch": [8], "n_epochs": 1, "batch_size": 32},
        "training": {"num_envs": 2, "total_timesteps": 64, "workers": 1, "backend": "process"},
        "evaluation": {"episodes": 1},
    }
    # As many copies as there may be: its evaluations, while it waits, are not counted.
    with WorkerPool(workers=4, max_concurrent_envs=2, wait=0.0, budget=budget) as pool:
        slipstream.train(config, out=tmp_path / "one", report=False)
        first = set(pool.pids)
        slipstream.train(config, out=tmp_path / "two", report=False)
        assert first and set(pool.pids) & first and budget.reserved == 0


def test_a_failed_start_gives_the_lease_back(budget):
    pool = WorkerPool(max_concurrent_envs=6, budget=budget)
    with pytest.raises(ConfigError):
        made(pool, 4, "NoSuchThing-v7")
    assert budget.reserved == 0
    pool.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent_envs", -1),
        ("max_concurrent_envs", 1.5),
        ("workers", 0),
        ("memory_mib", -1),
        ("wait", "long"),
    ],
)
def test_a_pool_without_sense_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"`{name}` (must be|takes).*{value!r}"):
        WorkerPool(**{name: value})


@pytest.mark.parametrize("left", [2, 5, 8])
def test_too_few_open_files_are_said(budget, left):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = []
    with WorkerPool(budget=budget) as pool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            with suppress(OSError):
                while True:
                    reserved.append(os.dup(0))
            for _ in range(left + 1):  # one for counting the leases
                os.close(reserved.pop())
            with pytest.raises(ResourceError, match=r"Too many open files.*ulimit -n"):
                made(pool)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in reserved:
                os.close(fd)
