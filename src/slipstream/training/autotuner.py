"""Autotune: measure the fastest way of stepping an environment on this machine.

Each way is measured in its own child process, within a time budget. The result contains the
smallest num_envs at nearly full speed, the limit by Amdahl's law, the num_envs that fits into
memory, and the fastest way for each num_envs.
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
from slipstream.training.environments.autotune_cache import AutotuneEntry, StepConfig, Tunable
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import get_kind, resolve_environment
from slipstream.training.forked_process import ChildProcess, call_safely, unwrap_result
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_memory, fits, resolve_num_envs, storage_bytes
from slipstream.training.workers import ThreadPool

_PIECE = 0.1  # share of the measuring time between two joins of the threads
_MOST_ROWS = 64
BUSY = 0.25  # cores used by other programs from which a notice is added
_LEAST_ITERATIONS = 2  # iterations after the first one, which compiles
_FOREIGN = (1, 2, 4, 8, 16, 32, 64)
_KERNEL = (1, 8, 64, 256, 1024, 4096)
_EACH = 60  # one measurement takes 1/60 of the budget, without start-up
_LEAST, _MOST = 0.1, 3.0  # bounds in seconds
# Timeout of start-up and first steps: a share of the budget within bounds in seconds.
_PATIENCE, _LEAST_PATIENCE, _MOST_PATIENCE = 1 / 6, 3.0, 10.0
_COMPILING = 300.0  # seconds
_MEMORY_SECONDS = 30.0  # budget of `measure_memory`
_LOADING = 0.4  # share of the budget for the first steps of a foreign environment
_WAITS = 0.2  # waiting share from which more workers than cores are measured
GOOD_ENOUGH = 0.9  # share of the best speed that the recommended num_envs must reach
_BETTER = 1.05  # speed-up required to prefer worker processes or threads
_IDLE = 0.5  # waiting share from which a notice is added
_MEMORY_SHARE = 0.8  # usable share of the free memory
_LABELS = {"env": "environments", "policy": "acting", "update": "the update", "other": "all else"}


class Cell(NamedTuple):
    """A way of stepping a number of sub-environments.

    Attributes:
        backend: serial, process or compiled.
        num_envs: sub-environments of a single member.
        workers: processes of process, threads of compiled, else 1.
    """

    backend: str
    num_envs: int
    workers: int


class StepSpeed(NamedTuple):
    """Result of stepping with random actions.

    Attributes:
        rate: steps per second.
        cores: mean number of busy cores of all processes together.
        waiting: share of the time, 0 to 1, in which the stepping processes or threads were idle:
            they
            slept in the environment or waited for each other. Time in which other programs used
            their cores is excluded.
        memory: bytes of all processes, with shared pages counted proportionally (PSS).
    """

    rate: float
    cores: float
    waiting: float
    memory: float


class LearnSpeed(NamedTuple):
    """Time of one training iteration.

    Attributes:
        steps: steps of all environments.
        env, policy, update, other: seconds of stepping, acting, learning, and everything else.
    """

    steps: int
    env: float
    policy: float
    update: float
    other: float

    @property
    def apart(self) -> float:
        """Seconds without the environments."""
        return self.policy + self.update + self.other


def measure_steps(environment: Environment, cell: Cell, seconds: float) -> StepSpeed:
    """Step environments for some time, one slice per thread."""
    threads = cell.workers if cell.backend == "compiled" else 1
    edges = np.linspace(0, cell.num_envs, threads + 1).astype(int).tolist()
    seeds, indices = member_indices([0], cell.num_envs)
    slices = list[_Slice]()
    with ExitStack() as made:
        for lo, hi in itertools.pairwise(edges):
            env = environment.make_envs(seeds[lo:hi], indices[lo:hi], cell.backend)
            slices.append(_Slice(made.enter_context(env)))
        with ThreadPool(threads) as crew:
            return _run(slices, crew, seconds)


def _run(slices: list[_Slice], crew: ThreadPool, seconds: float) -> StepSpeed:
    tasks = [one.run for one in slices]
    crew.run(tasks)  # compiles and warms up caches
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
    left = usable_cores() - others.took()  # cores available for stepping
    without = max(0.0, min(steppers, usable_cores()) - left) / steppers
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    return StepSpeed(
        rate=steps / wall,
        cores=(_busy(None) - everyone) / wall,
        waiting=float(np.clip(1.0 - busy - without, 0.0, 1.0)),
        memory=sum(map(process_memory, [os.getpid(), *pids])),
    )


class _Slice:
    """Environments with actions, sampled in advance if all are always allowed."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.rows = env, 1
        self._out, self._draw = allocate_buffers(env), np.random.default_rng(0)
        env.reset(self._out.obs, self._out.mask)
        drawn = [self._actions() for _ in range(1 if env.mask_size else 16)]
        self._next = itertools.cycle(drawn)

    def _actions(self) -> Any:
        return random_actions(self.env.spec, self.env.num_envs, self._draw, self._out.mask)

    def run(self) -> None:
        """Step `rows` times."""
        for t in range(self.rows):
            actions = self._actions() if self.env.mask_size else next(self._next)
            self.env.step(actions, self._out, t)
        self.env.drain_final_obs(), self.env.drain_episodes()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of its workers."""
        workers = getattr(self.env, "workers", None)
        return [] if workers is None else [link.pid for link in workers.links]


class Others:
    """Measures the cores that other programs use, from its creation on."""

    def __init__(self) -> None:
        self._began, self._all, self._own = time.perf_counter(), _machine_seconds(), _own_seconds()

    def took(self) -> float:
        """Return the mean number of usable cores taken by other programs."""
        wall = max(time.perf_counter() - self._began, 1e-9)
        busy = _machine_seconds() - self._all - (_own_seconds() - self._own)
        cores = psutil.cpu_count() or 1
        # Load on other cores does not affect this process.
        return float(np.clip(busy / wall - (cores - usable_cores()), 0.0, usable_cores()))


def busy_sentence(others: float) -> str:
    """Return a notice about other programs during a measurement; empty if they used few cores."""
    if others < BUSY:
        return ""
    return (
        f" Other programs used {others:.1f} of {usable_cores()} cores meanwhile, which may have "
        "slowed the measurement. Measure again when they have ended."
    )


def _machine_seconds() -> float:
    """Return the CPU seconds used by all programs of this machine."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def _own_seconds() -> float:
    """Return the CPU seconds of this process and of its ended and running children."""
    ended = os.times()
    return _busy(None) + ended.children_user + ended.children_system


