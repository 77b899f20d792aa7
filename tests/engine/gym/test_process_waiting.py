"""Who sleeps is woken, who looks need not be, and nobody is missed."""

import functools
import signal
import time

import gymnasium
import numpy as np
import pytest

from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.process import process_driver as waiting
from slipstream.gym.process import shared_memory
from slipstream.gym.process.shared_memory import ASLEEP
from slipstream.kernels.vector_env import allocate_buffers, member_indices

pytestmark = pytest.mark.usefixtures("one_server")

_PATIENCE_MS = 20_000  # far beyond any step here: a process that nobody wakes is seen to be so


def copies(workers):
    make = functools.partial(gymnasium.make, "CartPole-v1")
    return ForeignEnv(make, *member_indices([1], 6), workers=workers)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nobody_is_missed_whether_asleep_or_looking(workers, monkeypatch):
    monkeypatch.setattr(waiting, "poll_ms", lambda hang: _PATIENCE_MS)
    pauses = np.random.default_rng(workers).choice([0.0, 0.0, 2e-5, 6e-5, 2e-4], 400)
    with copies(workers) as env:
        out = allocate_buffers(env)
        env.reset(out.obs)
        for t, pause in enumerate(pauses.tolist()):
            began = time.monotonic()
            env.step(np.full((6, 1), t % 2), out, t)
            assert time.monotonic() - began < _PATIENCE_MS / 1000, f"step {t} was missed"
            until = time.perf_counter() + pause
            while time.perf_counter() < until:
                pass
        assert out.valid.all()


def test_workers_sleep_while_nothing_is_asked():
    with copies(2) as env:
        env.reset(seed=1)
        env.step([0, 1, 0, 1, 0, 1])
        until = time.monotonic() + 20
        while not all(handle.words[ASLEEP] for handle in env.driver.handles):
            assert time.monotonic() < until
            time.sleep(0.01)
        env.step([0, 1, 0, 1, 0, 1])
        assert env.fault_log.total == 0


class Interrupt(BaseException):
    """Not to be caught by anybody else."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_an_interrupt_leaves_no_lock_behind():
    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(200):
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    shared_memory.fence()
            assert not shared_memory._LOCK.locked()
    finally:
        signal.signal(signal.SIGALRM, before)
