"""What a worker is told once: which copies it has, what they are, and where everything lies."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.vector.process.layout import Layout

NO_BEGIN, NEXT, SAME = range(3)
"""With which episodes a new worker begins: none until told, the next ones, or those it had."""


@dataclass(frozen=True)
class Kernel:
    """Copies of a kernel: its name or path, and its settings; every worker loads it."""

    target: str
    settings: Mapping[str, Any]
    split: str
    backend: str


@dataclass(frozen=True)
class Foreign:
    """Copies of a Gymnasium environment.

    Attributes:
        env: an id, or what makes one when called.
        kwargs: keyword arguments.
        limit: steps after which an episode is cut.
        registered: pickled specification of an id that only the parent may know.
    """

    env: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    registered: bytes | None = None


@dataclass(frozen=True)
class Job:
    """One worker's part.

    Attributes:
        what: the environment.
        spec: of it, by the parent's own copy; all copies must agree.
        layout: of the block.
        worker, workers: its number, and how many there are.
        lo, hi: its copies.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
        restart: copies that fail are begun again, else they wait for a reset.
        first: NO_BEGIN, NEXT or SAME.
        spin: seconds of looking before it sleeps.
    """

    what: Kernel | Foreign
    spec: Spec
    layout: Layout
    worker: int
    workers: int
    lo: int
    hi: int
    at_end: int
    restart: bool
    first: int
    spin: float


def registered(env_id: str) -> bytes | None:
    """The specification of an id, for processes in which nobody registered it."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None:
        return None
    try:
        return bytes(cloudpickle.dumps(spec))
    except Exception:  # then the worker must find it by itself, and says so if it cannot
        return None


def register(data: bytes | None) -> None:
    """In a worker: makes an id known that no import has registered."""
    if data is None:
        return
    spec = pickle.loads(data)
    gymnasium.registry.setdefault(spec.id, spec)


def packed(job: Job) -> bytes:
    """A job as it travels, once per worker: functions of the main program by value.

    Raises:
        ConfigError: something in it cannot travel.
    """
    try:
        return bytes(cloudpickle.dumps(job))
    except Exception as error:
        raise ConfigError(
            f"The environment cannot be handed to worker processes: {error!s:.300}. Give the "
            "function that makes it nothing but plain values, and build files, locks and "
            "connections inside it; or use `backend: serial`."
        ) from error