def _busy(pids: list[int] | None) -> float:
    """Return the CPU seconds of some processes; empty: this process; None: this process tree."""
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
    """Train a single member for some iterations; `num_envs` is a number, `members` is 1."""
    starts = getattr(config.agent, "learning_starts", None)
    if starts is not None:  # updates start in the second iteration
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
    """Results of the measurements.

    Attributes:
        config: config of a single member; `num_envs` is a number.
        environment: environment of the config.
        stepped: stepping speed by cell.
        learned: training iteration by num_envs, and threads if the environment is compiled, else 1.
            For a foreign environment it excludes the time of the environments.
        problems: reasons why a cell could not be measured.
        left_out: cells skipped for lack of time.
        seconds: total duration.
        interrupted: stopped by Ctrl-C.
        others: cores used by other programs meanwhile.
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
    config: RunConfig, seconds: float, log: Callable[[str], None] = lambda what: None
) -> Measurements:
    """Measure backends, num_envs, workers and threads for a config's environment.

    Args:
        config: config; its `num_envs` and `members` are ignored, as one member is measured.
        seconds: time budget. Cells beyond it are skipped. Start-up takes a few seconds more.
        log: called with the current step.

    Raises:
        ConfigError: the first steps of the environment take too long.
        SlipstreamError: the environment cannot be created, or fails in its first steps.
    """
    log("creating one environment")
    others, began = Others(), time.monotonic()
    found = _findings(config, seconds, others)
    try:
        log("compiling if needed")
        _compile(found)
        began = time.monotonic()
        tuner = _Tuner(found, seconds, began + seconds)
        for cell in _cells(found):
            log(f"num_envs {cell.num_envs}, {cell.backend}, {cell.workers} in parallel")
            tuner.measure(cell)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds, found.others = time.monotonic() - began, others.took()
    return found


def measure_memory(config: RunConfig) -> Measurements:
    """Measure the memory of a few and of many environments; errors as for `tune`."""
    found = _findings(config, _MEMORY_SECONDS, Others())
    tuner = _Tuner(found, _MEMORY_SECONDS, time.monotonic() + _COMPILING)
    backend, counts = (
        ("compiled", _KERNEL) if found.environment.kind.compiled else ("serial", _FOREIGN)
    )
    for num_envs in (counts[1], counts[-1]):
        tuner.step(Cell(backend, num_envs, 1), _COMPILING)
    return found


def _findings(config: RunConfig, seconds: float, others: Others) -> Measurements:
    """Return empty measurements after the first steps of the environment."""
    agent = config.agent.select([0], config.training.members)
    config = replace(config, agent=agent).with_training(members=1, device="cpu")
    step = _try_out(config, seconds, others)
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = replace(tunable, step_seconds=step)
    config, _ = resolve_num_envs(config, environment)
    return Measurements(config, environment)


def _try_out(config: RunConfig, seconds: float, others: Others) -> float:
    """Create a foreign environment in a child process, as it may hang; return the seconds per
    step.
    """
    if get_kind(config.env_name).compiled:
        return 0.0
    here = config.with_training(backend="serial")  # steps within the child
    limit, began = _LOADING * seconds, time.monotonic()

    def loaded() -> float:
        environment = resolve_environment(config.env_name, config.env_settings)
        tunable = environment.part(Tunable)
        seconds = tunable and tunable.probed(here.training.stepping).step_seconds
        return seconds or 0.0

    step = _in_child(loaded, limit)
    if step is None and time.monotonic() - began < limit:
        raise KernelError(
            f"The process that created {config.env_name} and stepped it ended without an error, "
            "as after `os._exit` or a crash in C. Fix the environment."
        )
    if step is None:
        raise ConfigError(
            f"{config.env_name} could not be created and stepped 34 times within {limit:.0f} s, "
            f"which is {_LOADING:.0%} of the budget. If it is slow but does not hang, increase "
            f"the budget: `slipstream autotune {shlex.quote(config.env_name)} "
            f"--seconds {10 * seconds:.0f}`.{busy_sentence(others.took())}"
        )
    return float(step)


def _compile(found: Measurements) -> None:
    """Compile before the budget starts; errors are raised again later."""
    kernel = found.environment.kind.compiled
    place = (
        found.environment
        if kernel
        else FreeEnvironment(found.environment.kind, found.environment.spec)
    )
    with suppress(SlipstreamError, RuntimeError):
        _in_child(partial(measure_learning, found.config, place, 0.0), _COMPILING)


def _cells(found: Measurements) -> Iterator[Cell]:
    """Iterate over the cells by importance, starting with the config's own num_envs."""
    own, cores = int(found.config.training.num_envs), usable_cores()
    kernel = found.environment.kind.compiled
    counts = _KERNEL if kernel else _FOREIGN
    for num_envs in dict.fromkeys([own, *counts]):
        if kernel:
            threads = dict.fromkeys((1, min(cores, num_envs)))
            yield from (Cell("compiled", num_envs, n) for n in threads)
            continue
        yield Cell("serial", num_envs, 1)
        if "process" not in found.environment.kind.backends or num_envs == 1:
            continue
        usual = Cell("process", num_envs, min(num_envs, max(2, cores)))
        yield usual
        stepped = found.stepped.get(usual)
        crowd = min(num_envs, 4 * cores)
        if stepped is not None and stepped.waiting > _WAITS and crowd > usual.workers:
            yield Cell("process", num_envs, crowd)


