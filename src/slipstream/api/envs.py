"""Environments by themselves: `check`, `make_vec` and `make_adapter`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.core.bounds import check_count, check_env_memory
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import iter_offers
from slipstream.kernels.vector_env import VectorEnv, as_seed, member_indices
from slipstream.rl.experience.rollout import rollout_bytes
from slipstream.training.environments.factory import (
    get_kind,
    make_environment,
)
from slipstream.training.settings.config import RunConfig, resolve

Given: TypeAlias = Any
"""An environment, what makes one, a list of makers, or a vector environment of any library."""

# Libraries, and the files of `adapters/` that are their faces: each has a `make_vec`.
FACES = {
    "gymnasium": "gymnasium_vector",
    "sb3": "sb3",
    "elegantrl": "elegantrl",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
}


def check(target: str | Path | Mapping[str, Any], *, steps: int = 1_000, **env: Any) -> None:
    """Runs a kernel under watch, interpreted and compiled, and compares both bit for bit.

    `train` and `tune` do so by themselves with a kernel file, once for each version of it.

    Args:
        target: as for `train`, but no Gymnasium environment.
        steps: of every run, with random actions.
        **env: fields of the environment's Config.

    Raises:
        KernelError: the first rule found broken, with file, line and remedy.
    """
    config = resolve(target, {f"env.{name}": value for name, value in env.items()})
    get_kind(config.env_name).check_rules(config.env_settings, steps)


def make_vec(
    target: str | Path | Mapping[str, Any] | Given,
    num_envs: int,
    *,
    seed: int = 0,
    backend: str = "auto",
    **env: Any,
) -> VectorEnv:
    """`num_envs` copies of an environment stepped together.

    ::

        env = slipstream.make_vec("cartpole", num_envs=8)
        obs = env.reset(seed=3)
        obs, reward, terminated, truncated = env.step(policy.act(obs, mask=env.mask))

    Args:
        target: as for `train`.
        num_envs: how many.
        seed: their random streams follow from it and their index.
        backend: auto, serial, compiled or process; see docs/workers.md.
        **env: fields of the environment's Config; ``kwargs={...}`` for ``gym:ID``.

    Returns:
        The copies: `reset` and `step` return fresh arrays, or write into the caller's.

    Raises:
        SlipstreamError: with one paragraph that says what to do.
    """
    config = resolve(named(target), {f"env.{name}": value for name, value in env.items()})
    num_envs = check_count("num_envs", num_envs)
    environment = make_environment(config.env_name, config.env_settings)
    check_env_memory(num_envs, rollout_bytes(environment.spec, 1, 1, 1))
    # First episodes of random length are for learning: here every episode is whole.
    return environment.make_envs(*member_indices([as_seed(seed)], num_envs), backend, stagger=False)


def named(target: Any) -> Any:
    """Return a target as `resolve` takes it: environment objects by their names."""
    if isinstance(target, str | Path | Mapping | RunConfig):
        return target
    return next(filter(None, (register(target) for register in iter_offers("register"))), target)


def make_adapter(
    library: str, target: str | Path | Mapping[str, Any], num_envs: int = 1, **options: Any
) -> Any:
    """Copies of an environment as another library expects them (docs/faces.md).

    ::

        envs = slipstream.make_adapter("sb3", "cartpole", num_envs=64)
        stable_baselines3.PPO("MlpPolicy", envs).learn(100_000)

    Args:
        library: gymnasium, sb3, elegantrl, envpool or pettingzoo.
        target: as for `make_vec`.
        num_envs: how many.
        **options: of that face's `make_vec`; fields of the environment's Config.

    Raises:
        SlipstreamError: no such face, or its library is not installed; says what to do.
    """
    if library not in FACES:
        raise ConfigError(f"There is no face for {library!r}; there are {', '.join(FACES)}.")
    module = importlib.import_module(f"slipstream.adapters.{FACES[library]}")
    return module.make_vec(str(target) if isinstance(target, Path) else target, num_envs, **options)
