"""What is measured: one way of stepping so many copies, and what learning from them costs."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import psutil

from slipstream.core.capacity import memory_of, usable_cores
from slipstream.kernels.contract import random_actions
from slipstream.kernels.vector_env import VectorEnv, blank, member_indices
from slipstream.training.environments.environment import Environment
from slipstream.training.make_workers import make_workers
from slipstream.training.processes.crew import Crew
from slipstream.training.settings.config import RunConfig

_PIECE = 0.1  # share of the time to measure for, between two joints of threads
_MOST_ROWS = 64
BUSY = 0.25  # cores that others take, from which on a measurement says so
_LEAST_ITERATIONS = 2  # after the first one, which compiles


class Cell(NamedTuple):
    """One way of stepping so many copies.

    Attributes:
        backend: serial, process or compiled.
        copies: of a lone member.
        workers: processes of process, threads of compiled, else 1.
    """

    backend: str
    copies: int
    workers: int


class StepSpeed(NamedTuple):
    """What stepping with random actions gave.

    Attributes:
        rate: steps per second.
        cores: busy on average, of all processes together.
        waiting: share of the time, 0 to 1, in which the processes or threads that step did nothing:
            they slept in the environment, or waited for each other; not that for which others had
            their cores.
        memory: bytes of all processes, pages that are shared counted in parts (PSS).
    """

    rate: float
    cores: float
    waiting: float
    memory: float


class LearnSpeed(NamedTuple):
    """An iteration of training.

    Attributes:
        steps: of all copies.
        env, policy, update, other: seconds in environments, acting, learning, and all else.
    """

    steps: int
    env: float
    policy: float
    update: float
    other: float

    @property
    def apart(self) -> float:
        """Seconds that environments have no part in."""
        return self.policy + self.update + self.other


def measure_steps(environment: Environment, cell: Cell, seconds: float) -> StepSpeed:
    """Steps copies for some time, each thread a slice of them."""
    threads = cell.workers if cell.backend == "compiled" else 1
    edges = np.linspace(0, cell.copies, threads + 1).astype(int).tolist()
    seeds, indices = member_indices([0], cell.copies)
    slices = list[_Slice]()
    with ExitStack() as made:
        for lo, hi in itertools.pairwise(edges):
            env = environment.copies(seeds[lo:hi], indices[lo:hi], cell.backend)
            slices.append(_Slice(made.enter_context(env)))
        with Crew(threads) as crew:
            return _run(slices, crew, seconds)


def _run(slices: list[_Slice], crew: Crew, seconds: float) -> StepSpeed:
    tasks = [one.run for one in slices]
    crew.run(tasks)  # compiles, and fills caches
    began = time.perf_counter()
    crew.run(tasks)
    each = time.perf_counter() - began
    for one in slices:
        one.rows = int(np.clip(_PIECE * seconds / max(each, 1e-9), 1, _MOST_ROWS))
    workers = [pid for one in slices for pid in one.pids]
    stepping, everyone, steps = _busy(workers), _busy(None), 0
    others = Others()
    began = time.perf_counter()
    while not steps or time.perf_counter() - began < seconds:
        crew.run(tasks)
        steps += sum(one.rows * one.env.num_envs for one in slices)
    wall = time.perf_counter() - began
    steppers = len(workers) or len(slices)
    busy = (_busy(workers) - stepping) / (wall * steppers)
    left = usable_cores() - others.took()  # cores that steppers could have at once
    without = max(0.0, min(steppers, usable_cores()) - left) / steppers
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    return StepSpeed(
        rate=steps / wall,
        cores=(_busy(None) - everyone) / wall,
        waiting=float(np.clip(1.0 - busy - without, 0.0, 1.0)),
        memory=sum(map(memory_of, [os.getpid(), *pids])),
    )


class _Slice:
    """Copies with actions for them, drawn beforehand where all are allowed at all times."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.rows = env, 1
        self._out, self._draw = blank(env), np.random.default_rng(0)
        env.reset(self._out.obs, self._out.mask)
        drawn = [self._actions() for _ in range(1 if env.mask_width else 16)]
        self._next = itertools.cycle(drawn)

    def _actions(self) -> Any:
        return random_actions(self.env.spec, self.env.num_envs, self._draw, self._out.mask)

    def run(self) -> None:
        """Steps `rows` times."""
        for t in range(self.rows):
            actions = self._actions() if self.env.mask_width else next(self._next)
            self.env.step(actions, self._out, t)
        self.env.drain_finals(), self.env.drain_episodes()

    @property
    def pids(self) -> list[int]:
        """Numbers of its worker processes."""
        workers = getattr(self.env, "workers", None)
        return [] if workers is None else [link.pid for link in workers.links]


class Others:
    """What other programs take of the cores that this one may use, from now on."""

    def __init__(self) -> None:
        self._began, self._all, self._own = time.perf_counter(), _machine_seconds(), _own_seconds()

    def took(self) -> float:
        """Of those cores, how many on average since the beginning; 0.0 to all of them."""
        wall = max(time.perf_counter() - self._began, 1e-9)
        busy = _machine_seconds() - self._all - (_own_seconds() - self._own)
        cores = psutil.cpu_count() or 1
        # What lies beyond this process's cores takes nothing from it.
        return float(np.clip(busy / wall - (cores - usable_cores()), 0.0, usable_cores()))


def busy_sentence(others: float) -> str:
    """What to know of a measurement while others took so many cores; empty where they took few."""
    if others < BUSY:
        return ""
    return (
        f" Other programs took {others:.1f} of {usable_cores()} cores meanwhile, so that not only "
        "the environment may have been slow: measure again when they have ended."
    )


def _machine_seconds() -> float:
    """Processor seconds that this machine has given to anybody."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def _own_seconds() -> float:
    """Processor seconds of this process, of the children that have ended and of those that live."""
    ended = os.times()
    return _busy(None) + ended.children_user + ended.children_system


def _busy(pids: list[int] | None) -> float:
    """Processor seconds of these processes, of this one where there are none; None: of all here."""
    if pids is None:
        children = psutil.Process().children(recursive=True)
        return time.process_time() + sum(_seconds(child) for child in children)
    return sum(_seconds(psutil.Process(pid)) for pid in pids) if pids else time.process_time()


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def measure_learning(config: RunConfig, environment: Environment, seconds: float) -> LearnSpeed:
    """Trains a lone member for some iterations; `num_envs` is a number, `members` is 1."""
    starts = getattr(config.agent, "learning_starts", None)
    if starts is not None:  # from the second iteration on it learns
        soon = {"learning_starts": min(starts, config.iteration_steps)}
        config = replace(config, agent=config.agent.model_copy(update=soon))
    walls: list[float] = []
    with make_workers(config, environment) as workers:
        workers.call("reset")
        workers.call("iterate", 0.0)
        (before,) = workers.call("facts")
        while len(walls) < _LEAST_ITERATIONS or sum(walls) < seconds:
            began = time.perf_counter()
            workers.call("iterate", 0.0)
            walls.append(time.perf_counter() - began)
        (after,) = workers.call("facts")
    spent = {
        name: (after[f"seconds_{name}"] - before[f"seconds_{name}"]) / len(walls)
        for name in ("env", "policy", "update")
    }
    other = max(0.0, sum(walls) / len(walls) - sum(spent.values()))
    return LearnSpeed(config.iteration_steps, **spent, other=other)