class _Tuner:
    """Measures cells until the time is over."""

    def __init__(self, found: Measurements, seconds: float, until: float) -> None:
        self.found, self._until = found, until
        self._each = min(_MOST, max(_LEAST, seconds / _EACH))
        self._patience = min(_MOST_PATIENCE, max(_LEAST_PATIENCE, _PATIENCE * seconds))

    def measure(self, cell: Cell) -> None:
        """Measure stepping, then learning with this num_envs unless it is known."""
        left, expected = self._until - time.monotonic(), self._expected(cell)
        if left < expected:
            self.found.left_out.append(cell)
            return
        if self.step(cell, min(left, self._patience + expected)):
            self._learn(cell, self._environment(cell))

    def step(self, cell: Cell, limit: float) -> bool:
        """Measure stepping within a time limit; return whether it succeeded."""
        found, others = self.found, Others()
        measure = partial(measure_steps, self._environment(cell), cell, self._each)
        try:
            stepped = _in_child(measure, limit)
        except (SlipstreamError, RuntimeError) as error:
            found.problems[cell] = str(error)
            return False
        if stepped is None:
            busy = busy_sentence(others.took())
            found.problems[cell] = f"not completed within {limit:.0f} s.{busy}"
            return False
        found.stepped[cell] = stepped
        return True

    def _environment(self, cell: Cell) -> Environment:
        """Return the environment with a number of workers or threads; faults stop the
        measurement.
        """
        training = self.found.config.with_training(
            backend=cell.backend, on_fault="raise", hang_seconds=0.8 * self._patience
        ).training
        if cell.backend == "process":
            training = training.model_copy(update={"workers": cell.workers})
        return self.found.environment.with_stepping(training.stepping)

    def _expected(self, cell: Cell) -> float:
        """Return the minimum duration in seconds, based on the measurements so far."""
        rates = [s.rate for c, s in self.found.stepped.items() if c.workers <= cell.workers]
        return self._each + (4.0 * cell.num_envs / max(rates) if rates else 0.0)

    def _learn(self, cell: Cell, environment: Environment) -> None:
        kernel = environment.kind.compiled
        key = (cell.num_envs, cell.workers if kernel else 1)
        if key in self.found.learned or not fits(self.found.config.agent, cell.num_envs):
            return
        config = self.found.config.with_training(num_envs=cell.num_envs)
        place: Environment = FreeEnvironment(environment.kind, environment.spec)
        if kernel and (tunable := environment.part(Tunable)):
            measured = AutotuneEntry("", {cell.num_envs: StepConfig(*cell[::2])})
            place = replace(tunable, measured=measured)
        try:
            check_memory(config, place)
            limit = max(self._each, self._until - time.monotonic())
            learned = _in_child(partial(measure_learning, config, place, self._each), limit)
        except (SlipstreamError, RuntimeError):
            return  # does not fit into memory; the table has no training speed
        if learned is not None:
            self.found.learned[key] = learned


