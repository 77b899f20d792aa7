"""Copies of any environment by name, for the faces that step all of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import AutoresetMode

from slipstream.adapters.batch import FaceCopies
from slipstream.adapters.foreign_batch import make_foreign_batch
from slipstream.adapters.kernel_batch import make_kernel_batch
from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.environments.factory import kind_of
from slipstream.environments.gymnasium_environment import (
    GymnasiumEnvironment,
    maker,
    wrappers_of,
)
from slipstream.settings.config import resolve


def make_batch(
    target: str | Mapping[str, Any],
    num_envs: int,
    *,
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
    backend: str = "auto",
    split: str = "train",
    workers: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> FaceCopies:
    """Copies of a kernel or of a Gymnasium environment.

    Args:
        target: as for `slipstream.make_vec`: a kernel's name or file, ``gym:ID``, a YAML file.
        num_envs: E.
        autoreset: what follows an episode's end.
        backend: of a kernel auto (compiled), compiled or serial; of ``gym:ID`` process (auto) or
            serial.
        split: of a market's prices.
        workers: processes of ``gym:ID``.
        seed: random streams before the first `reset` with seeds.
        settings: fields of the environment's Config; ``kwargs`` and ``wrappers`` of ``gym:ID``.

    Raises:
        ConfigError: unknown names, settings or backends.
    """
    num_envs = check_count("num_envs", num_envs)
    config = resolve(target, {f"env.{name}": value for name, value in (settings or {}).items()})
    if kind_of(config.env_name) is not GymnasiumEnvironment:
        return make_kernel_batch(
            target,
            num_envs,
            autoreset=autoreset,
            backend=backend,
            split=split,
            workers=workers,
            seed=seed,
            settings=settings,
        )
    if split != "train":
        raise ConfigError(f"{config.env_name} has no split {split!r}: only prices are split.")
    return make_foreign_batch(
        maker(config.env_name, wrappers_of(config.env_settings)),
        num_envs,
        kwargs=config.env_settings.get("kwargs"),
        autoreset=autoreset,
        backend=backend,
        workers=workers,
        seed=seed,
    )
