"""Autotune: which way of stepping an environment's copies is fastest on this machine.

Each way is measured in a child of its own, within a budget. The measurements give the knee, the
ceiling, the number of copies that fit, and the fastest way of each number of copies.
"""

from __future__ import annotations

import itertools
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from slipstream.core.capacity import free_memory, process_memory, usable_cores
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.kernels.env_checker import random_actions
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import (
    Episodes,
    FinalObs,
    StepBuffers,
    VectorEnv,
    allocate_buffers,
    member_indices,
)
from slipstream.training.backend import make_workers
from slipstream.training.child_process import ChildProcess, call_safely, unwrap_result
from slipstream.training.environments.autotune_cache import AutotuneEntry, StepConfig, Tunable
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import get_kind, resolve_environment
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_memory, fits, resolve_num_envs, storage_bytes
from slipstream.training.workers import ThreadPool

_PIECE = 0.1  # share of the time to measure for, between two joints of threads
_MOST_ROWS = 64
BUSY = 0.25  # cores that others take, from which on a measurement says so
_LEAST_ITERATIONS = 2  # after the first one, which compiles
_FOREIGN = (1, 2, 4, 8, 16, 32, 64)
_KERNEL = (1, 8, 64, 256, 1024, 4096)
_EACH = 60  # part of the budget that one measurement takes, without what it takes to start
_LEAST, _MOST = 0.1, 3.0  # seconds of it
# Seconds of starting and stepping a little, after which a measurement is ended: a part of the
# budget within bounds.
_PATIENCE, _LEAST_PATIENCE, _MOST_PATIENCE = 1 / 6, 3.0, 10.0
_COMPILING = 300.0  # seconds
_MEMORY_SECONDS = 30.0  # budget of `measure_memory`
_LOADING = 0.4  # share of the budget in which a foreign environment must have been tried out
_WAITS = 0.2  # share of waiting from which more workers than cores are tried
GOOD_ENOUGH = 0.9  # of the best: the fewest copies that reach it are the knee
_BETTER = 1.05  # times as fast must worker processes or threads be to be preferred
_IDLE = 0.5  # share of waiting that is worth a sentence
_MEMORY_SHARE = 0.8  # of what is free
_LABELS = {"env": "environments", "policy": "acting", "update": "the update", "other": "all else"}


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
            env = environment.make_envs(seeds[lo:hi], indices[lo:hi], cell.backend)
            slices.append(_Slice(made.enter_context(env)))
        with ThreadPool(threads) as crew:
            return _run(slices, crew, seconds)


def _run(slices: list[_Slice], crew: ThreadPool, seconds: float) -> StepSpeed:
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
        memory=sum(map(process_memory, [os.getpid(), *pids])),
    )


