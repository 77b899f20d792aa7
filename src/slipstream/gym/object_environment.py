"""Environments that a program made itself: objects and functions, by names that a config can hold.

`register` gives the name. It means something in this process and in those that are forked from it;
a run that goes on elsewhere is told to register what made it there.
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

Maker: TypeAlias = Callable[..., Any]
Given: TypeAlias = Any
"""An environment, what makes one, a list of makers, or a vector environment of any library."""


class BorrowedEnv:
    """A vector environment that cannot be made again, and who steps it now.

    Attributes:
        env: the caller's, who closes it.
        user: the sub-environments that stepped it last.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.num_envs: int = wrap_vector_env(env).num_envs
        check_trainable(env, name)
        self.env = env
        self.active_env: BorrowedVectorEnv | None = None


class BorrowedVectorEnv(WrappedVectorEnv):
    """The only sub-environments there are, which training and evaluation step in turn.

    Whoever comes back begins new episodes: the step in which that happens is not valid, and what
    the sub-environments were in before is dropped.

    Args:
        lent: what is stepped; it stays open.
        seeds, indices, name, at_end, limit: as for `WrappedVectorEnv`.
    """

    def __init__(self, borrowed: BorrowedEnv, *who: NDArray[np.uint64], **options: Any) -> None:
        super().__init__(borrowed.env, *who, **options)
        self._borrowed = borrowed

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._borrowed.active_env = self
        super().reset_rows(obs, mask)

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        if self._borrowed.active_env is not self:
            self._borrowed.active_env, self._rows = self, None
        super().begin(copies, episodes, seed, obs, mask)

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        if self._borrowed.active_env is self:
            super().step_rows(actions, out, t)
            return
        kept = self._finals, self._episodes  # of this block, before the others came
        self.reset_rows(out.obs, out.mask)
        self._finals, self._episodes = kept
        out.reward[...] = 0.0
        for ends in (out.terminated, out.truncated, out.valid):
            ends[...] = False

    def close(self) -> None:
        """Nothing: the caller may go on with it."""


class _Entry(NamedTuple):
    """What a name stands for.

    Attributes:
        given: what the program handed over.
        makers: of the sub-environments, in turn; none where there is only what was given.
        num_envs: sub-environments of a member, where nobody says how many.
        lent: what was given, where there are no makers.
    """

    target: Any
    env_fns: list[Maker]
    num_envs: int | None = None
    borrowed: BorrowedEnv | None = None


_REGISTRY: dict[str, _Entry] = {}


def register(env: Given, name: str | None = None) -> str:
    """Names an environment object, so that `train`, `resume`, `evaluate` and `make_vec` take it.

    ::

        slipstream.register(lambda: MyEnv(size=9), "MyEnv")  # "object:MyEnv"
        run = slipstream.resume("runs/MyEnv-20260101-120000")

    `train` and `tune` do so by themselves with what they are given.

    Args:
        env: a Gymnasium environment, which is copied; a class or function that makes one; a list
            of functions, which make the envs in turn; or a whole vector environment (Gymnasium's,
            an SB3 `VecEnv`, an EnvPool pool).
        name: what it is called; by its class or function unless given.

    Returns:
        ``object:NAME``; the same one for the same object.

    Raises:
        ConfigError: it is none of these.
    """
    full = first = OBJECT + re.sub(r"[^\w.-]", "-", name or _default_name(env))
    number = 1
    while name is None and full in _REGISTRY and _REGISTRY[full].target is not env:
        number += 1
        full = f"{first}-{number}"
    if full not in _REGISTRY or _REGISTRY[full].target is not env:
        _REGISTRY[full] = _entry(env, full)
    return full


def object_kind(name: str) -> GymnasiumKind:
    """The kind of a registered name."""
    entry = _REGISTRY.get(name)
    return ObjectKind(name) if entry is None or entry.borrowed is None else BorrowedKind(name)


def _entry(env: Any, name: str) -> _Entry:
    inner = env.venv if type(env).__name__ == "VecMonitor" else env  # counts, and changes nothing
    if type(inner) in (SyncVectorEnv, AsyncVectorEnv):
        return _Entry(env, list(inner.env_fns), len(inner.env_fns))
    if any(hasattr(inner, own) for own in ("num_envs", "env_is_wrapped", "all_env_ids")):
        plain = type(inner).__name__ == "DummyVecEnv"
        cloned = [_cloning_env_fn(one) for one in inner.envs] if plain else [None]
        env_fns = [one for one in cloned if one is not None]
        if len(env_fns) == len(cloned):
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
    if env_fns and all(callable(one) for one in env_fns):
        return _Entry(env, env_fns, len(env_fns) if len(env_fns) > 1 else None)
    raise ConfigError(
        f"{env!r:.80} is nothing to train on: give a Gymnasium environment, a function that makes "
        "one (`lambda: MyEnv()`), a list of such functions, a vector environment of Gymnasium, "
        "EnvPool or SB3, or the name of an environment (`slipstream list`)."
    )


