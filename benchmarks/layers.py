"""One environment in slipstream's and other vector layers, with random actions drawn beforehand."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import psutil

from benchmarks.environments import maker
from slipstream.core.capacity import process_memory
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_environment import is_process_backend_faster, measure_step_seconds
from slipstream.kernels.vector_env import allocate_buffers, member_indices

OURS = ("serial", "process", "auto")
_ROWS = 16

Step = Callable[[list[Any]], None]


def _opened(system: str, env: str, num_envs: int, rounds: int, workers: int | None) -> Any:
    """Open a vector environment: a slipstream backend, its adapter, or another library's."""
    make = maker(env, rounds)
    if system in OURS:
        seeds = member_indices([1], num_envs)
        if system == "auto":
            with ForeignEnv(make, *member_indices([1], 1)) as probe:
                pays = is_process_backend_faster(measure_step_seconds(probe), num_envs, workers)
            system = "process" if pays else "serial"
        return ForeignEnv(make, *seeds, workers=0 if system == "serial" else workers)
    if system == "envpool":
        import envpool

        return envpool.make_gymnasium(env, num_envs=num_envs, seed=1)
    if system == "face":
        faces = import_module("slipstream.adapters.gymnasium_vector")
        return faces.ForeignVectorAdapter([make] * num_envs)
    if system.startswith("gym"):
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        return (SyncVectorEnv if system == "gym_sync" else AsyncVectorEnv)([make] * num_envs)
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if system == "sb3_dummy":
        return DummyVecEnv([make] * num_envs)
    # Its default starts every process by importing PyTorch, which takes minutes for many envs.
    return SubprocVecEnv([make] * num_envs, start_method="fork")


def stepper(
    system: str,
    env: str,
    num_envs: int,
    rounds: int = 0,
    workers: int | None = None,
    steps: int = _ROWS,
) -> tuple[Step, Any]:
    """Return a function that makes `steps` vector steps, and the reset vector environment.

    Gymnasium's environments use the step after an episode's end for a reset. The function appends
    the flags of their steps to its argument, so that only transitions are counted.

    Args:
        system: a backend of slipstream (`OURS`), or gym_sync, gym_async (shared memory), sb3_dummy,
            sb3_subproc, envpool, face (Gymnasium's interface over slipstream's worker processes).
        env, rounds: see `maker`.
        num_envs: number of sub-environments.
        workers: worker processes of slipstream.
        steps: vector steps of one call.
    """
    actions = np.random.default_rng(0).integers(0, 2, (steps, num_envs))
    vec_env = _opened(system, env, num_envs, rounds, workers)
    if system in OURS:
        out, rows = allocate_buffers(vec_env), actions[..., None]
        vec_env.reset(out.obs)

        def step_ours(flags: list[Any]) -> None:
            for t in range(steps):
                vec_env.step(rows[t], out)
            vec_env.drain_final_obs(), vec_env.drain_episodes()

        return step_ours, vec_env
    vec_env.reset()
    next_step = system.startswith("gym")

    def step_theirs(flags: list[Any]) -> None:
        for t in range(steps):
            came = vec_env.step(actions[t])
            if next_step:
                flags.append(came[2:4])

    return step_theirs, vec_env


def measure(system: str, env: str, num_envs: int, seconds: float, **more: Any) -> dict[str, float]:
    """Measure steps per second, CPU microseconds a step, seconds to start and stop, and bytes.

    Args:
        system, env, num_envs, more: see `stepper`.
        seconds: duration of the measurement.
    """
    began = time.perf_counter()
    step, vec_env = stepper(system, env, num_envs, **more)
    started = time.perf_counter() - began
    step([])
    calls, began, spent = 0, time.perf_counter(), _processor_seconds()
    while time.perf_counter() - began < seconds:
        step([])
        calls += 1
    steps, wall = calls * _ROWS * num_envs, time.perf_counter() - began
    spent = _processor_seconds() - spent
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    memory = sum(map(process_memory, [os.getpid(), *pids]))
    began = time.perf_counter()
    vec_env.close()
    return {
        "steps_per_second": steps / wall,
        "cpu": 1e6 * spent / steps,
        "start": started,
        "stop": time.perf_counter() - began,
        "memory": memory,
    }


def _processor_seconds() -> float:
    """Return the CPU seconds of this process and its children so far."""
    mine = psutil.Process()
    times = [process.cpu_times() for process in (mine, *mine.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))


