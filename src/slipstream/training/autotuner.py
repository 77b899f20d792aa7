"""Autotune: measure how an environment is stepped fastest on this machine.

Each case (backend, num_envs, workers) is measured in its own child process, within a time budget.
The result contains the fastest case for each num_envs, the smallest num_envs at nearly full speed,
the limit by Amdahl's law, and the num_envs that fits into memory.
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

_RUN_SHARE = 0.1  # share of the measuring time between two joins of the threads
_MAX_ROWS = 64
BUSY_CORES = 0.25  # cores used by other programs from which a notice is added
_MIN_ITERATIONS = 2  # iterations after the first one, which compiles
_FOREIGN_NUM_ENVS = (1, 2, 4, 8, 16, 32, 64)
_KERNEL_NUM_ENVS = (1, 8, 64, 256, 1024, 4096)
_MEASUREMENTS_PER_BUDGET = 60  # one measurement takes 1/60 of the budget, without start-up
_MIN_SECONDS, _MAX_SECONDS = 0.1, 3.0  # bounds in seconds
# Timeout of start-up and first steps: a share of the budget within bounds in seconds.
_TIMEOUT_SHARE, _MIN_TIMEOUT, _MAX_TIMEOUT = 1 / 6, 3.0, 10.0
_COMPILE_TIMEOUT = 300.0  # seconds
_MEMORY_SECONDS = 30.0  # budget of `measure_memory`
_PROBE_SHARE = 0.4  # share of the budget for the first steps of a foreign environment
_OVERSUBSCRIPTION_WAITING = 0.2  # waiting share from which more workers than cores are measured
SATURATION_SHARE = 0.9  # share of the best speed that the recommended num_envs must reach
_MIN_SPEEDUP = 1.05  # speed-up required to prefer worker processes or threads
_NOTICE_WAITING = 0.5  # waiting share from which a notice is added
_MEMORY_SHARE = 0.8  # usable share of the free memory
_LABELS = {"env": "environments", "policy": "acting", "update": "the update", "other": "all else"}


class BenchmarkCase(NamedTuple):
    """A backend, a number of sub-environments and a number of workers, measured together.

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
            they slept in the environment or waited for each other. Time in which other programs
            used their cores is excluded.
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
    def seconds_without_envs(self) -> float:
        """Seconds without the environments."""
        return self.policy + self.update + self.other


def measure_steps(environment: Environment, case: BenchmarkCase, seconds: float) -> StepSpeed:
    """Step environments for some time, one slice per thread."""
    threads = case.workers if case.backend == "compiled" else 1
    edges = np.linspace(0, case.num_envs, threads + 1).astype(int).tolist()
    seeds, indices = member_indices([0], case.num_envs)
    slices = list[_Slice]()
    with ExitStack() as stack:
        for lo, hi in itertools.pairwise(edges):
            env = environment.make_envs(seeds[lo:hi], indices[lo:hi], case.backend)
            slices.append(_Slice(stack.enter_context(env)))
        with ThreadPool(threads) as pool:
            return _run(slices, pool, seconds)


