"""Functions on environments: `check`, `make_vec` and `make_adapter`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
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

EnvSource: TypeAlias = Any
"""An environment, a factory, a list of factories, or a vector environment of any library."""

# Modules of `adapters/` by library; each has a `make_vec`.
ADAPTERS = {
    "gymnasium": "gymnasium_vector",
    "sb3": "sb3",
    "elegantrl": "elegantrl",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
}


def check(target: str | Path | Mapping[str, Any], *, steps: int = 1_000, **env: Any) -> None:
    """Check a kernel against the kernel rules.

    The kernel runs interpreted and compiled, and both are compared bit for bit. `train` and `tune`
    check a kernel file automatically, once per version of the file.

    Args:
        target: as for `train`, except Gymnasium environments.
        steps: number of steps of every check run, with random actions.
        **env: fields of the environment's Config.

    Raises:
        KernelError: the first rule that is broken, with file, line and fix.
    """
    config = resolve(target, {f"env.{name}": value for name, value in env.items()})
    get_kind(config.env_name).check_rules(config.env_settings, steps)


def make_vec(
    target: str | Path | Mapping[str, Any] | EnvSource,
    num_envs: int,
    *,
    seed: int = 0,
    backend: str = "auto",
    **env: Any,
) -> VectorEnv:
    """Make a vector environment of `num_envs` sub-environments.

    ::

        env = slipstream.make_vec("cartpole", num_envs=8)
        obs = env.reset(seed=3)
        obs, reward, terminated, truncated = env.step(policy.act(obs, mask=env.mask))

    Args:
        target: as for `train`.
        num_envs: number of sub-environments.
        seed: seed of all random streams; each sub-environment has its own stream.
        backend: auto, serial, compiled or process; see docs/guides/worker-processes.md.
        **env: fields of the environment's Config; ``kwargs={...}`` for ``gym:ID``.

    Returns:
        The vector environment. `reset` and `step` return fresh arrays, or write into given arrays.
        `to_gymnasium()` and `to_sb3()` return the same environments for these libraries.

    Raises:
        SlipstreamError: the target, settings or backend cannot be used.
    """
    config = resolve(
        registered_target(target), {f"env.{name}": value for name, value in env.items()}
    )
    num_envs = check_count("num_envs", num_envs)
    environment = make_environment(config.env_name, config.env_settings)
    check_env_memory(num_envs, rollout_bytes(environment.spec, 1, 1, 1))
    # Shortened first episodes are for training only.
    made = environment.make_envs(*member_indices([as_seed(seed)], num_envs), backend, stagger=False)
    made.adapter_factory = partial(_adapt, config, num_envs, seed, backend)
    return made


def _adapt(
    config: RunConfig,
    num_envs: int,
    seed: int,
    backend: str,
    library: str,
    options: Mapping[str, Any],
) -> Any:
    """Make an adapter with the settings of a vector environment."""
    settings: dict[str, Any] = {} if backend == "auto" else {"backend": backend}
    # Gymnasium seeds its own environments by `reset(seed=...)`.
    if library != "gymnasium" or get_kind(config.env_name).compiled:
        settings["seed"] = seed
    settings = {**config.env_settings, **settings, **options}
    return make_adapter(library, config.env_name, num_envs, **settings)


def registered_target(target: Any) -> Any:
    """Return a target for `resolve`: environment objects are registered under a name."""
    if isinstance(target, str | Path | Mapping | RunConfig):
        return target
    return next(filter(None, (register(target) for register in iter_offers("register"))), target)


def make_adapter(
    library: str, target: str | Path | Mapping[str, Any], num_envs: int = 1, **options: Any
) -> Any:
    """Make an adapter: a vector environment with the interface of another library
    (docs/guides/adapters.md).

    ::

        envs = slipstream.make_adapter("sb3", "cartpole", num_envs=64)
        stable_baselines3.PPO("MlpPolicy", envs).learn(100_000)

    Args:
        library: gymnasium, sb3, elegantrl, envpool or pettingzoo.
        target: as for `make_vec`.
        num_envs: number of sub-environments.
        **options: options of the adapter's `make_vec`; fields of the environment's Config.

    Raises:
        SlipstreamError: there is no such adapter, or its library is not installed.
    """
    if library not in ADAPTERS:
        raise ConfigError(
            f"There is no adapter for {library!r}. Use one of: {', '.join(ADAPTERS)}."
        )
    module = importlib.import_module(f"slipstream.adapters.{ADAPTERS[library]}")
    return module.make_vec(str(target) if isinstance(target, Path) else target, num_envs, **options)