def turns(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Call `_turns` for each cell, one after another."""
    return {"cells": [_turns(**cell) for cell in cells]}


def _turns(
    systems: Sequence[str],
    num_envs: int,
    seconds: float,
    turns: int,
    steps: int = _ROWS,
    **more: Any,
) -> dict[str, list[float] | None]:
    """Measure steps per second by system, one figure a turn; None for a missing package.

    Args:
        systems: order of a turn, reversed in every second one; all run in this process.
        num_envs, steps, more: as for `stepper`.
        seconds: time for each system in each turn; at least one call is made.
        turns: number of turns.
    """
    opened: dict[str, tuple[Step, Any]] = {}
    rates: dict[str, Any] = {system: [] for system in systems}
    try:
        for system in systems:
            try:
                opened[system] = stepper(system, num_envs=num_envs, steps=steps, **more)
                opened[system][0]([])
            except ImportError:
                rates[system] = None
        for turn in range(turns):
            for system in list(opened)[:: -1 if turn % 2 else 1]:
                rates[system].append(_rate(opened[system][0], num_envs * steps, seconds))
    finally:
        for _, vec_env in opened.values():
            vec_env.close()
    return rates


def _rate(step: Step, made: int, seconds: float) -> float:
    """Return the transitions per second of repeated calls that take `made` steps each."""
    flags: list[Any] = []
    calls, spent, began = 0, 0.0, time.perf_counter()
    while spent < seconds:
        step(flags)
        calls += 1
        spent = time.perf_counter() - began
    resets = sum(int(np.count_nonzero(over | cut)) for over, cut in flags)
    return float((calls * made - resets) / spent)


def alone(env: str, num_envs: int, seconds: float, rounds: int = 0) -> dict[str, float]:
    """Measure steps per second of concurrent processes that step one env each, with no layer.

    The result is an upper bound for any layer: nothing is checked, written or exchanged, and
    wrappers are left out. `steps_per_cpu_second` counts the CPU time that the processes used.
    """
    with multiprocessing.get_context("fork").Pool(num_envs) as pool:
        results = pool.starmap(_loop, [(env, rounds, seconds)] * num_envs, chunksize=1)
    return {
        "steps_per_second": sum(steps / wall for steps, wall, _ in results),
        "steps_per_cpu_second": sum(result[0] for result in results)
        / sum(result[2] for result in results),
    }


def _loop(env: str, rounds: int, seconds: float) -> tuple[int, float, float]:
    """Return the steps, seconds and CPU seconds of the environment's own loop."""
    instance = maker(env, rounds)().unwrapped
    instance.reset()
    drawn = np.random.default_rng(0).integers(0, 2, (64, _ROWS))
    rows = itertools.cycle([list(row) for row in drawn])
    steps, began, cpu = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < seconds:
        for action in next(rows):
            _, _, terminated, truncated, _ = instance.step(action)
            if terminated or truncated:
                instance.reset()
        steps += _ROWS
    return steps, time.perf_counter() - began, time.thread_time() - cpu


def receive(env: str, num_envs: int, seconds: float, workers: int, count: int) -> dict[str, float]:
    """Measure steps per second if `recv` waits for `count` sub-environments only."""
    vec_env = _opened("process", env, num_envs, 0, workers)
    vec_env.reset(allocate_buffers(vec_env).obs)
    vec_env.send(np.zeros(num_envs, np.int64))
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        ready = vec_env.recv(count)
        steps += count
        vec_env.send(np.zeros(count, np.int64), ready.env_ids)
    spent = time.perf_counter() - began
    vec_env.recv()
    vec_env.close()
    return {"steps_per_second": steps / spent}


def kill(env: str, num_envs: int, workers: int) -> dict[str, float]:
    """Measure the seconds that other workers' envs lose when one worker is killed."""
    vec_env = _opened("process", env, num_envs, 0, workers)
    out, actions = allocate_buffers(vec_env), np.zeros((num_envs, 1), np.int64)
    vec_env.reset(out.obs)
    times: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        vec_env.step(actions, out)
        times.append(time.perf_counter() - began)

    for _ in range(30):
        step()
    usual = float(np.median(times[5:]))
    times.clear()
    os.kill(vec_env.driver.handles[0].pid, signal.SIGKILL)
    began = time.perf_counter()
    while time.perf_counter() - began < 60.0:
        step()
        if len(times) > 5 and out.valid.all():
            break
    vec_env.close()
    return {"lost": sum(max(0.0, seconds - usual) for seconds in times)}


def crashing(num_envs: int, steps: int) -> dict[str, float]:
    """Measure the share of valid rows if envs raise at one step in 200, and count the errors."""
    vec_env, real = _opened("process", "crashing", num_envs, 0, 2), 0
    out, actions = allocate_buffers(vec_env), np.zeros((num_envs, 1), np.int64)
    vec_env.reset(out.obs)
    for t in range(steps):
        actions[:] = t // 2 % 2
        vec_env.step(actions, out, t)
        real += int(out.valid.sum())
    vec_env.close()
    return {"real": real / (steps * num_envs), "faults": float(vec_env.fault_log.total)}
