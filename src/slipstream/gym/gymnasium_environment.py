"""The environments ``gym:ID``: configuration, checks when they are loaded, and choice of backend.

One environment is created to check spaces, masks and wrappers. A worker process takes its first
steps, which shows errors and the time of a step. `backend: auto` uses worker processes if they are
faster by that time.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import multiprocessing
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from slipstream.core.capacity import usable_cores
from slipstream.core.child_process import FaultPolicy
from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.storage.atomic_io import to_jsonable
from slipstream.gym.env_factory import WrappedEnv, Wrappers, close_env, env_name, make_gymnasium
from slipstream.gym.foreign_env import ForeignEnv, make_probe_env, spec_from_env
from slipstream.gym.process.fault_log import MAX_ATTEMPTS, Fault
from slipstream.gym.process.process_pool import ProcessPool, WorkerPool
from slipstream.gym.wrapper_checks import check_trainable, state_leak_warnings, wrapper_warnings
from slipstream.kernels.env_checker import random_actions
from slipstream.kernels.loop import HOLD
from slipstream.kernels.source_files import is_user_file
from slipstream.kernels.space_codec import as_image_space
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import VectorEnv, allocate_buffers
from slipstream.training.environments.autotune_cache import Identity, StepConfig, Tunable
from slipstream.training.environments.environment import (
    MAX_EVAL_STEPS,
    Environment,
    EnvironmentKind,
    Sections,
    SteppingConfig,
    for_gymnasium,
    gymnasium_preset,
)

GYMNASIUM = "gym:"
# Upper bound per member for any budget. Sub-environments of a process are stepped one after
# another, so more of them share the cost of an action but make rollouts rarer.
MAX_FOREIGN_ENVS = 8
_SLOW_SECONDS = 20.0  # seconds
_SINGLE_SEED = np.zeros((2, 1), np.uint64)  # seed and index of one sub-environment


class Wrapper(Config):
    """A wrapper around a ``gym:ID``."""

    name: str = Field(description="package:Wrapper")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments")

    @field_validator("name")
    @classmethod
    def _place(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError("write package:Wrapper, such as gymnasium.wrappers:FlattenObservation")
        return value


class GymnasiumConfig(Config):
    """The `env` section of a ``gym:ID`` target."""

    FIXED_KEYS: ClassVar[tuple[str, ...]] = ("kwargs", "wrappers", "training_wrappers", "metrics")

    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of gymnasium.make"
    )
    wrappers: tuple[Wrapper, ...] = Field(
        (),
        description="wrappers, innermost first: package:Wrapper, or {name: package:Wrapper, "
        "kwargs: {...}}",
    )
    training_wrappers: tuple[Wrapper, ...] = Field(
        (),
        description="wrappers for training only, outside `wrappers`; validation, evaluation and "
        "logged returns ignore them",
    )
    metrics: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description='metrics: keys of the final info of an episode, or of its "episode"'
    )

    @field_validator("wrappers", "training_wrappers", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple({"name": item} if isinstance(item, str) else item for item in value)


@dataclass(frozen=True)
class GymnasiumEnvironment(Tunable):
    """A loaded ``gym:ID``.

    Attributes:
        kwargs: Keyword arguments of the environment.
        wrappers: Wrappers with keyword arguments, innermost first.
        training_wrappers: Wrappers around those, for training only.
        stepping: Stepping options of the run.
        source: Hash of the environment's source file; empty without one.
        warnings: Warnings about wrappers and masks, see `wrapper_warnings`.
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Wrappers = ()
    training_wrappers: Wrappers = ()
    stepping: SteppingConfig = field(default_factory=SteppingConfig)
    source: str = ""
    warnings: tuple[str, ...] = ()

    kind: GymnasiumKind

    def make_envs(
        self,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        backend: str = "auto",
        *,
        stagger: bool = True,
    ) -> VectorEnv:
        return self._select_and_make(backend, seeds, indices)

    def make_eval_envs(
        self,
        split: str,
        num_envs: int,
        members: int = 1,
        backend: str = "auto",
        max_steps: int = MAX_EVAL_STEPS,
    ) -> VectorEnv:
        pool = WorkerPool.current()
        limit = None if pool is None else pool.max_concurrent_envs
        total = limit or num_envs * members
        # Every sub-environment has to be created, so a few per member are enough.
        per_member = min(num_envs, MAX_FOREIGN_ENVS, max(1, total // members))
        zeros = np.zeros(members * per_member, np.uint64)
        time_limit = max_steps if self.spec.max_episode_steps is None else None
        more: dict[str, Any] = {"at_end": HOLD, "limit": time_limit}
        raw = replace(self, training_wrappers=()) if self.training_wrappers else self
        return raw._select_and_make(backend, zeros, zeros, evaluates=True, **more)

    def with_stepping(self, stepping: SteppingConfig) -> Environment:
        return replace(self, stepping=stepping).probed()

    def probed(self, stepping: SteppingConfig | None = None) -> Self:
        stepping = stepping or self.stepping
        if self.step_seconds is not None or (_in_child() and not stepping.in_process):
            return self
        with _warn_if_slow(self.name, "first steps have"):
            if stepping.in_process:
                with self._make_vector_env(*_SINGLE_SEED) as env:
                    return replace(self, step_seconds=measure_step_seconds(env))
            pool = WorkerPool.current()
            process_pool = None if pool is None else pool.uncounted()
            factory = self.kind.env_fn(self.wrappers, self.training_wrappers)
            seconds = run_first_steps(
                factory, self.kwargs, self.spec, stepping.policy, process_pool
            )
        return replace(self, step_seconds=seconds)

    @cached_property
    def _seconds(self) -> float:
        """Seconds of a step, measured on first use; 0 in a process without workers."""
        return self.probed().step_seconds or 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        return (*image_warnings(self.name, self.spec.native_observation_space), *self.warnings)

    @property
    def identity(self) -> Identity | None:
        wrappers = {"wrappers": self.wrappers, "training_wrappers": self.training_wrappers}
        more = {key: value for key, value in wrappers.items() if value}
        return Identity(self.name, to_jsonable({**self.kwargs, **more}), self.source)

    def step_config(self, num_envs: int) -> StepConfig | None:
        return None if _in_child() else super().step_config(num_envs)

    def may_crash(self, num_envs: int) -> bool:
        return not (_in_child() or self._is_process_faster(num_envs))

    def _select_and_make(
        self,
        backend: str,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        evaluates: bool = False,
        **more: Any,
    ) -> VectorEnv:
        if self.kind.select_backend(backend) == "process":
            return self._make_in_processes(seeds, indices, evaluates, **more)
        if backend == "auto" and self._is_process_faster(len(seeds)):
            with suppress(
                SlipstreamError
            ):  # environments that workers cannot create are stepped here
                return self._make_in_processes(seeds, indices, evaluates, **more)
        return self._make_vector_env(seeds, indices, **more)

    def _make_vector_env(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        factory = self.kind.env_fn(self.wrappers, self.training_wrappers)
        return ForeignEnv(factory, seeds, indices, kwargs=self.kwargs, spec=self.spec, **more)

    def _is_process_faster(self, num_envs: int) -> bool:
        step_config = self.step_config(num_envs)
        if step_config is not None:
            return step_config.backend == "process"
        return is_process_backend_faster(self._seconds, num_envs, self.stepping.workers)

    def _make_in_processes(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], evaluates: bool, **more: Any
    ) -> VectorEnv:
        pool = WorkerPool.current()
        workers, step_config = self.stepping.workers, self.step_config(len(seeds))
        if workers is None and _in_child():
            workers = 1
        elif workers is None and step_config is not None and step_config.backend == "process":
            workers = step_config.workers
        more |= {
            "workers": workers,
            "policy": self.stepping.policy,
            "process_pool": pool.uncounted() if pool is not None and evaluates else pool,
        }
        return self._make_vector_env(seeds, indices, **more)


@dataclass(frozen=True)
class GymnasiumKind(EnvironmentKind):
    """The name ``gym:ID``.

    Attributes:
        loaded: Class of the loaded environment.
        noun: Kind of environment with its article, for messages.
    """

    noun: ClassVar[str] = "a Gymnasium environment"
    loaded: ClassVar[type[GymnasiumEnvironment]] = GymnasiumEnvironment
    backends: ClassVar[tuple[str, ...]] = ("auto", "serial", "process")
    open_section: ClassVar[str | None] = "kwargs"
    is_known: ClassVar[bool] = True
    model: ClassVar[type[Config]] = GymnasiumConfig

    @property
    def short_name(self) -> str:
        return _env_id(self.name)

    def resolve_settings(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        section = validate(GymnasiumConfig, settings, "env").model_dump(mode="json")
        for key in ("metrics", "wrappers", "training_wrappers"):
            if not section[key]:  # configs without them keep their hash
                del section[key]
        return self.name, section

    def default_hyperparams(self, agent_name: str) -> Sections:
        return for_gymnasium(_env_id(self.name), agent_name)

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        preset = gymnasium_preset(_env_id(self.name), agent_name) or {}
        values = [
            f"{section}.{key}={value}"
            for section, fields in preset.items()
            for key, value in fields.items()
            if resolved[section][key] == value
        ]
        if not values:
            return None
        return f"Preset for {self.name} (your own settings take precedence): {', '.join(values)}."

    @property
    def code(self) -> Mapping[str, str | None]:
        module = _env_id(self.name).rpartition(":")[0]
        return {self.name: module} if module else {}

    @property
    def module(self) -> ModuleType | None:
        named, _, identifier = self.name.partition(":")[2].rpartition(":")
        entry = None if named else gymnasium.spec(identifier).entry_point
        made_here = callable(entry) or str(entry).startswith("__main__:")
        place = named or str(entry).partition(":")[0]
        module = None if made_here else importlib.import_module(place)
        is_user_module = (
            module is not None
            and module.__file__ is not None
            and is_user_file(Path(module.__file__))
        )
        if made_here or (is_user_module and not named):
            raise ConfigError(
                f"{self.name} is registered by code of this process, which nodes do not run. "
                "Register it in a module that nodes can import, and name the module: "
                f"{GYMNASIUM}my_module:{identifier}."
            )
        return module if is_user_module else None

    def load(self, settings: Mapping[str, Any]) -> GymnasiumEnvironment:
        name = self.name
        unknown = sorted(set(settings) - GymnasiumConfig.model_fields.keys())
        if unknown:
            raise ConfigError(
                f"`env.{unknown[0]}` is not a key of {name}. Known keys: "
                f"{', '.join(GymnasiumConfig.model_fields)}."
            )
        kwargs, names = dict(settings.get("kwargs") or {}), settings.get("metrics", ())
        wrappers = wrappers_from_section(settings)
        training = wrappers_from_section(settings, "training_wrappers")
        factory = self.env_fn(wrappers)
        with _warn_if_slow(name, "constructor has"):
            probe = make_probe_env(factory, kwargs)
        try:
            check_trainable(probe, name)
            for other_fn in _distinct_env_fns(factory):
                other = make_gymnasium(other_fn, kwargs)
                try:
                    check_trainable(other, name)
                finally:
                    close_env(other, name)
            make = partial(make_probe_env, factory, kwargs)
            spec = spec_from_env(probe, env_name(factory), names)
            if training:
                _check_training_wrappers(
                    make_probe_env(self.env_fn(wrappers, training), kwargs), name, spec
                )
            return self.loaded(
                self,
                spec,
                kwargs,
                wrappers,
                training,
                source=_hash_source(probe),
                warnings=(
                    *wrapper_warnings(probe, name, wrappers, bool(spec.has_action_mask)),
                    *state_leak_warnings(probe, make, name),
                ),
            )
        finally:
            close_env(probe, name)

    def env_fn(self, wrappers: Wrappers, training: Wrappers = ()) -> Any:
        """Return the argument of `make_gymnasium` for a sub-environment."""
        return env_fn(self.name, wrappers, training)

    def max_envs(self, spec: EnvSpec) -> tuple[int, str]:
        return MAX_FOREIGN_ENVS, self.noun

    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        raise ConfigError(
            f"{self.name} is not a kernel. `slipstream check` requires a kernel's .py file, or a "
            "YAML file that names one."
        )

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        factory = self.env_fn(wrappers_from_section(settings))
        return make_gymnasium(factory, settings.get("kwargs"), render_mode="rgb_array")


def _in_child() -> bool:
    """Return true if this is one of several processes that share the cores."""
    return multiprocessing.parent_process() is not None


def _hash_source(env: Any) -> str:
    """Return the hash of the source file of an environment's class; empty without a file."""
    with suppress(Exception):  # `unwrapped` is foreign code, and a class may have no file
        return hashlib.sha256(Path(inspect.getfile(type(env.unwrapped))).read_bytes()).hexdigest()
    return ""


def _distinct_env_fns(made: Any) -> list[Any]:
    """Return the functions of a list whose code differs from the first: wrappers may differ."""
    env_fns = made if isinstance(made, list) else [made]
    by_code = {id(getattr(fn, "__code__", fn)): fn for fn in reversed(env_fns)}
    return [fn for fn in by_code.values() if fn is not env_fns[0]]


def _env_id(name: str) -> str:
    return name.removeprefix(GYMNASIUM)


def wrappers_from_section(settings: Mapping[str, Any], key: str = "wrappers") -> Wrappers:
    """Return the wrappers of an `env` section, in any of their formats."""
    section = validate(GymnasiumConfig, {key: settings.get(key) or ()}, "env")
    return tuple((wrapper.name, wrapper.kwargs) for wrapper in getattr(section, key))


def env_fn(name: str, wrappers: Wrappers, training: Wrappers = ()) -> str | WrappedEnv:
    """Return the argument of `make_gymnasium` for a ``gym:ID`` with wrappers."""
    return WrappedEnv(_env_id(name), wrappers, training) if wrappers or training else _env_id(name)


def _check_training_wrappers(env: Any, name: str, spec: EnvSpec) -> None:
    """Check that policies of the environment in `env.training_wrappers` fit it without them.

    Raises:
        ConfigError: A space differs, or a wrapper normalizes by running statistics.
    """
    try:
        check_trainable(env, name)
        spaces = (
            ("observation_space", spec.native_observation_space),
            ("action_space", spec.native_action_space),
        )
        for attribute, expected in spaces:
            if (space := getattr(env, attribute)) != expected:
                raise ConfigError(
                    f"{name}: its {attribute} with `env.training_wrappers` is {space}, but without "
                    f"them {expected}. A policy acts in both, so they must be equal. Move the "
                    "wrapper that changes the space to `env.wrappers`."
                )
    finally:
        close_env(env, name)


def image_warnings(name: str, observation_space: Any) -> tuple[str, ...]:
    """Return warnings about image observations that are likely to train badly."""
    image = as_image_space(observation_space)
    shape = (0, 0, 0) if image is None else image.shape
    if shape == (210, 160, 3) and "ALE/" in name:
        return (
            f"{name} returns raw Atari frames of shape {shape}, which are slow to learn from. "
            "Use 84 x 84 grayscale frames: env.kwargs {frameskip: 1} and env.wrappers "
            "[gymnasium.wrappers:AtariPreprocessing] (docs/guides/third-party-environments.md).",
        )
    if 0 < shape[0] < min(shape[1:]) / 2:
        return (
            f"{name} returns images of shape {shape}, which are read as [height, width, channels]: "
            f"{shape[2]} channels of {shape[0]} x {shape[1]}. If the channels come first, wrap the "
            "environment so that they come last (docs/guides/third-party-environments.md).",
        )
    return ()


@contextmanager
def _warn_if_slow(name: str, what: str) -> Iterator[None]:
    """Print a message if the constructor or the first steps of an environment are slow."""
    message = f"{name}: its {what} not finished within {_SLOW_SECONDS:g} s. Press Ctrl-C to stop."
    timer = threading.Timer(_SLOW_SECONDS, print, (message,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


_FIRST_STEPS = 34  # steps of a new sub-environment
_UNLIMITED_FAULTS = 1_000_000  # limit of faults
_ROUND_TRIP_SECONDS = 100e-6  # one command to the workers and its reply
_MAX_TIME_RATIO = 0.85  # of the serial time, above which processes are not used
_MIN_SERIAL_SECONDS = 300e-6  # of a step of all sub-environments; processes do not help below


def measure_step_seconds(env: VectorEnv) -> float:
    """Return the seconds per step of one sub-environment: a quantile robust to interruptions."""
    out, draw = allocate_buffers(env), np.random.default_rng(0)
    env.reset_rows(out.obs, out.mask)
    times = []
    for t in range(_FIRST_STEPS):
        actions = random_actions(env.spec, env.num_envs, draw, out.mask)
        began = time.perf_counter()
        env.step_rows(actions, out, t)
        times.append((time.perf_counter() - began) / env.num_envs)
    env.drain_final_obs(), env.drain_episodes()
    return float(np.quantile(times, 0.25))


def run_first_steps(
    env: Any,
    kwargs: Mapping[str, Any],
    spec: EnvSpec,
    policy: FaultPolicy,
    process_pool: ProcessPool | None = None,
) -> float:
    """Take the first steps of an environment in a worker process and return the seconds of one.

    Args:
        env, kwargs: As for `make_gymnasium`.
        spec: Specification of the environment.
        policy: Fault policy. Several faults, or one call that hangs, raise.
        process_pool: Source of the worker.

    Returns:
        Seconds as of `measure_step_seconds`; 0 if no worker can create the environment.

    Raises:
        KernelError: A step failed. The message has the error and its location.
    """
    zeros = np.zeros(1, np.uint64)
    tolerant = policy._replace(
        on_fault="restart",
        max_faults_per_minute=_UNLIMITED_FAULTS,
        max_consecutive_faults=_UNLIMITED_FAULTS,
    )
    try:
        probe = ForeignEnv(
            env,
            zeros,
            zeros,
            kwargs=kwargs,
            spec=spec,
            workers=1,
            policy=tolerant,
            process_pool=process_pool,
        )
    except SlipstreamError:
        return 0.0
    max_faults = MAX_ATTEMPTS if policy.on_fault == "restart" else 1
    faults, times, draw = list[Fault](), list[float](), np.random.default_rng(0)
    with probe:
        probe.drain_faults()  # of workers that were killed from outside
        probe.reset_rows(allocate_buffers(probe).obs)
        while len(times) < _FIRST_STEPS:
            rows = np.stack([random_actions(spec, 1, draw) for _ in range(_FIRST_STEPS)])
            times += probe.time_steps(rows)
            faults += probe.drain_faults()
            if len(faults) >= max_faults or any(fault.kind == "hung" for fault in faults):
                raise _first_steps_error(env_name(env), faults[-1], policy) from faults[-1].error
    return float(np.quantile(times, 0.25))


def _first_steps_error(name: str, fault: Fault, policy: FaultPolicy) -> KernelError:
    """Return the error for a fault in the first steps."""
    message, *rest = fault.text.strip().splitlines()
    if fault.kind == "raised":
        return KernelError(message)
    places = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(rest))
    where = f" ({':'.join(places[-1 if fault.kind == 'hung' else 0])})" if places else ""
    if fault.kind == "hung":
        message = f"a call took more than {policy.hang_seconds:g} s (training.hang_seconds)"
    return KernelError(
        f"gym:{name} failed in its first steps in a worker process: {message}{where}, in episode "
        f"{fault.episode}, step {fault.step}, after the action {list(fault.action)}. Fix the "
        "environment. With `training.backend: serial` it runs in this process, where a debugger "
        "can be used."
    )


def is_process_backend_faster(seconds: float, num_envs: int, workers: int | None = None) -> bool:
    """Return true if worker processes are faster; results do not depend on the backend.

    Args:
        seconds: Seconds of a step of one sub-environment.
        num_envs: Number of sub-environments.
        workers: Number of workers; None for one per core.
    """
    if workers is None:
        workers = 1 if _in_child() else usable_cores()
    serial = num_envs * seconds
    process = math.ceil(num_envs / max(1, min(workers, num_envs))) * seconds + _ROUND_TRIP_SECONDS
    return serial > _MIN_SERIAL_SECONDS and process < _MAX_TIME_RATIO * serial