def _default_name(env: Any) -> str:
    """A short name for what was given."""
    env = env[0] if isinstance(env, list | tuple) and env else env
    env = env.unwrapped if isinstance(env, gymnasium.Env) else env
    own = getattr(env, "__name__", type(env).__name__)
    return own if own.isidentifier() else "environment"


class _CloneFactory:
    """Makes sub-environments of an environment as it was when it was handed over."""

    def __init__(self, name: str, data: bytes) -> None:
        self.__qualname__, self._data = name, data

    def __call__(self) -> Any:
        return pickle.loads(self._data)


def _cloning_env_fn(env: Any) -> Maker | None:
    """What makes environments of an environment object; None where there can be no other one."""
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
            f"`{name}` is an environment that another program made, and this one has not: in "
            f'Python, call `slipstream.register({env_fn}, "{short}")` first, with what '
            "made it there. Commands cannot: for them, register it with Gymnasium and train "
            "gym:MODULE:ID."
        )
    return _REGISTRY[name]


@dataclass(frozen=True)
class ObjectEnvironment(GymnasiumEnvironment):
    """One named ``object:NAME``, whose sub-environments are made by what the program gave."""

    @property
    def identity(self) -> Identity | None:
        return None  # a machine file would outlive it

    @property
    def notes(self) -> tuple[str, ...]:
        """What it costs that its rules are Python, and why no other process can step them."""
        seconds, found = self.step_seconds, list(super().notes)
        try:
            cloudpickle.dumps(_lookup(self.name).env_fns)
        except Exception as error:
            found.append(
                f"{self.name} cannot be pickled for worker processes ({error!s:.200}) "
                "and is stepped serially in this process. Use a function that creates everything "
                "inside, such as `lambda: MyEnv()`."
            )
        if seconds:
            found.append(
                f"{self.name} is stepped in Python, {1e6 * seconds:,.0f} us a step of one env "
                "here; small rules written as a kernel take about 0.1 us "
                "(docs/guides/custom-environment.md)."
            )
        return tuple(found)


@dataclass(frozen=True)
class ObjectKind(GymnasiumKind):
    """The name of what makes sub-environments."""

    noun: ClassVar[str] = "an environment object"
    loaded: ClassVar[type[GymnasiumEnvironment]] = ObjectEnvironment
    code: ClassVar[Mapping[str, str | None]] = {}

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(OBJECT)

    def default_hyperparams(self, agent_name: str) -> Sections:
        found = dict(for_gymnasium(self.name, agent_name))
        copies = _REGISTRY[self.name].num_envs if self.name in _REGISTRY else None
        training = {} if copies is None else {"num_envs": copies}
        return {**found, "training": {**found["training"], **training}}

    def env_fn(self, wrappers: Wrappers, training: Wrappers = ()) -> Any:
        if wrappers:
            raise ConfigError(f"`env.wrappers` is for gym:ID; wrap {self.name} before you give it.")
        env_fns = _lookup(self.name).env_fns
        return [WrappedEnv(one, (), training) for one in env_fns] if training else env_fns


@dataclass(frozen=True)
class BorrowedEnvironment(VectorEnvironment):
    """One named ``object:NAME`` that cannot be made again; training and evaluation share it."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"{self.name} cannot be made again from what was given (it cannot be pickled, or "
            "wrappers or processes of another library hold its envs): it is stepped as it is, "
            "serially, and training begins new episodes after each validation. A function that "
            "makes one, or a list of functions, does better.",
        )

    def make_eval_envs(
        self,
        split: str,
        copies: int,
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

    def _made(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        return _make_borrowed(self.name, seeds, indices, masked=self.spec.has_action_mask, **more)


@dataclass(frozen=True)
class BorrowedKind(VectorKind):
    """The name of sub-environments that are made already."""

    code: ClassVar[Mapping[str, str | None]] = {}

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(OBJECT)

    def default_hyperparams(self, agent_name: str) -> Sections:
        return {"training": {"num_envs": _lookup(self.name).num_envs}}

    def load(self, settings: Mapping[str, Any]) -> BorrowedEnvironment:
        name = self.name
        if any(settings.values()):
            raise ConfigError(f"{name} is made already: take all keys but the name out of `env`.")
        none = np.zeros(_lookup(name).num_envs or 1, np.uint64)
        return BorrowedEnvironment(self, _make_borrowed(name, none, none).spec, step_seconds=0.0)

    def load_folds(
        self, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> Environment:
        raise ConfigError(
            f"{self.name} is one environment, and a study needs envs of its own for every trial: "
            "give a function that makes one, slipstream.tune(lambda: MyEnv())."
        )


def _make_borrowed(name: str, seeds: Any, indices: Any, **more: Any) -> BorrowedVectorEnv:
    entry = _lookup(name)
    assert entry.borrowed is not None
    if len(seeds) != entry.num_envs:
        raise ConfigError(
            f"{name} has {entry.num_envs} sub-environments, and {len(seeds)} were asked for: leave "
            "training.num_envs and training.members out, or give a function that makes one env."
        )
    return BorrowedVectorEnv(entry.borrowed, seeds, indices, name=name, **more)
