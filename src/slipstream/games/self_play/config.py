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
    """The agent is shown one seat, drawn for every episode; somebody else acts in the other one.

    An opponent is called by a name: `snapshots` (frozen earlier weights of the learner itself),
    `random` (any action that is allowed), the directory of a run, the folder of a policy, or a file
    that ends in .onnx. Players of a game's own are named in the kernel's keys.
    """

    opponents: Opponents = Field(
        {SNAPSHOTS: 1.0},
        description="who is met in training, name: weight; drawn at the start of every episode",
    )
    evaluation: Opponents | None = Field(
        None,
        description="who is met in evaluations; null: as the kernel suggests, else random",
    )
    slots: Annotated[int, Field(ge=1, le=256)] = Field(
        8,
        description="snapshots kept; the next one takes the place of the oldest",
        json_schema_extra=tunable(choices=[4, 8, 16, 32], by_default=False),
    )
    snapshot_iterations: Count | None = Field(
        10,
        description="iterations between two snapshots; null: they do not count",
        json_schema_extra=tunable(1, 100, log=True, by_default=False),
    )
    snapshot_episodes: Count | None = Field(
        None, description="episodes between two snapshots, the iteration filled up; null: as above"
    )
    snapshot_win_rate: Share | None = Field(
        None,
        description="a snapshot is taken once this share of points was won since the last (a draw "
        "is half a point); null: never for that",
        json_schema_extra=tunable(0.55, 0.9, by_default=False),
    )
    gate_episodes: Count = Field(
        100, description="decided and drawn episodes that such a share needs at least"
    )
    sampling: Literal["uniform", "latest", "pfsp"] = Field(
        "uniform",
        description="which snapshot is met; pfsp: by how often it is beaten",
        json_schema_extra=tunable(choices=["uniform", "latest", "pfsp"], by_default=False),
    )
    pfsp_weighting: Literal["hard", "even"] = Field(
        "hard",
        description="hard: (1 - w)^2 for a win rate w; even: w (1 - w)",
        json_schema_extra=tunable(choices=["hard", "even"], by_default=False),
    )
    deterministic: bool = Field(
        False, description="opponents take their most likely action, else they draw it"
    )

    @field_serializer("opponents", "evaluation", when_used="json")
    def _absolute_paths(self, opponents: Mapping[str, float] | None) -> dict[str, float] | None:
        """Make the names of files absolute, so that a run can be resumed from anywhere."""
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
    own = name not in (SNAPSHOTS, RANDOM) and is_file(name)
    return str(Path(name).expanduser().resolve()) if own else name


DEFAULTS = SelfPlayConfig.model_validate({})


@functools.cache  # the same object for the same kernel: what is compiled for it is found by it
def with_self_play_key(kernel: Kernel) -> Kernel:
    """Return the kernel of a game with the key `self_play` in its Config."""
    return kernel._replace(Config=_with_self_play(kernel.Config))


@functools.cache
def _with_self_play(model: type[Config]) -> type[Config]:
    """Return a subclass of the Config, so that the kernel's `load` accepts it."""
    description = "one seat is shown, somebody else acts in the other; null: both are"
    fields: dict[str, Any] = {
        "self_play": (SelfPlayConfig | None, Field(None, description=description))
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
    )


def with_default_opponent(
    kernel: Kernel, settings: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str | None]:
    """A section `env` with somebody in a game's second seat, where it leaves that open.

    That is whom the kernel's module suggests in its constant `OPPONENTS`, else the learner's own
    past.

    Args:
        kernel: as `extended` returns it.
        settings: complete.

    Returns:
        The section, and a sentence that says who it is; None where nothing was open.

    Raises:
        KernelError: the constant is no part of a section `env`.
    """
    if settings.get("self_play") is not None:
        return settings, None
    loaded = kernel.load(kernel.configure(settings))
    if kernel.spec(loaded.params["train"][0], loaded.data).players != 2:
        return settings, None
    suggested = _suggested(kernel, settings)
    try:
        chosen = kernel.configure({**settings, **suggested}).model_dump(mode="json")
    except ConfigError:  # who has the seats is said otherwise
        return settings, None
    key, value = next(iter(suggested.items()))
    shown = ", ".join(f"{name}: {one}" for name, one in value.items())
    return chosen, (
        f"{kernel.name} is a game of two, and nobody was named for the second seat: it is trained "
        f"with `env.{key}: {{{shown}}}`, {'as the kernel suggests' if shown else 'its own past'}."
    )


def _suggested(kernel: Kernel, settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the validated constant `OPPONENTS` of a kernel's module."""
    found: Any = getattr(kernel.module, "OPPONENTS", {"self_play": {}})
    where = f"OPPONENTS in {kernel.module.__file__}"
    remedy = 'Write OPPONENTS = {"self_play": {"opponents": {"random": 1.0}}}, or leave it out.'
    sections = list(found.values()) if isinstance(found, Mapping) else []
    if not sections or not all(isinstance(value, Mapping) for value in sections):
        raise KernelError(
            f"{where} must be the part of a section `env` that says who is trained against, a "
            f"mapping of keys to mappings; it is {found!r}. {remedy}"
        )
    # Beside defaults: what contradicts it in the user's own settings is no fault of the constant.
    fields = kernel.Config.model_fields
    needed = {key: settings[key] for key, field in fields.items() if field.is_required()}
    try:
        kernel.configure({**needed, **found})
    except ConfigError as error:
        raise KernelError(f"{where} cannot be used: {error} {remedy}") from error
    return dict(found)


def get_self_play(config: Config) -> SelfPlayConfig | None:
    """Return the section `self_play` of a validated config; None without one."""
    found: SelfPlayConfig | None = getattr(config, "self_play", None)
    return found
