"""Creation of environments from names and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.errors import ConfigError
from slipstream.core.plugins import merge_offers
from slipstream.training.environments.environment import Environment, EnvironmentKind
from slipstream.training.environments.kernel_environment import (
    KernelEnvironment,
    KernelKind,
    environment_class,
)
from slipstream.training.environments.parts import Players


class DataWindow(NamedTuple):
    """Window of an environment's data, or of other data of the same kind.

    Attributes:
        data: folder of other data.
        symbols: symbols in it; None for those of the section `env`.
        start, stop: half-open range of bars, UTC seconds.
        frozen: settings measured on the training window, which belong to the policy and not to
            the selected bars; see `frozen_settings`.
        market: data in memory, instead of those of a folder.
    """

    data: str | Path | None = None
    symbols: Sequence[str] | None = None
    start: int | None = None
    stop: int | None = None
    frozen: Mapping[str, Any] | None = None
    market: Any = None

    @property
    def overrides(self) -> dict[str, Any]:
        """Arguments of a kernel's `load_window`; empty if the section's own splits apply."""
        given = self._asdict()
        return {k: v for k, v in given.items() if v is not None and k != "frozen"}


def get_kind(name: str) -> EnvironmentKind:
    """Return the kind of a name without loading it; the name may turn out to be invalid.

    Args:
        name: a kernel's name, a path ending in ``.py``, ``gym:ID``, ``vec:MODULE:FUNCTION``
            or the name returned by `register`, ``object:NAME``.
    """
    prefix, colon, _ = name.partition(":")
    make = merge_offers("environments").get(prefix + colon) if colon else None
    kind: EnvironmentKind = KernelKind(name) if make is None else make(name)
    return kind


def get_game_class(name: str) -> type[Players] | None:
    """Load a kernel and return the class of its environments as players; None if it is no game."""
    kind = get_kind(name)
    kernel = kind.kernel if kind.is_known else None
    game_class = None if kernel is None else environment_class(kernel)
    return game_class if game_class is not None and issubclass(game_class, Players) else None


def make_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Load the environment of a section `env`; for kernels the only place that reads data.

    Args:
        name: as for `get_kind`.
        settings: other keys of the section: the kernel's own Config, or ``kwargs`` of a Gymnasium
            environment.
    """
    return get_kind(name).load(settings)


def resolve_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Load an environment for training; see `training_environment`."""
    return training_environment(make_environment(name, settings))


def training_environment(environment: Environment) -> Environment:
    """Return the environment if agents can be trained on it.

    Raises:
        ConfigError: it has more than one player.
    """
    players = environment.spec.players
    if players > 1:
        raise ConfigError(
            f"`{environment.name}` has {players} players, but training requires one. Choose an "
            "opponent: `env.self_play: {}` for snapshots of the learner, or "
            "`env.self_play: {opponents: {random: 1}}` for random actions "
            "(docs/guides/self-play.md). Or step all players with slipstream.make_vec."
        )
    return environment


def load_environment(name: str, settings: Mapping[str, Any], window: DataWindow) -> Environment:
    """Load a run's environment, with one window of (other) data if the window is not empty.

    Raises:
        ConfigError: the environment has no data to select from.
    """
    return (
        load_window(name, settings, window)
        if window.overrides
        else resolve_environment(name, settings)
    )


def load_window(name: str, settings: Mapping[str, Any], window: DataWindow) -> KernelEnvironment:
    """Load an environment with one window of (other) data as its only test data.

    Raises:
        ConfigError: it has no data to select from.
    """
    kind = get_kind(name)
    load = kind.kernel.hook("load_window") if isinstance(kind, KernelKind) else None
    if not isinstance(kind, KernelKind) or load is None:
        raise ConfigError(
            f"{kind.short_name} has no prices to select from. Leave out --data, --symbols, "
            "--from and --to."
        )
    carried = {
        key: value
        for key, value in (window.frozen or {}).items()
        if settings.get(key) is None  # determined by the data
    }
    config = kind.kernel.configure({**settings, **carried})
    return KernelEnvironment.from_loaded(kind, kind.kernel, load(config, **window.overrides))


def frozen_settings(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's training window determined, from its provenance."""
    return dict((provenance.get("environment") or {}).get("carried") or {})
