"""Foreign copies stepped by a backend of ours, with random actions drawn beforehand."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np
import psutil

from slipstream.bench.vector_envs import maker
from slipstream.bench.worker import serve
from slipstream.vector.chosen import chosen_backend
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv
from slipstream.vector.process.foreign_env import ForeignProcessEnv
from slipstream.vector.process.pool import memory_of
from slipstream.vector.vector_env import VectorEnv, blank, member_indices

_ROWS = 16


def made(env: str, rounds: int, num_envs: int, backend: str, workers: int | None) -> VectorEnv:
    """Copies on a backend; `auto` measures one of them first."""
    make, seeds = maker(env, rounds), member_indices([1], num_envs)
    if backend == "auto":
        backend = chosen_backend(make, {}, num_envs, workers).backend
    if backend == "serial":
        return GymnasiumVectorEnv(make, *seeds)
    return ForeignProcessEnv(make, *seeds, workers=workers)


def measure(
    env: str,
    num_envs: int,
    seconds: float,
    rounds: int = 0,
    backend: str = "process",
    workers: int | None = None,
    receive: int = 0,
) -> dict[str, Any]:
    """Steps per second, processor time of a step, start and stop in seconds, memory.

    Args:
        env, rounds: see `maker`.
        num_envs: copies.
        seconds: to measure for.
        backend: serial, process or auto; workers: of process.
        receive: wait for so many copies only, by `send` and `recv`; 0: step all together.
    """
    began = time.perf_counter()
    copies = made(env, rounds, num_envs, backend, workers)
    out = blank(copies)
    copies.reset(out.obs)
    started = time.perf_counter() - began
    actions = np.random.default_rng(0).integers(0, 2, (_ROWS, num_envs, 1))
    spent = processor_seconds()
    if receive:
        steps, wall = _received(copies, receive, seconds)
    else:
        steps, wall = _stepped(copies, actions, out, seconds)
    spent = processor_seconds() - spent
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    memory = sum(map(memory_of, [os.getpid(), *pids]))
    backend = copies.backend
    began = time.perf_counter()
    copies.close()
    return {
        "steps_per_second": steps / wall,
        "cpu": spent / steps,
        "start": started,
        "stop": time.perf_counter() - began,
        "memory": memory,
        "backend": backend,
    }


def processor_seconds() -> float:
    """Of this process and those that it started, so far."""
    mine = psutil.Process()
    times = [one.cpu_times() for one in (mine, *mine.children(recursive=True))]
    return sum(own.user + own.system for own in times)


def alone(env: str, num_envs: int, seconds: float, rounds: int = 0) -> dict[str, float]:
    """Steps per second of so many processes at once that step one copy each, with no layer.

    That is a bound for any layer: nothing is checked, written, handed over or waited for, wrappers
    are left out. `steps_per_cpu_second` counts the processor time that they took.
    """
    with multiprocessing.get_context("fork").Pool(num_envs) as pool:
        found = pool.starmap(_loop, [(env, rounds, seconds)] * num_envs, chunksize=1)
    return {
        "steps_per_second": sum(steps / wall for steps, wall, _ in found),
        "steps_per_cpu_second": sum(one[0] for one in found) / sum(one[2] for one in found),
    }


def _loop(env: str, rounds: int, seconds: float) -> tuple[int, float, float]:
    """Steps, seconds and processor seconds of the environment's own loop."""
    copy = maker(env, rounds)().unwrapped
    copy.reset()
    drawn = np.random.default_rng(0).integers(0, 2, (64, _ROWS))
    rows = itertools.cycle([list(row) for row in drawn])
    steps, began, cpu = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < seconds:
        for action in next(rows):
            _, _, terminated, truncated, _ = copy.step(action)
            if terminated or truncated:
                copy.reset()
        steps += _ROWS
    return steps, time.perf_counter() - began, time.thread_time() - cpu


def _stepped(copies: VectorEnv, actions: Any, out: Any, seconds: float) -> tuple[int, float]:
    for t in range(_ROWS):
        copies.step(actions[t], out)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(_ROWS):
            copies.step(actions[t], out)
        copies.drain_finals(), copies.drain_episodes()
        steps += _ROWS * copies.num_envs
    return steps, time.perf_counter() - began


def _received(copies: VectorEnv, count: int, seconds: float) -> tuple[int, float]:
    copies.send(np.zeros(copies.num_envs, np.int64))
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        ready = copies.recv(count)
        steps += count
        copies.send(np.zeros(count, np.int64), ready.copies)
    spent = time.perf_counter() - began
    copies.recv()
    return steps, spent


def kill(env: str, num_envs: int, rounds: int, workers: int) -> dict[str, float]:
    """Seconds that the copies of other workers lose when one is killed."""
    copies = ForeignProcessEnv(
        maker(env, rounds), *member_indices([1], num_envs), workers=workers
    )  # fmt: skip
    out, actions = blank(copies), np.zeros((num_envs, 1), np.int64)
    copies.reset(out.obs)
    times: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        copies.step(actions, out)
        times.append(time.perf_counter() - began)

    for _ in range(30):
        step()
    usual = float(np.median(times[5:]))
    times.clear()
    os.kill(copies.workers.links[0].pid, signal.SIGKILL)
    began = time.perf_counter()
    while time.perf_counter() - began < 60.0:
        step()
        if len(times) > 5 and out.valid.all():
            break
    lost = sum(max(0.0, seconds - usual) for seconds in times)
    back = time.perf_counter() - began
    copies.close()
    return {"lost": lost, "back": back, "usual": usual}


def crashing(num_envs: int, steps: int) -> dict[str, float]:
    """The share of rows that are real where copies raise at one step in 200."""
    real = 0
    with ForeignProcessEnv(maker("crashing"), *member_indices([1], num_envs), workers=2) as copies:
        out, actions = blank(copies), np.zeros((num_envs, 1), np.int64)
        copies.reset(out.obs)
        for t in range(steps):
            actions[:] = t // 2 % 2
            copies.step(actions, out, t)
            real += int(out.valid.sum())
        return {"real": real / (steps * num_envs), "faults": float(copies.ledger.total)}


def answer(what: str = "measure", **settings: Any) -> dict[str, Any]:
    """One of the measurements."""
    known = {"kill": kill, "alone": alone, "crashing": crashing}
    return known.get(what, measure)(**settings)


if __name__ == "__main__":
    serve(answer)