def _in_child(measure: Callable[[], Any], limit: float) -> Any:
    """Return the result of a forked process; None if it exceeded the limit or was lost.

    Raises:
        SlipstreamError: the error raised in the process.
    """
    child = ChildProcess(
        lambda pipe: pipe.send(call_safely(measure)), "measurement", "close other programs"
    )
    try:
        answer = child.receive() if child.pipe.poll(limit) else None
    finally:
        child.terminate(0.0)  # runs on an interrupt as well; its workers end with it
    return None if answer is None else unwrap_result(answer)


class FreeVectorEnv(VectorEnv):
    """Environments with constant random observations and endless episodes."""

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
        raise NotImplementedError("evaluation is not supported")

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
    """Cost-free replacement of a foreign environment with the same spaces."""

    def make_envs(self, seeds: NDArray[np.uint64], *how: Any, **more: Any) -> VectorEnv:
        return FreeVectorEnv(self.spec, len(seeds))

    def make_eval_envs(self, split: str, num_envs: int, *how: Any, **more: Any) -> VectorEnv:
        raise NotImplementedError("evaluation is not supported")


class Iteration(NamedTuple):
    """Training speed with a num_envs stepped in its fastest way.

    Attributes:
        cell: fastest way.
        rate: steps per second.
        shares: time shares 0 to 1 of environments, acting, learning and the rest, by the names of
            `LearnSpeed`.
    """

    cell: Cell
    rate: float
    shares: dict[str, float]

    @property
    def most(self) -> float:
        """Maximum speed-up if environments took no time (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.shares["env"], 1e-3)


def fastest(found: Measurements, num_envs: int) -> Cell | None:
    """Return the fastest measured way for a num_envs; serial unless another is clearly faster."""
    rates = {cell: s.rate for cell, s in found.stepped.items() if cell.num_envs == num_envs}
    plain = [cell for cell in rates if cell.workers == 1 and cell.backend != "process"]
    if not rates:
        return None
    best = max(rates, key=lambda cell: rates[cell])
    if plain and rates[best] < _BETTER * rates[plain[0]]:
        return plain[0]
    return best


def iteration(found: Measurements, num_envs: int) -> Iteration | None:
    """Return the training speed with a num_envs; None if it was not measured.

    For a foreign environment it is combined from the times of acting and learning without it and of
    stepping alone. A kernel is measured in training.
    """
    if found.environment.kind.compiled:
        trained = {n: one for (c, n), one in found.learned.items() if c == num_envs}
        if not trained:
            return None
        threads = max(trained, key=lambda n: _rate(trained[n]))
        return _shared(Cell("compiled", num_envs, threads), trained[threads])
    cell, learned = fastest(found, num_envs), found.learned.get((num_envs, 1))
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
    """Return training speeds by num_envs, ascending."""
    made = {n: iteration(found, n) for n in sorted({cell.num_envs for cell in found.stepped})}
    return {n: one for n, one in made.items() if one is not None}


def knee(rates: dict[int, float]) -> int:
    """Return the smallest num_envs at nearly full speed; a budget then has more updates."""
    best = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= GOOD_ENOUGH * best)


def bytes_per_env(found: Measurements, cell: Cell) -> float | None:
    """Return the bytes of an additional environment compared with the smallest num_envs, or
    None.
    """
    alike = [
        (other.num_envs, one.memory)
        for other, one in found.stepped.items()
        if (other.backend, other.workers) == (cell.backend, cell.workers)
    ]
    num_envs, memory = min(alike)
    if num_envs == cell.num_envs:
        return None
    return max(0.0, (found.stepped[cell].memory - memory) / (cell.num_envs - num_envs))


def fitting(found: Measurements) -> tuple[int, float, float] | None:
    """Return (num_envs that fits into free memory, bytes of each, free bytes), with experience."""
    largest = fastest(found, max((cell.num_envs for cell in found.stepped), default=0))
    own = None if largest is None else bytes_per_env(found, largest)
    if largest is None or own is None:
        return None
    agent, n = found.config.agent, largest.num_envs
    kept = [storage_bytes(agent, found.environment, 1, k * n) for k in (1, 2)]
    each = max(own + rollout_each(found, n) + (kept[1] - kept[0]) / n, 1.0)
    free = free_memory()
    return int(_MEMORY_SHARE * free / each), each, float(free)


def rollout_each(found: Measurements, n: int = 1_024) -> float:
    """Return the bytes of an additional environment's share of a rollout and its update."""
    agent, spec = found.config.agent, found.environment.spec
    return (agent.bytes(spec, 1, 2 * n) - agent.bytes(spec, 1, n)) / n


