"""The environments ``gym:ID``: their config, what is checked when they are loaded, who steps them.

An environment is made once to look at its spaces, masks and wrappers. A worker process takes its
first steps, which shows what breaks and how long a step takes; `backend: auto` uses worker
processes if they are faster by that time.
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
# The most of a member, however large the budget: they are stepped one after another, so more than
# share the cost of a decision only make rollouts rarer.
MAX_FOREIGN_ENVS = 8
_SLOW = 20.0  # seconds
_ONE = np.zeros((2, 1), np.uint64)  # seeds and indices of one sub-environment


class Wrapper(Config):
    """A wrapper around a ``gym:ID``."""

    name: str = Field(description="package:Wrapper")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to it")

    @field_validator("name")
    @classmethod
    def _place(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError("write package:Wrapper, as gymnasium.wrappers:FlattenObservation")
        return value


class GymnasiumConfig(Config):
    """The `env` section of a ``gym:ID`` target."""

    FIXED_KEYS: ClassVar[tuple[str, ...]] = ("kwargs", "wrappers", "training_wrappers", "metrics")

    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to gymnasium.make")
    wrappers: tuple[Wrapper, ...] = Field(
        (),
        description="around it, the innermost first: package:Wrapper, or {name: package:Wrapper, "
        "kwargs: {...}}",
    )
    training_wrappers: tuple[Wrapper, ...] = Field(
        (),
        description="around it in training alone, outside `wrappers`; validation, evaluations and "
        "logged returns are without them",
    )
    metrics: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description='to follow: names in the last info of an episode, or in its "episode"'
    )

    @field_validator("wrappers", "training_wrappers", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple({"name": one} if isinstance(one, str) else one for one in value)


@dataclass(frozen=True)
class GymnasiumEnvironment(Tunable):
    """One named ``gym:ID``.

    Attributes:
        kwargs: its keyword arguments.
        wrappers: around it, the innermost first, with their keyword arguments.
        training_wrappers: around these in training alone.
        stepping: what a run says about it.
        source: hash of the file with its rules, where there is one.
        warnings: sentences on wrappers and masks, see `wrapper_warnings`.
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
        return self._stepped(backend, seeds, indices)

    def make_eval_envs(
        self,
        split: str,
        copies: int,
        members: int = 1,
        backend: str = "auto",
        max_steps: int = MAX_EVAL_STEPS,
    ) -> VectorEnv:
        pool = WorkerPool.current()
        most = pool.max_concurrent_envs if pool is not None else None
        each = min(copies, MAX_FOREIGN_ENVS, max(1, (most or copies * members) // members))
        zeros = np.zeros(members * each, np.uint64)  # each must be made
        limit = max_steps if self.spec.max_episode_steps is None else None
        more: dict[str, Any] = {"at_end": HOLD, "limit": limit}
        raw = replace(self, training_wrappers=()) if self.training_wrappers else self
        return raw._stepped(backend, zeros, zeros, evaluates=True, **more)

    def with_stepping(self, stepping: SteppingConfig) -> Environment:
        return replace(self, stepping=stepping).probed()

    def probed(self, stepping: SteppingConfig | None = None) -> Self:
        stepping = stepping or self.stepping
        if self.step_seconds is not None or (_in_child() and not stepping.in_process):
            return self
        with _log_if_slow(self.name, "first steps have"):
            if stepping.in_process:
                with self._made(*_ONE) as env:
                    return replace(self, step_seconds=step_seconds(env))
            pool = WorkerPool.current()
            process_pool = None if pool is None else pool.uncounted()
            made = self.kind.env_fn(self.wrappers, self.training_wrappers)
            seconds = run_first_steps(made, self.kwargs, self.spec, stepping.policy, process_pool)
        return replace(self, step_seconds=seconds)

    @cached_property
    def _seconds(self) -> float:
        """Seconds of a step, measured now if never before; 0 in a process without workers."""
        return self.probed().step_seconds or 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        return (*image_warnings(self.name, self.spec.native_observation_space), *self.warnings)

    @property
    def identity(self) -> Identity | None:
        around = {"wrappers": self.wrappers, "training_wrappers": self.training_wrappers}
        more = {key: own for key, own in around.items() if own}
        return Identity(self.name, to_jsonable({**self.kwargs, **more}), self.source)

    def step_config(self, copies: int) -> StepConfig | None:
        return None if _in_child() else super().step_config(copies)

    def may_crash(self, copies: int) -> bool:
        return not (_in_child() or self._processes_pay(copies))

    def _stepped(
        self,
        backend: str,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        evaluates: bool = False,
        **more: Any,
    ) -> VectorEnv:
        if self.kind.select_backend(backend) == "process":
            return self._in_processes(seeds, indices, evaluates, **more)
        if backend == "auto" and self._processes_pay(len(seeds)):
            with suppress(SlipstreamError):  # what only this process can make is stepped here
                return self._in_processes(seeds, indices, evaluates, **more)
        return self._made(seeds, indices, **more)

    def _made(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        made = self.kind.env_fn(self.wrappers, self.training_wrappers)
        return ForeignEnv(made, seeds, indices, kwargs=self.kwargs, spec=self.spec, **more)

    def _processes_pay(self, copies: int) -> bool:
        way = self.step_config(copies)
        if way is not None:
            return way.backend == "process"
        return is_process_backend_faster(self._seconds, copies, self.stepping.workers)

    def _in_processes(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], evaluates: bool, **more: Any
    ) -> VectorEnv:
        pool = WorkerPool.current()
        workers, way = self.stepping.workers, self.step_config(len(seeds))
        if workers is None and _in_child():
            workers = 1
        elif workers is None and way is not None and way.backend == "process":
            workers = way.workers
        process_pool = pool.uncounted() if pool is not None and evaluates else pool
        by: Any = {"workers": workers, "policy": self.stepping.policy, "process_pool": process_pool}
        return self._made(seeds, indices, **by, **more)


@dataclass(frozen=True)
class GymnasiumKind(EnvironmentKind):
    """The name ``gym:ID``.

    Attributes:
        loaded: what is loaded.
        noun: its environments, with an article, for messages.
    """

    noun: ClassVar[str] = "a Gymnasium environment"
    loaded: ClassVar[type[GymnasiumEnvironment]] = GymnasiumEnvironment
    backends: ClassVar[tuple[str, ...]] = ("auto", "serial", "process")
    open_section: ClassVar[str | None] = "kwargs"
    is_known: ClassVar[bool] = True
    model: ClassVar[type[Config]] = GymnasiumConfig

    @property
    def short_name(self) -> str:
        return _id(self.name)

    def resolve_settings(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        section = validate(GymnasiumConfig, settings, "env").model_dump(mode="json")
        for key in ("metrics", "wrappers", "training_wrappers"):
            if not section[key]:  # a run without them is what it was before there were any
                del section[key]
        return self.name, section

    def default_hyperparams(self, agent_name: str) -> Sections:
        return for_gymnasium(_id(self.name), agent_name)

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        preset = gymnasium_preset(_id(self.name), agent_name) or {}
        values = [
            f"{section}.{key}={value}"
            for section, fields in preset.items()
            for key, value in fields.items()
            if resolved[section][key] == value
        ]
        if not values:
            return None
        return f"Preset for {self.name} (your own settings win): {', '.join(values)}."

    @property
    def code(self) -> Mapping[str, str | None]:
        module = _id(self.name).rpartition(":")[0]
        return {self.name: module} if module else {}

    @property
    def module(self) -> ModuleType | None:
        named, _, identifier = self.name.partition(":")[2].rpartition(":")
        entry = None if named else gymnasium.spec(identifier).entry_point
        made_here = callable(entry) or str(entry).startswith("__main__:")
        place = named or str(entry).partition(":")[0]
        module = None if made_here else importlib.import_module(place)
        own = (
            module is not None
            and module.__file__ is not None
            and is_user_file(Path(module.__file__))
        )
        if made_here or (own and not named):
            raise ConfigError(
                f"{self.name} is registered by code of this process, which nodes do not run. Put "
                "it into a module that registers it when it is imported, and name that: "
                f"{GYMNASIUM}my_module:{identifier}."
            )
        return module if own else None

    def load(self, settings: Mapping[str, Any]) -> GymnasiumEnvironment:
        name = self.name
        unknown = sorted(set(settings) - GymnasiumConfig.model_fields.keys())
        if unknown:
            raise ConfigError(
                f"`env.{unknown[0]}` is not a key of {name}; it takes "
                f"{', '.join(GymnasiumConfig.model_fields)} only."
            )
        kwargs, names = dict(settings.get("kwargs") or {}), settings.get("metrics", ())
        wrappers = wrappers_from_section(settings)
        training = wrappers_from_section(settings, "training_wrappers")
        made = self.env_fn(wrappers)
        with _log_if_slow(name, "constructor has"):
            shown = make_probe_env(made, kwargs)
        try:
            check_trainable(shown, name)
            for other in _other_makers(made):
                another = make_gymnasium(other, kwargs)
                try:
                    check_trainable(another, name)
                finally:
                    close_env(another, name)
            make = partial(make_probe_env, made, kwargs)
            spec = spec_from_env(shown, env_name(made), names)
            if training:
                _check_training(make_probe_env(self.env_fn(wrappers, training), kwargs), name, spec)
            return self.loaded(
                self,
                spec,
                kwargs,
                wrappers,
                training,
                source=_source(shown),
                warnings=(
                    *wrapper_warnings(shown, name, wrappers, bool(spec.has_action_mask)),
                    *state_leak_warnings(shown, make, name),
                ),
            )
        finally:
            close_env(shown, name)

    def env_fn(self, wrappers: Wrappers, training: Wrappers = ()) -> Any:
        """What `make_gymnasium` makes a sub-environment of."""
        return env_fn(self.name, wrappers, training)

    def max_envs(self, spec: EnvSpec) -> tuple[int, str]:
        return MAX_FOREIGN_ENVS, self.noun

    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        raise ConfigError(
            f"{self.name} is no kernel: `slipstream check` takes a kernel's .py file, or a YAML "
            "file that names one."
        )

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        made = self.env_fn(wrappers_from_section(settings))
        return make_gymnasium(made, settings.get("kwargs"), render_mode="rgb_array")


def _in_child() -> bool:
    """Return true if this is one of several processes that share the cores."""
    return multiprocessing.parent_process() is not None


def _source(env: Any) -> str:
    """Hash of the file that an environment's class is in; empty where there is none."""
    with suppress(Exception):  # `unwrapped` is foreign code, and a class may have no file
        return hashlib.sha256(Path(inspect.getfile(type(env.unwrapped))).read_bytes()).hexdigest()
    return ""


def _other_makers(made: Any) -> list[Any]:
    """Makers of a list whose code is not the first one's: they may add other wrappers."""
    env_fns = made if isinstance(made, list) else [made]
    by_code = {id(getattr(one, "__code__", one)): one for one in reversed(env_fns)}
    return [one for one in by_code.values() if one is not env_fns[0]]


def _id(name: str) -> str:
    return name.removeprefix(GYMNASIUM)


def wrappers_from_section(settings: Mapping[str, Any], key: str = "wrappers") -> Wrappers:
    """Those of a section `env`, in any of the forms that a user may write."""
    given = validate(GymnasiumConfig, {key: settings.get(key) or ()}, "env")
    return tuple((one.name, one.kwargs) for one in getattr(given, key))


def env_fn(name: str, wrappers: Wrappers, training: Wrappers = ()) -> str | WrappedEnv:
    """Return the argument of `make_gymnasium` for a ``gym:ID`` with wrappers."""
    return WrappedEnv(_id(name), wrappers, training) if wrappers or training else _id(name)


def _check_training(env: Any, name: str, spec: EnvSpec) -> None:
    """Refuse an environment inside `env.training_wrappers` whose policies do not fit without them.

    Raises:
        ConfigError: it has other spaces, or normalises by running statistics.
    """
    try:
        check_trainable(env, name)
        wanted = (
            ("observation_space", spec.native_observation_space),
            ("action_space", spec.native_action_space),
        )
        for attribute, own in wanted:
            if (found := getattr(env, attribute)) != own:
                raise ConfigError(
                    f"{name}: with `env.training_wrappers` its {attribute} is {found}, and without "
                    f"them {own}. A policy acts in both, so that they must be equal: put the "
                    "wrapper that changes it into `env.wrappers`."
                )
    finally:
        close_env(env, name)


def image_warnings(name: str, shown: Any) -> tuple[str, ...]:
    """Sentences on images that are learned from badly as they are."""
    image = as_image_space(shown)
    shape = (0, 0, 0) if image is None else image.shape
    if shape == (210, 160, 3) and "ALE/" in name:
        return (
            f"{name} shows raw Atari frames, {shape}, and an agent learns from them slowly. "
            "Usual are 84 x 84 grey pixels: env.kwargs {frameskip: 1} and env.wrappers "
            "[gymnasium.wrappers:AtariPreprocessing] (docs/guides/third-party-environments.md).",
        )
    if 0 < shape[0] < min(shape[1:]) / 2:
        return (
            f"{name} shows images of shape {shape}, which are read as [height, width, channels]: "
            f"{shape[2]} channels of {shape[0]} x {shape[1]}. Where the channels come first, wrap "
            "it so that they come last (docs/guides/third-party-environments.md).",
        )
    return ()


@contextmanager
def _log_if_slow(name: str, what: str) -> Iterator[None]:
    """Names an environment that hangs in its constructor or its first steps."""
    words = f"{name}: its {what} taken {_SLOW:g} s and not ended; Ctrl-C ends this command."
    watch = threading.Timer(_SLOW, print, (words,), {"file": sys.stderr, "flush": True})
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()


_STEPS = 34  # of a sub-environment before anything else is done with it
_PATIENT = 1_000_000  # faults that the sub-environments' own ledger lets pass
_ROUND_SECONDS = 100e-6  # of telling workers to step, and hearing that they have
_WORTH = 0.85  # of the serial time, which processes must stay below to be chosen
_LEAST_SECONDS = 300e-6  # of a step of all sub-environments; below that nothing is gained


def step_seconds(env: VectorEnv) -> float:
    """Seconds that a step of one env takes here; of the quicker ones, as others may interrupt."""
    out, draw = allocate_buffers(env), np.random.default_rng(0)
    env.reset_rows(out.obs, out.mask)
    times = []
    for t in range(_STEPS):
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
    """Takes a environment's first steps in a worker process; seconds of one, as of `step_seconds`.

    0 where no worker can make a sub-environment: what only this process can make is stepped here.

    Args:
        env, kwargs: as for `make_gymnasium`.
        spec: of it.
        policy: what a fault leads to; several end it, and one call that hangs.
        crowd: where the worker comes from.

    Raises:
        KernelError: what it did instead, and where.
    """
    one, patient = np.zeros(1, np.uint64), policy._replace(on_fault="restart")
    patient = patient._replace(max_faults_per_minute=_PATIENT, max_consecutive_faults=_PATIENT)
    try:
        copies = ForeignEnv(
            env,
            one,
            one,
            kwargs=kwargs,
            spec=spec,
            workers=1,
            policy=patient,
            process_pool=process_pool,
        )
    except SlipstreamError:
        return 0.0
    most = MAX_ATTEMPTS if policy.on_fault == "restart" else 1
    faults, times, draw = list[Fault](), list[float](), np.random.default_rng(0)
    with copies:
        copies.drain_faults()  # workers that somebody killed meanwhile
        copies.reset_rows(allocate_buffers(copies).obs)
        while len(times) < _STEPS:
            rows = np.stack([random_actions(spec, 1, draw) for _ in range(_STEPS)])
            times += copies.timed(rows)
            faults += copies.drain_faults()
            if len(faults) >= most or any(fault.kind == "hung" for fault in faults):
                raise _broken(env_name(env), faults[-1], policy) from faults[-1].error
    return float(np.quantile(times, 0.25))


def _broken(name: str, fault: Fault, policy: FaultPolicy) -> KernelError:
    """What went wrong in the first steps, in a paragraph."""
    said, *rest = fault.text.strip().splitlines()
    if fault.kind == "raised":
        return KernelError(said)
    places = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(rest))
    where = f" ({':'.join(places[-1 if fault.kind == 'hung' else 0])})" if places else ""
    if fault.kind == "hung":
        said = f"a call took more than {policy.hang_seconds:g} s (training.hang_seconds)"
    return KernelError(
        f"gym:{name}, in its first steps, which a worker process takes: {said}{where}, in episode "
        f"{fault.episode}, step {fault.step}, after the action {list(fault.action)}. Fix the "
        "environment there; with `training.backend: serial` it runs in this process, under a "
        "debugger if need be."
    )


def is_process_backend_faster(seconds: float, num_envs: int, workers: int | None = None) -> bool:
    """Return true if worker processes step so many envs faster; results do not depend on it.

    Args:
        seconds: of a step of one sub-environment.
        num_envs: sub-environments.
        workers: that may be used; by default one a core.
    """
    if workers is None:
        workers = 1 if _in_child() else usable_cores()
    serial = num_envs * seconds
    process = math.ceil(num_envs / max(1, min(workers, num_envs))) * seconds + _ROUND_SECONDS
    return serial > _LEAST_SECONDS and process < _WORTH * serial