class _Slice:
    """Copies with actions for them, drawn beforehand where all are allowed at all times."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.rows = env, 1
        self._out, self._draw = allocate_buffers(env), np.random.default_rng(0)
        env.reset(self._out.obs, self._out.mask)
        drawn = [self._actions() for _ in range(1 if env.mask_size else 16)]
        self._next = itertools.cycle(drawn)

    def _actions(self) -> Any:
        return random_actions(self.env.spec, self.env.num_envs, self._draw, self._out.mask)

    def run(self) -> None:
        """Steps `rows` times."""
        for t in range(self.rows):
            actions = self._actions() if self.env.mask_size else next(self._next)
            self.env.step(actions, self._out, t)
        self.env.drain_final_obs(), self.env.drain_episodes()

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
        (before,) = workers.call("stats")
        while len(walls) < _LEAST_ITERATIONS or sum(walls) < seconds:
            began = time.perf_counter()
            workers.call("iterate", 0.0)
            walls.append(time.perf_counter() - began)
        (after,) = workers.call("stats")
    spent = {
        name: (after[f"seconds_{name}"] - before[f"seconds_{name}"]) / len(walls)
        for name in ("env", "policy", "update")
    }
    other = max(0.0, sum(walls) / len(walls) - sum(spent.values()))
    return LearnSpeed(config.iteration_steps, **spent, other=other)


@dataclass
class Measurements:
    """What was measured.

    Attributes:
        config: of a lone member; `num_envs` is a number.
        environment: the config's.
        stepped: by cell.
        learned: an iteration by copies, and threads where the environment is compiled, else 1; a
            foreign environment's is without the time that its copies take.
        problems: why a cell could not be measured.
        left_out: cells for which no time was left.
        seconds: that all of it took.
        interrupted: Ctrl-C ended it.
        others: cores that other programs took meanwhile.
    """

    config: RunConfig
    environment: Environment
    stepped: dict[Cell, StepSpeed] = field(default_factory=dict)
    learned: dict[tuple[int, int], LearnSpeed] = field(default_factory=dict)
    problems: dict[Cell, str] = field(default_factory=dict)
    left_out: list[Cell] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    others: float = 0.0


def tune(
    config: RunConfig, seconds: float, say: Callable[[str], None] = lambda what: None
) -> Measurements:
    """Measures backends, copies, workers and threads for a config's environment.

    Args:
        config: whose `num_envs` and `members` are set aside: one member is measured.
        seconds: budget; what it is too short for is left out. Starting takes a few more.
        say: told what is being measured.

    Raises:
        ConfigError: the environment takes too long to be tried out.
        SlipstreamError: it cannot be made, or fails in its first steps.
    """
    say("making one copy")
    others, began = Others(), time.monotonic()
    found = _findings(config, seconds, others)
    try:
        say("compiling, where that was not done before")
        _compile(found)
        began = time.monotonic()
        tuner = _Tuner(found, seconds, began + seconds)
        for cell in _cells(found):
            say(f"{cell.copies} copies, {cell.backend}, {cell.workers} at a time")
            tuner.measure(cell)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds, found.others = time.monotonic() - began, others.took()
    return found


def measure_memory(config: RunConfig) -> Measurements:
    """Steps few copies and many, for what each takes; errors as for `tune`."""
    found = _findings(config, _MEMORY_SECONDS, Others())
    tuner = _Tuner(found, _MEMORY_SECONDS, time.monotonic() + _COMPILING)
    backend, counts = (
        ("compiled", _KERNEL) if found.environment.kind.compiled else ("serial", _FOREIGN)
    )
    for copies in (counts[1], counts[-1]):
        tuner.step(Cell(backend, copies, 1), _COMPILING)
    return found


def _findings(config: RunConfig, seconds: float, others: Others) -> Measurements:
    """None yet, of an environment that was tried out."""
    agent = config.agent.select([0], config.training.members)
    config = replace(config, agent=agent).with_training(members=1, device="cpu")
    step = _try_out(config, seconds, others)
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = replace(tunable, step_seconds=step)
    config, _ = resolve_num_envs(config, environment)
    return Measurements(config, environment)


def _try_out(config: RunConfig, seconds: float, others: Others) -> float:
    """Makes a foreign environment where it can be ended, for some take for ever; seconds a step."""
    if get_kind(config.env_name).compiled:
        return 0.0
    here = config.with_training(backend="serial")  # in the child
    limit, began = _LOADING * seconds, time.monotonic()

    def loaded() -> float:
        environment = resolve_environment(config.env_name, config.env_settings)
        tunable = environment.part(Tunable)
        seconds = tunable and tunable.probed(here.training.stepping).step_seconds
        return seconds or 0.0

    step = _in_child(loaded, limit)
    if step is None and time.monotonic() - began < limit:
        raise KernelError(
            f"The process that made one copy of {config.env_name} and stepped it ended without a "
            "word, as it does after `os._exit` or a crash in C: mend the environment."
        )
    if step is None:
        raise ConfigError(
            f"One copy of {config.env_name} could not be made and stepped 34 times within "
            f"{limit:.0f} s, which is {_LOADING:.0%} of the budget. If it is slow and does not "
            f"hang, give it more: `slipstream tune-machine {shlex.quote(config.env_name)} "
            f"--seconds {10 * seconds:.0f}`.{busy_sentence(others.took())}"
        )
    return float(step)


def _compile(found: Measurements) -> None:
    """What is compiled once is no part of the budget; what fails here fails again and says so."""
    kernel = found.environment.kind.compiled
    place = (
        found.environment
        if kernel
        else FreeEnvironment(found.environment.kind, found.environment.spec)
    )
    with suppress(SlipstreamError, RuntimeError):
        _in_child(partial(measure_learning, found.config, place, 0.0), _COMPILING)


def _cells(found: Measurements) -> Iterator[Cell]:
    """In the order of what is most worth knowing: the config's own number of copies first."""
    own, cores = int(found.config.training.num_envs), usable_cores()
    kernel = found.environment.kind.compiled
    counts = _KERNEL if kernel else _FOREIGN
    for copies in dict.fromkeys([own, *counts]):
        if kernel:
            threads = dict.fromkeys((1, min(cores, copies)))
            yield from (Cell("compiled", copies, n) for n in threads)
            continue
        yield Cell("serial", copies, 1)
        if "process" not in found.environment.kind.backends or copies == 1:
            continue
        usual = Cell("process", copies, min(copies, max(2, cores)))
        yield usual
        stepped = found.stepped.get(usual)
        crowd = min(copies, 4 * cores)
        if stepped is not None and stepped.waiting > _WAITS and crowd > usual.workers:
            yield Cell("process", copies, crowd)