def envs_on_gpu(found: Measurements, memory: float) -> int | None:
    """Return the num_envs whose experience fits into GPU memory: 0.8 memory / bytes per rollout.

    Environments run on the CPU, where a replay buffer is also stored. None if nothing of an
    environment stays on the GPU for longer than a step.
    """
    if found.config.agent.replay(1) is not None:
        return None
    networks = found.config.agent.bytes(found.environment.spec, 1, 1)
    return int(_MEMORY_SHARE * (memory - networks) / max(rollout_each(found), 1.0))


def measured(found: Measurements) -> AutotuneEntry:
    """Return the cache entry: the fastest way for each num_envs."""
    ways = {}
    for num_envs in sorted({cell.num_envs for cell in found.stepped}):
        one = iteration(found, num_envs)
        cell = one.cell if one is not None else fastest(found, num_envs)
        if cell is not None:
            ways[num_envs] = StepConfig(cell.backend, cell.workers)
    return AutotuneEntry(time.strftime("%Y-%m-%d"), ways)


def sentences(found: Measurements) -> list[str]:
    """Return the recommendations as sentences."""
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
    cell, plain = own.cell, found.stepped.get(Cell("serial", own.cell.num_envs, 1))
    beside = ""
    if cell.backend == "process" and plain is not None:
        beside = f", {found.stepped[cell].rate / plain.rate:.1f}x `serial`"
    return (
        f"{_format_num_envs(cell.num_envs)} (num_envs of the config) step fastest with "
        f"{_way(cell)}: {found.stepped[cell].rate:,.0f} steps/s{beside}. Training runs at about "
        f"{own.rate:,.0f} steps/s."
    )


