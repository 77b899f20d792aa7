"""Kernels by name; one in which several players act takes the key `self_play` beside its own."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from pydantic import Field, create_model

from slipstream.core.config import Config
from slipstream.core.discover import load_kernel
from slipstream.core.kernel import Kernel
from slipstream.training.self_play.config import SelfPlayConfig


def game_kernel(name: str) -> Kernel:
    """`load_kernel`, whose Config knows `self_play` where several players act."""
    return _extended(load_kernel(name))


@functools.cache
def _extended(kernel: Kernel) -> Kernel:
    if "player" not in inspect.signature(kernel.observe).parameters:
        return kernel
    return kernel._replace(Config=_with_self_play(kernel.Config))


@functools.cache
def _with_self_play(model: type[Config]) -> type[Config]:
    """A subclass, so that the kernel's `load` reads it as its own."""
    description = "one seat is shown, somebody else acts in the other; null: both are"
    fields: dict[str, Any] = {
        "self_play": (SelfPlayConfig | None, Field(None, description=description))
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
    )


def self_play_of(config: Config) -> SelfPlayConfig | None:
    """The section of a config that was validated; None without one."""
    found: SelfPlayConfig | None = getattr(config, "self_play", None)
    return found
