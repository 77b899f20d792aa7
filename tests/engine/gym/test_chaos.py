"""Kills and hangs at random over trainings: they finish, and nothing is left."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest

import slipstream
from benchmarks.layers import crashing
from slipstream.core.errors import SlipstreamError

_QUICK_SECONDS = 0.05  # in which an idle machine starts and ends an interpreter

_ENV = """
import random
import time

import gymnasium
import numpy as np


class Chaos(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, hangs=0.0):
        self.hangs, self.draw = hangs, random.SystemRandom()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.draw.random() < self.hangs:
            time.sleep(1000.0)
        time.sleep(0.0005)
        return np.full(2, self.np_random.random(), np.float32), 1.0, False, self.time >= 50, {}


gymnasium.register("SlipstreamChaos-v0", Chaos)
"""


def measure(faults: int, seed: int = 0, workers: int = 4, steps: int = 8_000) -> dict[str, Any]:
    """Faults that happened, and what was lost or left over.

    Args:
        faults: at least so many, three of four by SIGKILL, the others hang.
        seed: of when and whom.
        workers: processes.
        steps: of one training; there are as many as it takes.
    """
    began, files = time.perf_counter(), _memory_files()
    counted = made = lost = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "slipstream_chaos.py").write_text(_ENV)
        sys.path.insert(0, folder)
        try:
            while counted < faults:
                run, failure = _train(Path(folder) / str(runs), seed + runs, workers, steps)
                runs += 1
                lost += failure is not None
                if failure is not None:
                    print(failure, file=sys.stderr)
                    break
                counted += int(run.provenance.get("faults", {"number": 0})["number"])
                made += int(run.result["progress"]["steps"])
        finally:
            sys.path.remove(folder)
            sys.modules.pop("slipstream_chaos", None)  # its folder is gone
            gymnasium.registry.pop("SlipstreamChaos-v0", None)  # the next one's import registers it
    return {
        "faults": counted,
        "steps": made,
        "runs": runs,
        "runs_lost": lost,
        "processes_left": len(_left()),
        "memory_files_left": _memory_files() - files,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _train(out: Path, seed: int, workers: int, steps: int) -> tuple[Any, str | None]:
    config = {
        "env": {"name": "gym:slipstream_chaos:SlipstreamChaos-v0", "kwargs": {"hangs": 0.0005}},
        "agent": {"name": "ppo", "n_steps": 32, "net_arch": [8], "n_epochs": 1, "batch_size": 64},
        "training": {
            "num_envs": 2 * workers,
            "total_timesteps": steps,
            "workers": workers,
            "backend": "process",
            "hang_seconds": 0.5,
            "faults_per_minute": 100_000,
            "seed": seed,
        },
        "evaluation": {"episodes": 4, "every": 1.0},
    }
    over = threading.Event()
    killer = threading.Thread(target=_kill, args=(over, random.Random(seed), _slowness()))
    killer.start()
    try:
        return slipstream.train(config, out=out, report=False, log=lambda said: None), None
    except SlipstreamError as error:
        return None, str(error)
    finally:
        over.set()
        killer.join()


def _slowness() -> float:
    """How many times longer than usual processes take to start here and now; at least 1."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return max(1.0, (time.perf_counter() - began) / _QUICK_SECONDS)


def _kill(over: threading.Event, draw: random.Random, slowness: float) -> None:
    """Kills a worker now and then: a grandchild, which the server of workers has forked.

    Most come to step before they are killed: one that is lost again and again ends a run rightly.
    """
    while not over.wait(slowness * draw.uniform(0.05, 0.4)):
        servers = psutil.Process().children()
        pids = []
        for server in servers:
            try:
                pids += [child.pid for child in server.children()]
            except psutil.Error:
                continue
        if pids:
            try:
                os.kill(draw.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _left() -> list[psutil.Process]:
    """Descendants that have not ended after a while."""
    children = psutil.Process().children(recursive=True)
    return psutil.wait_procs(children, timeout=5.0)[1]


def _memory_files() -> int:
    """Memory files of workers that this process has open; it has none by name."""
    gc.collect()  # a view in what refers to itself still holds its memory
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:slipstream" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    return count


def test_copies_that_crash_now_and_then_lose_hardly_more_than_those_rows():
    found = crashing(num_envs=8, steps=3000)
    assert found["faults"] > 50 and found["real"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "steps"), [(10, 4_000), (1_000, 20_000)])
@pytest.mark.timeout(7200)
def test_training_survives(faults, steps):
    found = measure(faults, seed=faults, workers=2, steps=steps)
    assert found["faults"] >= faults and found["steps"] > 0
    assert (found["runs_lost"], found["processes_left"], found["memory_files_left"]) == (0, 0, 0)
