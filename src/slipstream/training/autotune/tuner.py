"""Measures one way of stepping after the other, each in a child of its own, within a budget."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import Episodes, Finals, StepOut, VectorEnv
from slipstream.training.autotune import cells
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import kind_of, resolve_environment
from slipstream.training.environments.machine_file import FastestWays, Tunable, Way
from slipstream.training.processes.child import Child, portable
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_memory, fits, resolve_num_envs

_FOREIGN = (1, 2, 4, 8, 16, 32, 64)
_KERNEL = (1, 8, 64, 256, 1024, 4096)
_EACH = 60  # part of the budget that one measurement takes, without what it takes to start
_LEAST, _MOST = 0.1, 3.0  # seconds of it
# Seconds of starting and stepping a little, after which a measurement is ended: a part of the
# budget within bounds.
_PATIENCE, _LEAST_PATIENCE, _MOST_PATIENCE = 1 / 6, 3.0, 10.0
_COMPILING = 300.0  # seconds
_LOADING = 0.4  # share of the budget in which a foreign environment must have been tried out
_WAITS = 0.2  # share of waiting from which more workers than cores are tried


@dataclass
class Findings:
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
    stepped: dict[cells.Cell, cells.StepSpeed] = field(default_factory=dict)
    learned: dict[tuple[int, int], cells.LearnSpeed] = field(default_factory=dict)
    problems: dict[cells.Cell, str] = field(default_factory=dict)
    left_out: list[cells.Cell] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False
    others: float = 0.0


def tune(
    config: RunConfig, seconds: float, say: Callable[[str], None] = lambda what: None
) -> Findings:
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
    others, began = cells.Others(), time.monotonic()
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


def measure_memory(config: RunConfig, seconds: float = 30.0) -> Findings:
    """Steps few copies and many, for what each takes; arguments and errors as for `tune`."""
    found = _findings(config, seconds, cells.Others())
    tuner = _Tuner(found, seconds, time.monotonic() + _COMPILING)
    backend, counts = (
        ("compiled", _KERNEL) if found.environment.kind.compiled else ("serial", _FOREIGN)
    )
    for copies in (counts[1], counts[-1]):
        tuner.step(cells.Cell(backend, copies, 1), _COMPILING)
    return found


def _findings(config: RunConfig, seconds: float, others: cells.Others) -> Findings:
    """None yet, of an environment that was tried out."""
    agent = config.agent.select([0], config.training.members)
    config = replace(config, agent=agent).with_training(members=1, device="cpu")
    step = _try_out(config, seconds, others)
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = replace(tunable, step_seconds=step)
    config, _ = resolve_num_envs(config, environment)
    return Findings(config, environment)


def _try_out(config: RunConfig, seconds: float, others: cells.Others) -> float:
    """Makes a foreign environment where it can be ended, for some take for ever; seconds a step."""
    if kind_of(config.env_name).compiled:
        return 0.0
    here = config.with_training(backend="serial")  # in the child
    limit, began = _LOADING * seconds, time.monotonic()

    def loaded() -> float:
        environment = resolve_environment(config.env_name, config.env_settings)
        tunable = environment.part(Tunable)
        seconds = tunable and tunable.tried(here.training.stepping).step_seconds
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
            f"--seconds {10 * seconds:.0f}`.{cells.busy_sentence(others.took())}"
        )
    return float(step)


def _compile(found: Findings) -> None:
    """What is compiled once is no part of the budget; what fails here fails again and says so."""
    kernel = found.environment.kind.compiled
    place = (
        found.environment
        if kernel
        else FreeEnvironment(found.environment.kind, found.environment.spec)
    )
    with suppress(SlipstreamError, RuntimeError):
        _in_child(partial(cells.measure_learning, found.config, place, 0.0), _COMPILING)


def _cells(found: Findings) -> Iterator[cells.Cell]:
    """In the order of what is most worth knowing: the config's own number of copies first."""
    own, cores = int(found.config.training.num_envs), usable_cores()
    kernel = found.environment.kind.compiled
    counts = _KERNEL if kernel else _FOREIGN
    for copies in dict.fromkeys([own, *counts]):
        if kernel:
            threads = dict.fromkeys((1, min(cores, copies)))
            yield from (cells.Cell("compiled", copies, n) for n in threads)
            continue
        yield cells.Cell("serial", copies, 1)
        if "process" not in found.environment.kind.backends or copies == 1:
            continue
        usual = cells.Cell("process", copies, min(copies, max(2, cores)))
        yield usual
        stepped = found.stepped.get(usual)
        crowd = min(copies, 4 * cores)
        if stepped is not None and stepped.waiting > _WAITS and crowd > usual.workers:
            yield cells.Cell("process", copies, crowd)