def _run(slices: list[_Slice], pool: ThreadPool, seconds: float) -> StepSpeed:
    tasks = [env_slice.run for env_slice in slices]
    pool.run(tasks)  # compiles and warms up caches
    began = time.perf_counter()
    pool.run(tasks)
    slice_seconds = time.perf_counter() - began
    for env_slice in slices:
        env_slice.rows = int(np.clip(_RUN_SHARE * seconds / max(slice_seconds, 1e-9), 1, _MAX_ROWS))
    workers = [pid for env_slice in slices for pid in env_slice.pids]
    stepping, everyone, steps = _cpu_seconds(workers), _cpu_seconds(None), 0
    other_load = OtherLoad()
    began = time.perf_counter()
    while not steps or time.perf_counter() - began < seconds:
        pool.run(tasks)
        steps += sum(env_slice.rows * env_slice.env.num_envs for env_slice in slices)
    wall = time.perf_counter() - began
    steppers = len(workers) or len(slices)
    busy = (_cpu_seconds(workers) - stepping) / (wall * steppers)
    left = usable_cores() - other_load.cores()  # cores available for stepping
    without = max(0.0, min(steppers, usable_cores()) - left) / steppers
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    return StepSpeed(
        rate=steps / wall,
        cores=(_cpu_seconds(None) - everyone) / wall,
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


class OtherLoad:
    """Measures the cores that other programs use, from its creation on."""

    def __init__(self) -> None:
        self._began, self._all, self._own = (
            time.perf_counter(),
            _machine_cpu_seconds(),
            _own_cpu_seconds(),
        )

    def cores(self) -> float:
        """Return the mean number of usable cores taken by other programs."""
        wall = max(time.perf_counter() - self._began, 1e-9)
        busy = _machine_cpu_seconds() - self._all - (_own_cpu_seconds() - self._own)
        cores = psutil.cpu_count() or 1
        # Load on other cores does not affect this process.
        return float(np.clip(busy / wall - (cores - usable_cores()), 0.0, usable_cores()))


def other_load_notice(other_cores: float) -> str:
    """Return a notice about other programs during a measurement; empty if they used few cores."""
    if other_cores < BUSY_CORES:
        return ""
    return (
        f" Other programs used {other_cores:.1f} of {usable_cores()} cores meanwhile, which may "
        "have slowed the measurement. Measure again when they have ended."
    )


def _machine_cpu_seconds() -> float:
    """Return the CPU seconds used by all programs of this machine."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def _own_cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended and running children."""
    ended = os.times()
    return _cpu_seconds(None) + ended.children_user + ended.children_system


def _cpu_seconds(pids: list[int] | None) -> float:
    """Return the CPU seconds of some processes; empty: this process; None: this process tree."""
    if pids is None:
        children = psutil.Process().children(recursive=True)
        return time.process_time() + sum(_process_cpu_seconds(child) for child in children)
    return (
        sum(_process_cpu_seconds(psutil.Process(pid)) for pid in pids)
        if pids
        else time.process_time()
    )


def _process_cpu_seconds(process: psutil.Process) -> float:
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
        while len(walls) < _MIN_ITERATIONS or sum(walls) < seconds:
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
        step_speeds: stepping speed by case.
        learn_speeds: training iteration by num_envs and threads; 1 thread if the environment is not
            compiled. For a foreign environment it excludes the time of the environments.
        problems: reasons why a case could not be measured.
        skipped: cases skipped for lack of time.
        seconds: total duration.
        interrupted: stopped by Ctrl-C.
        other_cores: cores used by other programs meanwhile.
    """

    config: RunConfig
    environment: Environment
    step_speeds: dict[BenchmarkCase, StepSpeed] = field(default_factory=dict)
    learn_speeds: dict[tuple[int, int], LearnSpeed] = field(default_factory=dict)
    problems: dict[BenchmarkCase, str] = field(default_factory=dict)
    skipped: list[BenchmarkCase] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    other_cores: float = 0.0


def tune(
    config: RunConfig, seconds: float, log: Callable[[str], None] = lambda what: None
) -> Measurements:
    """Measure backends, num_envs, workers and threads for a config's environment.

    Args:
        config: config; its `num_envs` and `members` are ignored, as one member is measured.
        seconds: time budget. Cases beyond it are skipped. Start-up takes a few seconds more.
        log: called with the current step of the benchmark.

    Raises:
        ConfigError: the first steps of the environment take too long.
        SlipstreamError: the environment cannot be created, or fails in its first steps.
    """
    log("creating one environment")
    other_load, began = OtherLoad(), time.monotonic()
    measurements = _prepare(config, seconds, other_load)
    try:
        log("compiling if needed")
        _compile(measurements)
        began = time.monotonic()
        benchmark = _Benchmark(measurements, seconds, began + seconds)
        for case in _cases(measurements):
            log(f"num_envs {case.num_envs}, {case.backend}, {case.workers} in parallel")
            benchmark.measure(case)
    except KeyboardInterrupt:
        measurements.interrupted = True
    measurements.seconds, measurements.other_cores = time.monotonic() - began, other_load.cores()
    return measurements


def measure_memory(config: RunConfig) -> Measurements:
    """Measure the memory of a few and of many environments; errors as for `tune`."""
    measurements = _prepare(config, _MEMORY_SECONDS, OtherLoad())
    benchmark = _Benchmark(measurements, _MEMORY_SECONDS, time.monotonic() + _COMPILE_TIMEOUT)
    backend, counts = (
        ("compiled", _KERNEL_NUM_ENVS)
        if measurements.environment.kind.compiled
        else ("serial", _FOREIGN_NUM_ENVS)
    )
    for num_envs in (counts[1], counts[-1]):
        benchmark.step(BenchmarkCase(backend, num_envs, 1), _COMPILE_TIMEOUT)
    return measurements


def _prepare(config: RunConfig, seconds: float, other_load: OtherLoad) -> Measurements:
    """Return empty measurements after the first steps of the environment."""
    agent = config.agent.select([0], config.training.members)
    config = replace(config, agent=agent).with_training(members=1, device="cpu")
    step = _probe_step_time(config, seconds, other_load)
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = replace(tunable, step_seconds=step)
    config, _ = resolve_num_envs(config, environment)
    return Measurements(config, environment)


def _probe_step_time(config: RunConfig, seconds: float, other_load: OtherLoad) -> float:
    """Create a foreign environment in a child process, as it may hang; return the seconds per
    step.
    """
    if get_kind(config.env_name).compiled:
        return 0.0
    serial_config = config.with_training(backend="serial")  # steps within the child
    limit, began = _PROBE_SHARE * seconds, time.monotonic()

    def loaded() -> float:
        environment = resolve_environment(config.env_name, config.env_settings)
        tunable = environment.part(Tunable)
        seconds = tunable and tunable.probed(serial_config.training.stepping).step_seconds
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
            f"which is {_PROBE_SHARE:.0%} of the budget. If it is slow but does not hang, increase "
            f"the budget: `slipstream autotune {shlex.quote(config.env_name)} "
            f"--seconds {10 * seconds:.0f}`.{other_load_notice(other_load.cores())}"
        )
    return float(step)


def _compile(measurements: Measurements) -> None:
    """Compile before the budget starts; errors are raised again later."""
    kernel = measurements.environment.kind.compiled
    env = (
        measurements.environment
        if kernel
        else NoOpEnvironment(measurements.environment.kind, measurements.environment.spec)
    )
    with suppress(SlipstreamError, RuntimeError):
        _in_child(partial(measure_learning, measurements.config, env, 0.0), _COMPILE_TIMEOUT)


def _cases(measurements: Measurements) -> Iterator[BenchmarkCase]:
    """Iterate over the cases by importance, starting with the config's own num_envs."""
    configured, cores = int(measurements.config.training.num_envs), usable_cores()
    kernel = measurements.environment.kind.compiled
    counts = _KERNEL_NUM_ENVS if kernel else _FOREIGN_NUM_ENVS
    for num_envs in dict.fromkeys([configured, *counts]):
        if kernel:
            threads = dict.fromkeys((1, min(cores, num_envs)))
            yield from (BenchmarkCase("compiled", num_envs, n) for n in threads)
            continue
        yield BenchmarkCase("serial", num_envs, 1)
        if "process" not in measurements.environment.kind.backends or num_envs == 1:
            continue
        usual = BenchmarkCase("process", num_envs, min(num_envs, max(2, cores)))
        yield usual
        stepped = measurements.step_speeds.get(usual)
        crowd = min(num_envs, 4 * cores)
        if (
            stepped is not None
            and stepped.waiting > _OVERSUBSCRIPTION_WAITING
            and crowd > usual.workers
        ):
            yield BenchmarkCase("process", num_envs, crowd)


class _Benchmark:
    """Measures cases until the time is over."""

    def __init__(self, measurements: Measurements, seconds: float, until: float) -> None:
        self.measurements, self._until = measurements, until
        self._case_seconds = min(
            _MAX_SECONDS, max(_MIN_SECONDS, seconds / _MEASUREMENTS_PER_BUDGET)
        )
        self._timeout = min(_MAX_TIMEOUT, max(_MIN_TIMEOUT, _TIMEOUT_SHARE * seconds))

    def measure(self, case: BenchmarkCase) -> None:
        """Measure stepping, then learning with this num_envs unless it is known."""
        left, expected = self._until - time.monotonic(), self._expected(case)
        if left < expected:
            self.measurements.skipped.append(case)
            return
        if self.step(case, min(left, self._timeout + expected)):
            self._learn(case, self._environment(case))

    def step(self, case: BenchmarkCase, limit: float) -> bool:
        """Measure stepping within a time limit; return whether it succeeded."""
        measurements, other_load = self.measurements, OtherLoad()
        measure = partial(measure_steps, self._environment(case), case, self._case_seconds)
        try:
            stepped = _in_child(measure, limit)
        except (SlipstreamError, RuntimeError) as error:
            measurements.problems[case] = str(error)
            return False
        if stepped is None:
            busy = other_load_notice(other_load.cores())
            measurements.problems[case] = f"not completed within {limit:.0f} s.{busy}"
            return False
        measurements.step_speeds[case] = stepped
        return True

    def _environment(self, case: BenchmarkCase) -> Environment:
        """Return the environment with a number of workers or threads; faults stop the
        measurement.
        """
        training = self.measurements.config.with_training(
            backend=case.backend, on_fault="raise", hang_seconds=0.8 * self._timeout
        ).training
        if case.backend == "process":
            training = training.model_copy(update={"workers": case.workers})
        return self.measurements.environment.with_stepping(training.stepping)

    def _expected(self, case: BenchmarkCase) -> float:
        """Return the minimum duration in seconds, based on the measurements so far."""
        rates = [
            s.rate for c, s in self.measurements.step_speeds.items() if c.workers <= case.workers
        ]
        return self._case_seconds + (4.0 * case.num_envs / max(rates) if rates else 0.0)

    def _learn(self, case: BenchmarkCase, environment: Environment) -> None:
        kernel = environment.kind.compiled
        key = (case.num_envs, case.workers if kernel else 1)
        if key in self.measurements.learn_speeds or not fits(
            self.measurements.config.agent, case.num_envs
        ):
            return
        config = self.measurements.config.with_training(num_envs=case.num_envs)
        env: Environment = NoOpEnvironment(environment.kind, environment.spec)
        if kernel and (tunable := environment.part(Tunable)):
            measured = AutotuneEntry("", {case.num_envs: StepConfig(*case[::2])})
            env = replace(tunable, measured=measured)
        try:
            check_memory(config, env)
            limit = max(self._case_seconds, self._until - time.monotonic())
            learned = _in_child(partial(measure_learning, config, env, self._case_seconds), limit)
        except (SlipstreamError, RuntimeError):
            return  # does not fit into memory; the table has no training speed
        if learned is not None:
            self.measurements.learn_speeds[key] = learned


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


class NoOpVectorEnv(VectorEnv):
    """Environments with constant random observations and endless episodes."""

    backend = "serial"

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        rng, shape = np.random.default_rng(0), (num_envs, *spec.observation_shape)
        image = spec.observation_dtype == np.uint8
        obs = rng.integers(0, 256, shape) if image else rng.standard_normal(shape)
        self._rows = obs.astype(spec.observation_dtype)
        self._reward = rng.standard_normal(num_envs).astype(np.float32)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        obs[...] = self._rows

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        out.obs[...], out.reward[...] = self._rows, self._reward
        out.terminated[...] = out.truncated[...] = False
        out.valid[...] = True

    def drain_final_obs(self) -> FinalObs:
        obs = np.zeros((0, *self.spec.observation_shape), self.spec.observation_dtype)
        return FinalObs(obs, np.zeros((0, 2), np.int64))

    def drain_episodes(self) -> Episodes:
        empty = np.zeros(0, np.int64)
        metrics = {metric.name: np.zeros(0) for metric in self.spec.metrics}
        return Episodes(empty, empty, np.zeros(0), empty, metrics)

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
class NoOpEnvironment(Environment):
    """Cost-free replacement of a foreign environment with the same spaces."""

    def make_envs(self, seeds: NDArray[np.uint64], *how: Any, **more: Any) -> VectorEnv:
        return NoOpVectorEnv(self.spec, len(seeds))

    def make_eval_envs(self, split: str, num_envs: int, *how: Any, **more: Any) -> VectorEnv:
        raise NotImplementedError("evaluation is not supported")


class Iteration(NamedTuple):
    """Training speed with a num_envs in its fastest case.

    Attributes:
        case: the fastest case.
        rate: steps per second.
        shares: time shares 0 to 1 of environments, acting, learning and the rest, by the names of
            `LearnSpeed`.
    """

    case: BenchmarkCase
    rate: float
    shares: dict[str, float]

    @property
    def max_speedup(self) -> float:
        """Maximum speed-up if environments took no time (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.shares["env"], 1e-3)


def fastest_case(measurements: Measurements, num_envs: int) -> BenchmarkCase | None:
    """Return the fastest case of a num_envs; serial if no other case is clearly faster."""
    rates = {
        case: s.rate for case, s in measurements.step_speeds.items() if case.num_envs == num_envs
    }
    plain = [case for case in rates if case.workers == 1 and case.backend != "process"]
    if not rates:
        return None
    best = max(rates, key=lambda case: rates[case])
    if plain and rates[best] < _MIN_SPEEDUP * rates[plain[0]]:
        return plain[0]
    return best


def iteration(measurements: Measurements, num_envs: int) -> Iteration | None:
    """Return the training speed with a num_envs; None if it was not measured.

    For a foreign environment it is combined from the times of acting and learning without it and of
    stepping alone. A kernel is measured in training.
    """
    if measurements.environment.kind.compiled:
        trained = {n: speed for (c, n), speed in measurements.learn_speeds.items() if c == num_envs}
        if not trained:
            return None
        threads = max(trained, key=lambda n: _rate(trained[n]))
        return _to_iteration(BenchmarkCase("compiled", num_envs, threads), trained[threads])
    case, learned = (
        fastest_case(measurements, num_envs),
        measurements.learn_speeds.get((num_envs, 1)),
    )
    if case is None or learned is None:
        return None
    seconds = learned.steps / measurements.step_speeds[case].rate
    return _to_iteration(case, learned._replace(env=seconds))


def _rate(learned: LearnSpeed) -> float:
    return learned.steps / (learned.env + learned.seconds_without_envs)


def _to_iteration(case: BenchmarkCase, learned: LearnSpeed) -> Iteration:
    whole = learned.env + learned.seconds_without_envs
    shares = {name: getattr(learned, name) / whole for name in _LABELS}
    return Iteration(case, learned.steps / whole, shares)


def iterations(measurements: Measurements) -> dict[int, Iteration]:
    """Return training speeds by num_envs, ascending."""
    speeds = {
        n: iteration(measurements, n)
        for n in sorted({case.num_envs for case in measurements.step_speeds})
    }
    return {n: speed for n, speed in speeds.items() if speed is not None}


def saturation_point(rates: dict[int, float]) -> int:
    """Return the smallest num_envs at nearly full speed; a budget then has more updates."""
    best = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= SATURATION_SHARE * best)


def bytes_per_env(measurements: Measurements, case: BenchmarkCase) -> float | None:
    """Return the bytes of an additional environment compared with the smallest num_envs, or
    None.
    """
    measured = [
        (other.num_envs, speed.memory)
        for other, speed in measurements.step_speeds.items()
        if (other.backend, other.workers) == (case.backend, case.workers)
    ]
    num_envs, memory = min(measured)
    if num_envs == case.num_envs:
        return None
    return max(0.0, (measurements.step_speeds[case].memory - memory) / (case.num_envs - num_envs))


def fit_to_memory(measurements: Measurements) -> tuple[int, float, float] | None:
    """Return (num_envs that fits into free memory, bytes of each, free bytes), with experience."""
    largest = fastest_case(
        measurements, max((case.num_envs for case in measurements.step_speeds), default=0)
    )
    env_bytes = None if largest is None else bytes_per_env(measurements, largest)
    if largest is None or env_bytes is None:
        return None
    agent, n = measurements.config.agent, largest.num_envs
    replay_bytes = [storage_bytes(agent, measurements.environment, 1, k * n) for k in (1, 2)]
    env_total = max(
        env_bytes
        + rollout_bytes_per_env(measurements, n)
        + (replay_bytes[1] - replay_bytes[0]) / n,
        1.0,
    )
    free = free_memory()
    return int(_MEMORY_SHARE * free / env_total), env_total, float(free)


def rollout_bytes_per_env(measurements: Measurements, n: int = 1_024) -> float:
    """Return the bytes of an additional environment's share of a rollout and its update."""
    agent, spec = measurements.config.agent, measurements.environment.spec
    return (agent.bytes(spec, 1, 2 * n) - agent.bytes(spec, 1, n)) / n


def envs_on_gpu(measurements: Measurements, memory: float) -> int | None:
    """Return the num_envs whose experience fits into GPU memory: 0.8 memory / bytes per rollout.

    Environments run on the CPU, where a replay buffer is also stored. None if nothing of an
    environment stays on the GPU for longer than a step.
    """
    if measurements.config.agent.replay(1) is not None:
        return None
    networks = measurements.config.agent.bytes(measurements.environment.spec, 1, 1)
    return int(_MEMORY_SHARE * (memory - networks) / max(rollout_bytes_per_env(measurements), 1.0))


def to_cache_entry(measurements: Measurements) -> AutotuneEntry:
    """Return the cache entry: the fastest step config for each num_envs."""
    step_configs = {}
    for num_envs in sorted({case.num_envs for case in measurements.step_speeds}):
        speed = iteration(measurements, num_envs)
        case = speed.case if speed is not None else fastest_case(measurements, num_envs)
        if case is not None:
            step_configs[num_envs] = StepConfig(case.backend, case.workers)
    return AutotuneEntry(time.strftime("%Y-%m-%d"), step_configs)


def recommendations(measurements: Measurements) -> list[str]:
    """Return the recommendations as sentences."""
    trained = iterations(measurements)
    sentences = []
    current = trained.get(int(measurements.config.training.num_envs))
    if current is not None:
        sentences += [_speed_sentence(measurements, current), _amdahl_sentence(current)]
    if len(trained) > 1:
        sentences.append(_saturation_sentence(trained))
    waits = _waiting_notice(measurements, current)
    busy = other_load_notice(measurements.other_cores).strip()
    return [
        *([busy] if busy else []),
        *sentences,
        *waits,
        *filter(None, [memory_notice(measurements)]),
    ]


def _speed_sentence(measurements: Measurements, iteration: Iteration) -> str:
    case, plain = (
        iteration.case,
        measurements.step_speeds.get(BenchmarkCase("serial", iteration.case.num_envs, 1)),
    )
    speedup = ""
    if case.backend == "process" and plain is not None:
        speedup = f", {measurements.step_speeds[case].rate / plain.rate:.1f}x `serial`"
    rate = measurements.step_speeds[case].rate
    return (
        f"{_format_num_envs(case.num_envs)} (num_envs of the config) step fastest with "
        f"{_format_case(case)}: {rate:,.0f} steps/s{speedup}. Training runs at about "
        f"{iteration.rate:,.0f} steps/s."
    )


def _amdahl_sentence(iteration: Iteration) -> str:
    rest = {name: share for name, share in iteration.shares.items() if name != "env"}
    largest = max(rest, key=lambda name: rest[name])
    listed = ", ".join(f"{_LABELS[name]} {share:.0%}" for name, share in iteration.shares.items())
    return (
        f"Shares of the training time: {listed}. More or faster environments cannot give more than "
        f"{iteration.max_speedup:.1f}x; {_LABELS[largest]} takes {rest[largest]:.0%}."
    )


def _saturation_sentence(trained: dict[int, Iteration]) -> str:
    rates = {n: iteration.rate for n, iteration in trained.items()}
    at, best = saturation_point(rates), max(rates, key=lambda n: rates[n])
    return (
        f"Smallest num_envs at {SATURATION_SHARE:.0%} of the best training speed: {at:,} "
        f"({rates[at]:,.0f} of {rates[best]:,.0f} steps/s, with {best:,})."
    )


def _waiting_notice(measurements: Measurements, iteration: Iteration | None) -> list[str]:
    """Return a notice about long waiting."""
    stepped: StepSpeed | None = (
        None if iteration is None else measurements.step_speeds.get(iteration.case)
    )
    if iteration is None or stepped is None or stepped.waiting < _NOTICE_WAITING:
        return []
    if iteration.case.backend == "compiled":
        return []  # with few environments threads wait for each other
    if iteration.case.backend == "process":
        return [
            f"Workers are idle {stepped.waiting:.0%} of the time: the environment sleeps, or steps "
            "are too short for processes."
        ]
    return [
        f"The stepping process is idle {stepped.waiting:.0%} of the time: the environment sleeps "
        "(a simulator, a network). More workers than cores would overlap this time."
    ]


def memory_notice(measurements: Measurements) -> str:
    """Return a sentence with the num_envs that fits into memory; empty if not measured."""
    fit = fit_to_memory(measurements)
    if fit is None:
        return ""
    num_envs, env_total, free = fit
    return (
        f"About {float(f'{num_envs:.2g}'):,.0f} environments fit into the {free / 2**30:.1f} GiB "
        f"of free memory ({env_total / 2**10:,.0f} KiB each, including their share of the "
        "experience)."
    )


def _format_num_envs(n: int) -> str:
    return "1 environment" if n == 1 else f"{n:,} environments"


def _format_case(case: BenchmarkCase) -> str:
    if case.backend == "serial":
        return "`serial`"
    noun = "workers" if case.backend == "process" else "threads"
    return f"`{case.backend}`, {case.workers} {noun if case.workers > 1 else noun[:-1]}"
