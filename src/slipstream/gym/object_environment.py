"""Environments that a program creates itself: objects and functions, named by `register`.

A config can hold such a name. It is valid in this process and its forks. A run that resumes in
another process must register the environment there first.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.timeline import FoldPlan
from slipstream.gym.env_factory import WrappedEnv, Wrappers
from slipstream.gym.gymnasium_environment import GymnasiumEnvironment, GymnasiumKind
from slipstream.gym.vector_environment import (
    VectorEnvironment,
    VectorKind,
    WrappedVectorEnv,
    wrap_vector_env,
)
from slipstream.gym.wrapper_checks import check_trainable
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import StepBuffers, VectorEnv
from slipstream.training.environments.autotune_cache import Identity
from slipstream.training.environments.environment import (
    MAX_EVAL_STEPS,
    Environment,
    Sections,
    for_gymnasium,
)

OBJECT = "object:"

EnvFn: TypeAlias = Callable[..., Any]
EnvLike: TypeAlias = Any
"""An environment, a function that creates one, a list of functions, or a vector environment."""


class BorrowedEnv:
    """A vector environment that cannot be created again, shared by training and evaluation.

    Attributes:
        num_envs: Number of sub-environments.
        env: The environment. The caller owns and closes it.
        active_env: The `BorrowedVectorEnv` that stepped it last.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.num_envs: int = wrap_vector_env(env).num_envs
        check_trainable(env, name)
        self.env = env
        self.active_env: BorrowedVectorEnv | None = None


class BorrowedVectorEnv(WrappedVectorEnv):
    """A user of a `BorrowedEnv`, which training and evaluation step in turn.

    A user that resumes stepping begins new episodes. That step is invalid, and the interrupted
    episodes are discarded.

    Args:
        borrowed: The shared environment, which stays open.
        seeds, indices, **options: As for `WrappedVectorEnv`.
    """

    def __init__(
        self,
        borrowed: BorrowedEnv,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        **options: Any,
    ) -> None:
        super().__init__(borrowed.env, seeds, indices, **options)
        self._borrowed = borrowed

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._borrowed.active_env = self
        super().reset_rows(obs, mask)

    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        if self._borrowed.active_env is not self:
            self._borrowed.active_env, self._rows = self, None
        super().begin(env_ids, episodes, seed, obs, mask)

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        if self._borrowed.active_env is self:
            super().step_rows(actions, out, t)
            return
        ended = self._finals, self._episodes  # before the other user took over
        self.reset_rows(out.obs, out.mask)
        self._finals, self._episodes = ended
        out.reward[...] = 0.0
        for flags in (out.terminated, out.truncated, out.valid):
            flags[...] = False

    def close(self) -> None:
        """Leave the environment open: the caller owns it."""


class _Entry(NamedTuple):
    """A registered environment.

    Attributes:
        target: Argument of `register`.
        env_fns: Functions that create the sub-environments, used in turn; empty if borrowed.
        num_envs: Default number of sub-environments per member.
        borrowed: The environment itself if it cannot be created again.
    """

    target: Any
    env_fns: list[EnvFn]
    num_envs: int | None = None
    borrowed: BorrowedEnv | None = None


_REGISTRY: dict[str, _Entry] = {}


def register(env: EnvLike, name: str | None = None) -> str:
    """Register an environment under a name for `train`, `resume`, `evaluate` and `make_vec`.

    ::

        slipstream.register(lambda: MyEnv(size=9), "MyEnv")  # "object:MyEnv"
        run = slipstream.resume("runs/MyEnv-20260101-120000")

    `train` and `tune` register their argument themselves.

    Args:
        env: A Gymnasium environment, which is cloned; a class or function that creates one; a list
            of functions, used in turn; or a vector environment (Gymnasium's, an SB3 `VecEnv`, an
            EnvPool pool).
        name: Name; None uses the name of the class or function.

    Returns:
        ``object:NAME``, the same for the same object.

    Raises:
        ConfigError: The argument is none of these.
    """
    full = first = OBJECT + re.sub(r"[^\w.-]", "-", name or _default_name(env))
    number = 1
    while name is None and full in _REGISTRY and _REGISTRY[full].target is not env:
        number += 1
        full = f"{first}-{number}"
    if full not in _REGISTRY or _REGISTRY[full].target is not env:
        _REGISTRY[full] = _make_entry(env, full)
    return full


