"""The section `env.self_play` of two-player kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, field_serializer

from slipstream.core.bounds import Count, Share, Weight
from slipstream.core.config import Config, tunable
from slipstream.core.errors import ConfigError, KernelError
from slipstream.kernels.kernel import Kernel
from slipstream.training.environments.parts import RANDOM, SNAPSHOTS

Opponents = Annotated[dict[str, Weight], Field(min_length=1)]


class SelfPlayConfig(Config):
    """Self-play settings: one player learns, chosen at random for every episode.

    The other player is one of these opponents: `snapshots` (frozen earlier weights of the learner),
    `random` (any allowed action), the directory of a run, the folder of a policy, or an .onnx file.
    Bots of a game are chosen by keys of its kernel.
    """

    opponents: Opponents = Field(
        {SNAPSHOTS: 1.0},
        description="opponents in training, name: weight; drawn at the start of every episode",
    )
    evaluation: Opponents | None = Field(
        None,
        description="opponents in evaluations; null: the kernel's suggestion, else random",
    )
    slots: Annotated[int, Field(ge=1, le=256)] = Field(
        8,
        description="maximum number of snapshots; a new one replaces the oldest",
        json_schema_extra=tunable(choices=[4, 8, 16, 32], by_default=False),
    )
    snapshot_iterations: Count | None = Field(
        10,
        description="iterations between snapshots; null: not triggered by iterations",
        json_schema_extra=tunable(1, 100, log=True, by_default=False),
    )
    snapshot_episodes: Count | None = Field(
        None,
        description="episodes between snapshots, rounded up to iterations; null: not triggered by "
        "episodes",
    )
    snapshot_win_rate: Share | None = Field(
        None,
        description="share of points since the last snapshot that triggers the next one (a draw is "
        "half a point); null: not triggered by wins",
        json_schema_extra=tunable(0.55, 0.9, by_default=False),
    )
    gate_episodes: Count = Field(
        100, description="minimum number of episodes for `snapshot_win_rate`"
    )
    sampling: Literal["uniform", "latest", "pfsp"] = Field(
        "uniform",
        description="distribution over snapshots; pfsp: by the learner's win rate against each",
        json_schema_extra=tunable(choices=["uniform", "latest", "pfsp"], by_default=False),
    )
    pfsp_weighting: Literal["hard", "even"] = Field(
        "hard",
        description="PFSP weight for a win rate w; hard: (1 - w)^2; even: w (1 - w)",
        json_schema_extra=tunable(choices=["hard", "even"], by_default=False),
    )
    deterministic: bool = Field(
        False, description="opponents take their most likely action; else they sample"
    )

    @field_serializer("opponents", "evaluation", when_used="json")
    def _absolute_paths(self, opponents: Mapping[str, float] | None) -> dict[str, float] | None:
        """Make paths absolute, so that a run can be resumed from any directory."""
        return (
            None
            if opponents is None
            else {_absolute_path(name): w for name, w in opponents.items()}
        )

    @property
    def needs_results(self) -> bool:
        """Return whether the settings depend on match results."""
        return self.sampling == "pfsp" or self.snapshot_win_rate is not None


def is_file(name: str) -> bool:
    """Return whether a name exists on disk or looks like a file."""
    return name.endswith(".onnx") or Path(name).expanduser().exists()


def _absolute_path(name: str) -> str:
    is_path = name not in (SNAPSHOTS, RANDOM) and is_file(name)
    return str(Path(name).expanduser().resolve()) if is_path else name


DEFAULTS = SelfPlayConfig.model_validate({})


@functools.cache  # compiled code is found by the identity of the kernel
def with_self_play_key(kernel: Kernel) -> Kernel:
    """Return the kernel of a game with the key `self_play` in its Config."""
    return kernel._replace(Config=_with_self_play(kernel.Config))


@functools.cache
def _with_self_play(model: type[Config]) -> type[Config]:
    """Return a subclass of the Config, so that the kernel's `load` accepts it."""
    description = "train one player against opponents; null: both players act from outside"
    fields: dict[str, Any] = {
        "self_play": (SelfPlayConfig | None, Field(None, description=description))
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
    )


def with_default_opponent(
    kernel: Kernel, settings: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """Return a section `env` with a default opponent if a game for two players names none.

    The default is the constant `OPPONENTS` of the kernel's module, else snapshots of the learner.

    Args:
        kernel: kernel, as returned by `extended`.
        settings: complete section `env`.

    Returns:
        The section, and a message that names the opponent; None if none was missing.

    Raises:
        KernelError: the constant is not valid in a section `env`.
    """
    if settings.get("self_play") is not None:
        return settings, None
    loaded = kernel.load(kernel.configure(settings))
    if kernel.spec(loaded.params["train"][0], loaded.data).players != 2:
        return settings, None
    suggestion = _suggested_opponents(kernel, settings)
    try:
        section = kernel.configure({**settings, **suggestion}).model_dump(mode="json")
    except ConfigError:  # other keys choose the players
        return settings, None
    key, value = next(iter(suggestion.items()))
    weights = ", ".join(f"{name}: {weight}" for name, weight in value.items())
    source = "the kernel's suggestion" if weights else "snapshots of the learner"
    return section, (
        f"{kernel.name} is a game for two players and the config names no opponent. The run trains "
        f"with `env.{key}: {{{weights}}}`, {source}."
    )


def _suggested_opponents(
    kernel: Kernel, settings: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the validated constant `OPPONENTS` of a kernel's module."""
    suggestion: Any = getattr(kernel.module, "OPPONENTS", {"self_play": {}})
    where = f"OPPONENTS in {kernel.module.__file__}"
    fix = 'Write OPPONENTS = {"self_play": {"opponents": {"random": 1.0}}}, or remove it.'
    sections = list(suggestion.values()) if isinstance(suggestion, Mapping) else []
    if not sections or not all(isinstance(value, Mapping) for value in sections):
        raise KernelError(
            f"{where} must map keys of section `env` to mappings, got {suggestion!r}. {fix}"
        )
    # Validated with default settings: a conflict with the user's settings is no error here.
    fields = kernel.Config.model_fields
    required = {key: settings[key] for key, field in fields.items() if field.is_required()}
    try:
        kernel.configure({**required, **suggestion})
    except ConfigError as error:
        raise KernelError(f"{where} is not valid: {error} {fix}") from error
    return dict(suggestion)


def get_self_play(config: Config) -> SelfPlayConfig | None:
    """Return the section `self_play` of a validated config; None without one."""
    section: SelfPlayConfig | None = getattr(config, "self_play", None)
    return section
