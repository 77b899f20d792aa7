"""Somebody else's vector environment: a function that makes so many copies, stepped as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.core.process import OverdueError, start_seconds, time_limit
from slipstream.gym.batched import BatchedCopies
from slipstream.gym.gymnasium_environment import (
    GymnasiumEnvironment,
    GymnasiumKind,
)
from slipstream.gym.making import import_named, never_made
from slipstream.kernels.vector_env import VectorEnv
from slipstream.training.environments.environment import Sections
from slipstream.training.environments.machine_file import Identity

VECTOR = "vec:"


@dataclass(frozen=True)
class VectorEnvironment(GymnasiumEnvironment):
    """One named ``vec:MODULE:FUNCTION``; ``FUNCTION(num_envs, **kwargs)`` makes the copies.

    They are a Gymnasium `VectorEnv`, an EnvPool pool or an SB3 `VecEnv`, inside `BatchedCopies`.
    """

    @property
    def identity(self) -> Identity | None:
        return None  # it is stepped as it is

    def endangers(self, copies: int) -> bool:
        return False  # the other library has threads of its own, which no fork would have

    def _serial(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], **more: Any
    ) -> VectorEnv:
        own = {"masked": self.spec.masked, **more}
        return _around(self.name, self.kwargs, seeds, indices, **own)


@dataclass(frozen=True)
class VectorKind(GymnasiumKind):
    """The name ``vec:MODULE:FUNCTION``."""

    noun: ClassVar[str] = "a vector environment of another library"
    loaded: ClassVar[type[GymnasiumEnvironment]] = VectorEnvironment
    backends: ClassVar[tuple[str, ...]] = ("auto", "serial")
    leaves: ClassVar[bool] = False  # the other library decides when

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(VECTOR).replace(":", ".")

    @property
    def code(self) -> Mapping[str, str | None]:
        return {self.name: self.name.removeprefix(VECTOR).rpartition(":")[0]}

    @property
    def module(self) -> ModuleType | None:
        raise ConfigError(
            f"{self.name} makes its copies on this machine, all at once; nodes of a cluster make "
            "their own. Leave --cluster out, or register the environment and name it "
            "gym:my_module:ID."
        )

    def suggested(self, agent_name: str) -> Sections:
        return {}

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        return None

    def load(self, settings: Mapping[str, Any]) -> GymnasiumEnvironment:
        for key in ("metrics", "wrappers", "training_wrappers"):
            if settings.get(key):
                raise ConfigError(
                    f"`env.{key}` is for gym:ID; leave it out of {self.name}, whose function makes "
                    "and wraps its copies itself."
                )
        kwargs, one = dict(settings.get("kwargs") or {}), np.zeros(1, np.uint64)
        with _around(self.name, kwargs, one, one) as probe:  # it is stepped as it is
            return VectorEnvironment(self, probe.spec, kwargs, step_seconds=0.0)

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        raise ConfigError(f"{self.name} draws no pictures; --video is for gym:ID environments.")


def _around(name: str, kwargs: Mapping[str, Any], *who: Any, **more: Any) -> VectorEnv:
    """Copies as ours."""
    copies = len(who[0])
    try:
        with time_limit(start_seconds()):
            made = _function(name)(copies, **kwargs)
    except SlipstreamError:
        raise
    except OverdueError as error:
        raise never_made(name, error) from error
    except Exception as error:
        given = "".join(f", {key}={value!r}" for key, value in kwargs.items())
        raise ConfigError(
            f"{name} raised {type(error).__name__}: {error!s:.400} when it was called with "
            f"({copies}{given}). Mend the function: it makes so many copies, and takes "
            "`env.kwargs` by name."
        ) from error
    return BatchedCopies(made, *who, name=name, **more)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.removeprefix(VECTOR).rpartition(":")
    try:
        found: Callable[..., Any] = getattr(import_named(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be found ({error}): write vec:MODULE:FUNCTION, a function that makes "
            "so many copies when it is called with their number, of a module that is installed or "
            "lies in the working folder."
        ) from error
    return found