class _Tuner:
    """Measures cells until the time is over."""

    def __init__(self, found: Findings, seconds: float, until: float) -> None:
        self.found, self._until = found, until
        self._each = min(_MOST, max(_LEAST, seconds / _EACH))
        self._patience = min(_MOST_PATIENCE, max(_LEAST_PATIENCE, _PATIENCE * seconds))

    def measure(self, cell: cells.Cell) -> None:
        """Stepping, then learning from so many copies, unless that is known."""
        left, expected = self._until - time.monotonic(), self._expected(cell)
        if left < expected:
            self.found.left_out.append(cell)
            return
        if self.step(cell, min(left, self._patience + expected)):
            self._learn(cell, self._environment(cell))

    def step(self, cell: cells.Cell, limit: float) -> bool:
        """Stepping alone, within so many seconds; whether that was measured."""
        found, others = self.found, cells.Others()
        measure = partial(cells.measure_steps, self._environment(cell), cell, self._each)
        try:
            stepped = _in_child(measure, limit)
        except (SlipstreamError, RuntimeError) as error:
            found.problems[cell] = str(error)
            return False
        if stepped is None:
            busy = cells.busy_sentence(others.took())
            found.problems[cell] = f"not done within {limit:.0f} s.{busy}"
            return False
        found.stepped[cell] = stepped
        return True

    def _environment(self, cell: cells.Cell) -> Environment:
        """Stepped by so many workers or threads; what fails there ends the measurement."""
        training = self.found.config.with_training(
            backend=cell.backend, on_fault="raise", hang_seconds=0.8 * self._patience
        ).training
        if cell.backend == "process":
            training = training.model_copy(update={"workers": cell.workers})
        return self.found.environment.prepared(training.stepping)

    def _expected(self, cell: cells.Cell) -> float:
        """Seconds that it takes at least, from what one copy was found to take."""
        rates = [s.rate for c, s in self.found.stepped.items() if c.workers <= cell.workers]
        return self._each + (4.0 * cell.copies / max(rates) if rates else 0.0)

    def _learn(self, cell: cells.Cell, environment: Environment) -> None:
        kernel = environment.kind.compiled
        key = (cell.copies, cell.workers if kernel else 1)
        if key in self.found.learned or not fits(self.found.config.agent, cell.copies):
            return
        config = self.found.config.with_training(num_envs=cell.copies)
        place: Environment = FreeEnvironment(environment.kind, environment.spec)
        if kernel and (tunable := environment.part(Tunable)):
            measured = FastestWays("", {cell.copies: Way(*cell[::2])})
            place = replace(tunable, measured=measured)
        try:
            check_memory(config, place)
            limit = max(self._each, self._until - time.monotonic())
            learned = _in_child(partial(cells.measure_learning, config, place, self._each), limit)
        except (SlipstreamError, RuntimeError):
            return  # it does not fit: the table has no figure for training
        if learned is not None:
            self.found.learned[key] = learned


def _in_child(measure: Callable[[], Any], limit: float) -> Any:
    """What it returns, from a forked process; None where that took too long or was lost.

    Raises:
        SlipstreamError: what was raised there.
    """
    child = Child(partial(_serve, measure), "measurement", "close other programs")
    try:
        answer = child.receive() if child.pipe.poll(limit) else None
    finally:
        child.end(0.0)  # also when interrupted; its own workers end with it
    if answer is None:
        return None
    worked, value = answer
    if not worked:
        raise value
    return value


def _serve(measure: Callable[[], Any], pipe: Connection) -> None:
    try:
        answer: tuple[bool, Any] = (True, measure())
    except Exception as error:
        answer = (False, portable(error))
    pipe.send(answer)


class FreeVectorEnv(VectorEnv):
    """Copies that show the same drawn observations at every step, and whose episodes never end."""

    backend = "serial"

    def __init__(self, spec: Spec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        draw, shape = np.random.default_rng(0), (num_envs, *spec.observation_shape)
        pictures = spec.observation_dtype == np.uint8
        rows = draw.integers(0, 256, shape) if pictures else draw.standard_normal(shape)
        self._rows = rows.astype(spec.observation_dtype)
        self._reward = draw.standard_normal(num_envs).astype(np.float32)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        obs[...] = self._rows

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        out.obs[...], out.reward[...] = self._rows, self._reward
        out.terminated[...] = out.truncated[...] = False
        out.valid[...] = True

    def drain_finals(self) -> Finals:
        none = np.zeros((0, *self.spec.observation_shape), self.spec.observation_dtype)
        return Finals(none, np.zeros((0, 2), np.int64))

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

    varied: ClassVar[bool] = False

    def copies(self, seeds: NDArray[np.uint64], *how: Any, **more: Any) -> VectorEnv:
        return FreeVectorEnv(self.spec, len(seeds))

    def evaluation(self, split: str, copies: int, *how: Any, **more: Any) -> VectorEnv:
        raise NotImplementedError("nothing is evaluated here")

    def joined(self, records: Sequence[tuple[Any, ...]]) -> Environment:
        return self
