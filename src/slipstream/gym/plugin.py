"""Plugin of the environments of other libraries; see `core/plugins.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.training.environments.environment import EnvironmentKind


def _gymnasium(name: str) -> EnvironmentKind:
    from slipstream.gym.gymnasium_environment import GymnasiumKind

    return GymnasiumKind(name)


def _vector(name: str) -> EnvironmentKind:
    from slipstream.gym.vector_environment import VectorKind

    return VectorKind(name)


def _object(name: str) -> EnvironmentKind:
    from slipstream.gym.object_environment import object_kind

    return object_kind(name)


def register(target: Any) -> str:
    """Register an environment, a function that creates one, or a vector environment."""
    from slipstream.gym import object_environment

    return object_environment.register(target)


environments = {"gym:": _gymnasium, "vec:": _vector, "object:": _object}