def _ceiling(own: Iteration) -> str:
    rest = {name: share for name, share in own.shares.items() if name != "env"}
    largest = max(rest, key=lambda name: rest[name])
    shown = ", ".join(f"{_LABELS[name]} {share:.0%}" for name, share in own.shares.items())
    return (
        f"Shares of the training time: {shown}. More or faster environments cannot give more than "
        f"{own.most:.1f}x; {_LABELS[largest]} takes {rest[largest]:.0%}."
    )


def _knee(trained: dict[int, Iteration]) -> str:
    rates = {n: one.rate for n, one in trained.items()}
    at, best = knee(rates), max(rates, key=lambda n: rates[n])
    return (
        f"Smallest num_envs at {GOOD_ENOUGH:.0%} of the best training speed: {at:,} "
        f"({rates[at]:,.0f} of {rates[best]:,.0f} steps/s, with {best:,})."
    )


def _waiting(found: Measurements, own: Iteration | None) -> list[str]:
    """Return a notice about long waiting."""
    stepped: StepSpeed | None = None if own is None else found.stepped.get(own.cell)
    if own is None or stepped is None or stepped.waiting < _IDLE:
        return []
    if own.cell.backend == "compiled":
        return []  # with few environments threads wait for each other
    if own.cell.backend == "process":
        return [
            f"Workers are idle {stepped.waiting:.0%} of the time: the environment sleeps, or steps "
            "are too short for processes."
        ]
    return [
        f"The stepping process is idle {stepped.waiting:.0%} of the time: the environment sleeps "
        "(a simulator, a network). More workers than cores would overlap this time."
    ]


def fit_sentence(found: Measurements) -> str:
    """Return a sentence with the num_envs that fits into memory; empty if not measured."""
    fit = fitting(found)
    if fit is None:
        return ""
    num_envs, each, free = fit
    return (
        f"About {float(f'{num_envs:.2g}'):,.0f} environments fit into the {free / 2**30:.1f} GiB "
        f"of free memory ({each / 2**10:,.0f} KiB each, including their share of the experience)."
    )


def _format_num_envs(n: int) -> str:
    return "1 environment" if n == 1 else f"{n:,} environments"


def _way(cell: Cell) -> str:
    if cell.backend == "serial":
        return "`serial`"
    noun = "workers" if cell.backend == "process" else "threads"
    return f"`{cell.backend}`, {cell.workers} {noun if cell.workers > 1 else noun[:-1]}"