def object_kind(name: str) -> GymnasiumKind:
    """Return the kind of a registered name."""
    entry = _REGISTRY.get(name)
    return ObjectKind(name) if entry is None or entry.borrowed is None else BorrowedKind(name)


def _make_entry(env: Any, name: str) -> _Entry:
    inner = env.venv if type(env).__name__ == "VecMonitor" else env  # it only records statistics
    if type(inner) in (SyncVectorEnv, AsyncVectorEnv):
        return _Entry(env, list(inner.env_fns), len(inner.env_fns))
    if any(hasattr(inner, name) for name in ("num_envs", "env_is_wrapped", "all_env_ids")):
        plain = type(inner).__name__ == "DummyVecEnv"
        clone_fns = [_cloning_env_fn(sub_env) for sub_env in inner.envs] if plain else [None]
        env_fns = [env_fn for env_fn in clone_fns if env_fn is not None]
        if len(env_fns) == len(clone_fns):
            return _Entry(env, env_fns, len(env_fns))
        borrowed = BorrowedEnv(env, name)
        return _Entry(env, [], borrowed.num_envs, borrowed)
    if isinstance(env, gymnasium.Env):
        env_fn = _cloning_env_fn(env)
        if env_fn is not None:
            return _Entry(env, [env_fn])
        alone = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
        return _Entry(env, [], 1, BorrowedEnv(alone, name))
    env_fns = list(env) if isinstance(env, list | tuple) else [env]
    if env_fns and all(map(callable, env_fns)):
        return _Entry(env, env_fns, len(env_fns) if len(env_fns) > 1 else None)
    raise ConfigError(
        f"{env!r:.80} is not an environment. Pass a Gymnasium environment, a function that creates "
        "one (`lambda: MyEnv()`), a list of such functions, a vector environment of Gymnasium, "
        "EnvPool or SB3, or the name of an environment (`slipstream list`)."
    )


def _default_name(env: Any) -> str:
    """Return a short name for an environment or function."""
    env = env[0] if isinstance(env, list | tuple) and env else env
    env = env.unwrapped if isinstance(env, gymnasium.Env) else env
    name: str = getattr(env, "__name__", type(env).__name__)
    return name if name.isidentifier() else "environment"


class _CloneFactory:
    """Create clones of an environment in the state in which it was registered."""

    def __init__(self, name: str, data: bytes) -> None:
        self.__qualname__, self._data = name, data

    def __call__(self) -> Any:
        return pickle.loads(self._data)


def _cloning_env_fn(env: Any) -> EnvFn | None:
    """Return a function that clones an environment; None if it cannot be pickled."""
    try:
        made = _CloneFactory(_default_name(env), bytes(cloudpickle.dumps(env)))
        return made if type(made()) is type(env) else None
    except Exception:  # whatever its parts raise
        return None


def _lookup(name: str) -> _Entry:
    if name not in _REGISTRY:
        short = name.removeprefix(OBJECT)
        env_fn = f"lambda: {re.sub(r'-[0-9]+$', '', short)}()"
        raise ConfigError(
            f"`{name}` is not registered in this process. In Python, first call "
            f'`slipstream.register({env_fn}, "{short}")` with the function that created it. For '
            "commands, register the environment with Gymnasium and train gym:MODULE:ID."
        )
    return _REGISTRY[name]


