"""The one place where environments are made: from a name and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import ConfigError
from slipstream.environments.environment import Environment
from slipstream.environments.gymnasium_environment import GYMNASIUM, GymnasiumEnvironment
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.environments.vector_environment import VECTOR, VectorEnvironment

if TYPE_CHECKING:
    from slipstream.settings.config import RunConfig


def kind_of(name: str) -> type[Environment]:
    """The class that a name means; nothing is loaded, and the name may turn out to be none.

    Args:
        name: a kernel's name, a path ending in ``.py``, ``gym:ID`` or ``vec:MODULE:FUNCTION``.
    """
    if name.startswith(VECTOR):
        return VectorEnvironment
    return GymnasiumEnvironment if name.startswith(GYMNASIUM) else KernelEnvironment


def make_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Loads what the `env` section names; for kernels the only place that reads data.

    Args:
        name: as for `kind_of`.
        settings: the section's other keys: the kernel's own Config, or a Gymnasium environment's
            ``kwargs``.
    """
    return kind_of(name).load(name, settings)


def resolve_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """The same, to be trained on; see `trainable`."""
    return trainable(make_environment(name, settings))


def trainable(environment: Environment) -> Environment:
    """The same environment, if agents can be trained on it.

    Raises:
        ConfigError: it has more players than one.
    """
    players = environment.spec.players
    if players > 1:
        raise ConfigError(
            f"`{environment.name}` has {players} players, and an agent is trained in one seat. Say "
            "who acts in the other one: `env.self_play: {}` is its own past, "
            "`env.self_play: {opponents: {random: 1}}` anything allowed (docs/self-play.md); or "
            "step all of them with slipstream.make_vec."
        )
    return environment


def chosen_environment(
    config: RunConfig,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    carried: Mapping[str, Any] | None = None,
) -> Environment:
    """A run's environment; with any of the options, one window of (other) prices.

    Args:
        config: of the run.
        data: folder of other prices of the same kind.
        symbols: which of them; those of the run unless given.
        start, stop: half-open range of bars, UTC seconds.
        carried: settings measured on the training window, which belong to the policy and not to
            the chosen bars; see `carried_settings`.

    Raises:
        ConfigError: the environment has no prices to choose from.
    """
    name, settings = config.env_name, config.env_settings
    if data is None and symbols is None and start is None and stop is None:
        return resolve_environment(name, settings)
    return kind_of(name).load_window(
        name,
        settings,
        data=data,
        symbols=symbols,
        start=start,
        stop=stop,
        carried=carried,
    )


def carried_settings(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's training window decided for its policies, from the run's provenance."""
    return dict((provenance.get("environment") or {}).get("carried") or {})