class _Tuner:
    """Measures cells until the time is over."""

    def __init__(self, found: Measurements, seconds: float, until: float) -> None:
        self.found, self._until = found, until
        self._each = min(_MOST, max(_LEAST, seconds / _EACH))
        self._patience = min(_MOST_PATIENCE, max(_LEAST_PATIENCE, _PATIENCE * seconds))

    def measure(self, cell: Cell) -> None:
        """Stepping, then learning from so many copies, unless that is known."""
        left, expected = self._until - time.monotonic(), self._expected(cell)
        if left < expected:
            self.found.left_out.append(cell)
            return
        if self.step(cell, min(left, self._patience + expected)):
            self._learn(cell, self._environment(cell))

    def step(self, cell: Cell, limit: float) -> bool:
        """Stepping alone, within so many seconds; whether that was measured."""
        found, others = self.found, Others()
        measure = partial(measure_steps, self._environment(cell), cell, self._each)
        try:
            stepped = _in_child(measure, limit)
        except (SlipstreamError, RuntimeError) as error:
            found.problems[cell] = str(error)
            return False
        if stepped is None:
            busy = busy_sentence(others.took())
            found.problems[cell] = f"not done within {limit:.0f} s.{busy}"
            return False
        found.stepped[cell] = stepped
        return True

    def _environment(self, cell: Cell) -> Environment:
        """StepResult by so many workers or threads; what fails there ends the measurement."""
        training = self.found.config.with_training(
            backend=cell.backend, on_fault="raise", hang_seconds=0.8 * self._patience
        ).training
        if cell.backend == "process":
            training = training.model_copy(update={"workers": cell.workers})
        return self.found.environment.with_stepping(training.stepping)

    def _expected(self, cell: Cell) -> float:
        """Seconds that it takes at least, from what one copy was found to take."""
        rates = [s.rate for c, s in self.found.stepped.items() if c.workers <= cell.workers]
        return self._each + (4.0 * cell.copies / max(rates) if rates else 0.0)

    def _learn(self, cell: Cell, environment: Environment) -> None:
        kernel = environment.kind.compiled
        key = (cell.copies, cell.workers if kernel else 1)
        if key in self.found.learned or not fits(self.found.config.agent, cell.copies):
            return
        config = self.found.config.with_training(num_envs=cell.copies)
        place: Environment = FreeEnvironment(environment.kind, environment.spec)
        if kernel and (tunable := environment.part(Tunable)):
            measured = AutotuneEntry("", {cell.copies: StepConfig(*cell[::2])})
            place = replace(tunable, measured=measured)
        try:
            check_memory(config, place)
            limit = max(self._each, self._until - time.monotonic())
            learned = _in_child(partial(measure_learning, config, place, self._each), limit)
        except (SlipstreamError, RuntimeError):
            return  # it does not fit: the table has no figure for training
        if learned is not None:
            self.found.learned[key] = learned


def _in_child(measure: Callable[[], Any], limit: float) -> Any:
    """What it returns, from a forked process; None where that took too long or was lost.

    Raises:
        SlipstreamError: what was raised there.
    """
    child = ChildProcess(
        lambda pipe: pipe.send(call_safely(measure)), "measurement", "close other programs"
    )
    try:
        answer = child.receive() if child.pipe.poll(limit) else None
    finally:
        child.terminate(0.0)  # also when interrupted; its own workers end with it
    return None if answer is None else unwrap_result(answer)


class FreeVectorEnv(VectorEnv):
    """Copies that show the same drawn observations at every step, and whose episodes never end."""

    backend = "serial"

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        draw, shape = np.random.default_rng(0), (num_envs, *spec.observation_shape)
        pictures = spec.observation_dtype == np.uint8
        rows = draw.integers(0, 256, shape) if pictures else draw.standard_normal(shape)
        self._rows = rows.astype(spec.observation_dtype)
        self._reward = draw.standard_normal(num_envs).astype(np.float32)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        obs[...] = self._rows

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        out.obs[...], out.reward[...] = self._rows, self._reward
        out.terminated[...] = out.truncated[...] = False
        out.valid[...] = True

    def drain_final_obs(self) -> FinalObs:
        none = np.zeros((0, *self.spec.observation_shape), self.spec.observation_dtype)
        return FinalObs(none, np.zeros((0, 2), np.int64))

    def drain_episodes(self) -> Episodes:
        whole = np.zeros(0, np.int64)
        none = {metric.name: np.zeros(0) for metric in self.spec.metrics}
        return Episodes(whole, whole, np.zeros(0), whole, none)

    def begin(self, *arguments: Any) -> None:
        raise NotImplementedError("nothing is evaluated here")

    def get_state(self) -> dict[str, NDArray[Any]]:
        return {}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.reset_rows(obs)