@dataclass(frozen=True)
class ObjectEnvironment(GymnasiumEnvironment):
    """A loaded ``object:NAME`` whose sub-environments are created by functions."""

    @property
    def identity(self) -> Identity | None:
        return None  # the name is only valid in this process

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the speed of Python environments, and on why workers cannot step it."""
        seconds, notes = self.step_seconds, list(super().notes)
        try:
            cloudpickle.dumps(_lookup(self.name).env_fns)
        except Exception as error:
            notes.append(
                f"{self.name} cannot be pickled for worker processes ({error!s:.200}) "
                "and is stepped serially in this process. Use a function that creates everything "
                "inside, such as `lambda: MyEnv()`."
            )
        if seconds:
            notes.append(
                f"{self.name} is stepped in Python: {1e6 * seconds:,.0f} us per step of one env "
                "here. Small rules written as a kernel take about 0.1 us "
                "(docs/guides/custom-environment.md)."
            )
        return tuple(notes)


@dataclass(frozen=True)
class ObjectKind(GymnasiumKind):
    """The name ``object:NAME`` of functions that create sub-environments."""

    noun: ClassVar[str] = "an environment object"
    loaded: ClassVar[type[GymnasiumEnvironment]] = ObjectEnvironment
    code: ClassVar[Mapping[str, str | None]] = {}

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(OBJECT)

    def default_hyperparams(self, agent_name: str) -> Sections:
        sections = dict(for_gymnasium(self.name, agent_name))
        num_envs = _REGISTRY[self.name].num_envs if self.name in _REGISTRY else None
        training = {} if num_envs is None else {"num_envs": num_envs}
        return {**sections, "training": {**sections["training"], **training}}

    def env_fn(self, wrappers: Wrappers, training: Wrappers = ()) -> Any:
        if wrappers:
            raise ConfigError(
                f"`env.wrappers` requires gym:ID. Wrap {self.name} before registration."
            )
        env_fns = _lookup(self.name).env_fns
        return [WrappedEnv(fn, (), training) for fn in env_fns] if training else env_fns


@dataclass(frozen=True)
class BorrowedEnvironment(VectorEnvironment):
    """A loaded ``object:NAME`` that cannot be created again; training and evaluation share it."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"{self.name} cannot be cloned (it cannot be pickled, or its envs are inside wrappers "
            "or processes of another library). It is stepped serially, and training begins new "
            "episodes after each validation. Prefer a function that creates the environment, or "
            "a list of functions.",
        )

    def make_eval_envs(
        self,
        split: str,
        num_envs: int,
        members: int = 1,
        backend: str = "auto",
        max_steps: int = MAX_EVAL_STEPS,
    ) -> VectorEnv:
        zeros = np.zeros((_lookup(self.name).num_envs or 1) * members, np.uint64)
        more: dict[str, Any] = {
            "at_end": HOLD,
            "limit": max_steps,
            "masked": self.spec.has_action_mask,
        }
        return _make_borrowed(self.name, zeros, zeros, **more)

    def _make_vector_env(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        return _make_borrowed(self.name, seeds, indices, masked=self.spec.has_action_mask, **more)


@dataclass(frozen=True)
class BorrowedKind(VectorKind):
    """The name ``object:NAME`` of a vector environment that exists already."""

    code: ClassVar[Mapping[str, str | None]] = {}

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(OBJECT)

    def default_hyperparams(self, agent_name: str) -> Sections:
        return {"training": {"num_envs": _lookup(self.name).num_envs}}

    def load(self, settings: Mapping[str, Any]) -> BorrowedEnvironment:
        name = self.name
        if any(settings.values()):
            raise ConfigError(f"{name} exists already: remove all keys but the name from `env`.")
        zeros = np.zeros(_lookup(name).num_envs or 1, np.uint64)
        return BorrowedEnvironment(self, _make_borrowed(name, zeros, zeros).spec, step_seconds=0.0)

    def load_folds(
        self, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> Environment:
        raise ConfigError(
            f"{self.name} is one environment, but a study needs new envs for every trial. Pass a "
            "function that creates one: slipstream.tune(lambda: MyEnv())."
        )


def _make_borrowed(name: str, seeds: Any, indices: Any, **more: Any) -> BorrowedVectorEnv:
    entry = _lookup(name)
    assert entry.borrowed is not None
    if len(seeds) != entry.num_envs:
        raise ConfigError(
            f"{name} has {entry.num_envs} sub-environments, but {len(seeds)} were requested. Omit "
            "training.num_envs and training.members, or pass a function that creates one env."
        )
    return BorrowedVectorEnv(entry.borrowed, seeds, indices, name=name, **more)