@dataclass(frozen=True)
class FreeEnvironment(Environment):
    """In place of a foreign environment, whatever it shows and takes."""

    def make_envs(self, seeds: NDArray[np.uint64], *how: Any, **more: Any) -> VectorEnv:
        return FreeVectorEnv(self.spec, len(seeds))

    def make_eval_envs(self, split: str, num_envs: int, *how: Any, **more: Any) -> VectorEnv:
        raise NotImplementedError("nothing is evaluated here")


class Iteration(NamedTuple):
    """Training with so many copies, each stepped in its fastest way: shares of the time, 0 to 1.

    Attributes:
        cell: that way.
        rate: steps per second.
        shares: of environments, acting, learning and all else, by `LearnSpeed`'s names.
    """

    cell: Cell
    rate: float
    shares: dict[str, float]

    @property
    def most(self) -> float:
        """How many times faster it could be if environments took no time at all (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.shares["env"], 1e-3)


def fastest(found: Measurements, copies: int) -> Cell | None:
    """Of the ways in which so many copies were stepped; serial unless another is clearly better."""
    rates = {cell: s.rate for cell, s in found.stepped.items() if cell.copies == copies}
    plain = [cell for cell in rates if cell.workers == 1 and cell.backend != "process"]
    if not rates:
        return None
    best = max(rates, key=lambda cell: rates[cell])
    if plain and rates[best] < _BETTER * rates[plain[0]]:
        return plain[0]
    return best


def iteration(found: Measurements, copies: int) -> Iteration | None:
    """Training with so many copies; None where it was not measured.

    A foreign environment's is put together: what acting and learning take without it, and the time
    that its copies were measured to take. A kernel's was trained on.
    """
    if found.environment.kind.compiled:
        trained = {n: one for (c, n), one in found.learned.items() if c == copies}
        if not trained:
            return None
        threads = max(trained, key=lambda n: _rate(trained[n]))
        return _shared(Cell("compiled", copies, threads), trained[threads])
    cell, learned = fastest(found, copies), found.learned.get((copies, 1))
    if cell is None or learned is None:
        return None
    seconds = learned.steps / found.stepped[cell].rate
    return _shared(cell, learned._replace(env=seconds))


def _rate(learned: LearnSpeed) -> float:
    return learned.steps / (learned.env + learned.apart)


def _shared(cell: Cell, learned: LearnSpeed) -> Iteration:
    whole = learned.env + learned.apart
    shares = {name: getattr(learned, name) / whole for name in _LABELS}
    return Iteration(cell, learned.steps / whole, shares)


def iterations(found: Measurements) -> dict[int, Iteration]:
    """By copies, ascending."""
    made = {n: iteration(found, n) for n in sorted({cell.copies for cell in found.stepped})}
    return {n: one for n, one in made.items() if one is not None}


def knee(rates: dict[int, float]) -> int:
    """The fewest copies that are nearly fastest: fewer leave more updates to a budget."""
    best = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= GOOD_ENOUGH * best)


def bytes_per_env(found: Measurements, cell: Cell) -> float | None:
    """Bytes that one more copy takes, from the fewest that were stepped alike; None for those."""
    alike = [
        (other.copies, one.memory)
        for other, one in found.stepped.items()
        if (other.backend, other.workers) == (cell.backend, cell.workers)
    ]
    copies, memory = min(alike)
    if copies == cell.copies:
        return None
    return max(0.0, (found.stepped[cell].memory - memory) / (cell.copies - copies))


def fitting(found: Measurements) -> tuple[int, float, float] | None:
    """(copies that fit the memory that is free, bytes of each, free bytes), experience included."""
    largest = fastest(found, max((cell.copies for cell in found.stepped), default=0))
    own = None if largest is None else bytes_per_env(found, largest)
    if largest is None or own is None:
        return None
    agent, n = found.config.agent, largest.copies
    kept = [storage_bytes(agent, found.environment, 1, k * n) for k in (1, 2)]
    each = max(own + rollout_each(found, n) + (kept[1] - kept[0]) / n, 1.0)
    free = free_memory()
    return int(_MEMORY_SHARE * free / each), each, float(free)


def rollout_each(found: Measurements, n: int = 1_024) -> float:
    """Bytes of one more copy's part of a rollout and its update, beside n copies'."""
    agent, spec = found.config.agent, found.environment.spec
    return (agent.bytes(spec, 1, 2 * n) - agent.bytes(spec, 1, n)) / n


def envs_on_gpu(found: Measurements, memory: float) -> int | None:
    """Copies whose experience fits a card of so many bytes: 0.8 memory / bytes of a copy's rollout.

    Copies are stepped by the processor, and a replay stays there. None where nothing of a copy lies
    on the card for longer than a step.
    """
    if found.config.agent.replay(1) is not None:
        return None
    networks = found.config.agent.bytes(found.environment.spec, 1, 1)
    return int(_MEMORY_SHARE * (memory - networks) / max(rollout_each(found), 1.0))


def measured(found: Measurements) -> AutotuneEntry:
    """What the machine file keeps: the fastest way of each number of copies."""
    ways = {}
    for copies in sorted({cell.copies for cell in found.stepped}):
        one = iteration(found, copies)
        cell = one.cell if one is not None else fastest(found, copies)
        if cell is not None:
            ways[copies] = StepConfig(cell.backend, cell.workers)
    return AutotuneEntry(time.strftime("%Y-%m-%d"), ways)


def sentences(found: Measurements) -> list[str]:
    """What is to be known, in words."""
    trained = iterations(found)
    said = []
    own = trained.get(int(found.config.training.num_envs))
    if own is not None:
        said += [_fastest(found, own), _ceiling(own)]
    if len(trained) > 1:
        said.append(_knee(trained))
    waits = _waiting(found, own)
    busy = busy_sentence(found.others).strip()
    return [*([busy] if busy else []), *said, *waits, *filter(None, [fit_sentence(found)])]


def _fastest(found: Measurements, own: Iteration) -> str:
    cell, plain = own.cell, found.stepped.get(Cell("serial", own.cell.copies, 1))
    beside = ""
    if cell.backend == "process" and plain is not None:
        beside = f", {found.stepped[cell].rate / plain.rate:.1f}x `serial`"
    return (
        f"{_copies(cell.copies)} (what num_envs is) step fastest by {_way(cell)}: "
        f"{found.stepped[cell].rate:,.0f} steps/s{beside}; a training makes about "
        f"{own.rate:,.0f} steps/s."
    )


def _ceiling(own: Iteration) -> str:
    rest = {name: share for name, share in own.shares.items() if name != "env"}
    largest = max(rest, key=lambda name: rest[name])
    shown = ", ".join(f"{_LABELS[name]} {share:.0%}" for name, share in own.shares.items())
    return (
        f"Of that training's time: {shown}. More environments, or faster ones, cannot give more "
        f"than {own.most:.1f}x; {_LABELS[largest]} is {rest[largest]:.0%}."
    )


def _knee(trained: dict[int, Iteration]) -> str:
    rates = {n: one.rate for n, one in trained.items()}
    at, best = knee(rates), max(rates, key=lambda n: rates[n])
    return (
        f"The knee: {_copies(at)} are the fewest that train at {GOOD_ENOUGH:.0%} of the fastest "
        f"({rates[at]:,.0f} of {rates[best]:,.0f} steps/s, with {best:,})."
    )


def _waiting(found: Measurements, own: Iteration | None) -> list[str]:
    """What long waiting means."""
    stepped: StepSpeed | None = None if own is None else found.stepped.get(own.cell)
    if own is None or stepped is None or stepped.waiting < _IDLE:
        return []
    if own.cell.backend == "compiled":
        return []  # its threads wait for each other where copies are few
    if own.cell.backend == "process":
        return [
            f"Workers wait {stepped.waiting:.0%} of the time: the environment sleeps, or steps are "
            "too short for processes."
        ]
    return [
        f"The process that steps waits {stepped.waiting:.0%} of the time: the environment sleeps "
        "(a simulator, a network), and more workers than cores overlap that."
    ]


def fit_sentence(found: Measurements) -> str:
    """How many copies fit into memory; empty where that was not measured."""
    fit = fitting(found)
    if fit is None:
        return ""
    copies, each, free = fit
    return (
        f"About {float(f'{copies:.2g}'):,.0f} copies fit into the {free / 2**30:.1f} GiB of "
        f"memory that are free ({each / 2**10:,.0f} KiB each, with their share of the experience)."
    )


def _copies(n: int) -> str:
    return "1 copy" if n == 1 else f"{n:,} copies"


def _way(cell: Cell) -> str:
    if cell.backend == "serial":
        return "`serial`"
    noun = "workers" if cell.backend == "process" else "threads"
    return f"`{cell.backend}`, {cell.workers} {noun if cell.workers > 1 else noun[:-1]}"
