"""Where everything that processes share lies: arrays one after another in one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.core.process import PULSE_WORDS
from slipstream.gym.infos import MOST_BYTES
from slipstream.kernels.spec import Spec

_LINE = 64  # bytes of a cache line: what one process writes shares none with its neighbour's
WORDS = PULSE_WORDS  # uint64 that a worker shares with its parent, two lines
ORDER, DONE, REPORTS, STEP, ASKED = 0, 1, 4, 5, 6
"""Words of a worker beside `AT` and `BEAT`: its last order, the last one that is done;
reports sent so far; the step's number; how often copies were asked for one by one."""
COMMANDS = 16
"""An order is its number times this, and what to do: one word, so that nobody reads half of two."""
ASLEEP, AWAITED = 8, 9
"""Whether the worker sleeps, so that an order must wake it; whether the parent sleeps until the
worker is done, and where (`HERE`: on the worker's core, as far as there are cores)."""
WARNED = 10
"""The first of two words: `BEAT` and `AT` of the call that the signal for a hang was meant for."""
NOT, ANYWHERE, HERE = range(3)


class Field(NamedTuple):
    """One array of the block."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class Shaped(Protocol):
    """A leaf of an observation, of whichever form."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


Arrays = Mapping[str, tuple[Sequence[int], Any]]
"""Shape and dtype by name."""


@dataclass(frozen=True)
class Layout:
    """Arrays by name, and the bytes that they take.

    Attributes:
        fields: by name, in the order of their offsets.
        size: bytes in all.
        sure: bytes that are written in any case; what lies beyond (logs of actions, infos) is
            taken from the system when it is first written.
    """

    fields: Mapping[str, Field]
    size: int
    sure: int

    @classmethod
    def of(cls, arrays: Arrays, lazy: tuple[str, ...] = ()) -> Layout:
        """Arrays (shape, dtype) by name, each on lines of its own; `lazy` ones come last."""
        fields, offset, sure = {}, 0, 0
        for name in sorted(arrays, key=lambda name: name in lazy):  # else in their order
            shape, dtype = tuple(int(n) for n in arrays[name][0]), np.dtype(arrays[name][1])
            fields[name] = Field(shape, dtype, offset)
            size = dtype.itemsize
            for n in shape:
                size *= n
            offset += -(-size // _LINE) * _LINE
            if name not in lazy:
                sure = offset
        return cls(fields, max(offset, _LINE), max(sure, _LINE))

    def views(self, buffer: Any) -> dict[str, NDArray[Any]]:
        """The arrays over a buffer of `size` bytes; nothing is copied.

        The buffer cannot be closed or resized as long as anybody has one of them.
        """
        # It holds the buffer; `np.ndarray(..., buffer)` would ask for it and let go at once.
        whole = np.frombuffer(buffer, np.uint8)
        return {
            name: np.ndarray(field.shape, field.dtype, whole, field.offset)
            for name, field in self.fields.items()
        }


def copies_layout(
    spec: Spec,
    leaves: Sequence[Shaped],
    num_envs: int,
    *,
    log: tuple[int, Any] = (0, np.int64),
) -> Layout:
    """All that E copies share with who trains on them.

    Args:
        spec: of the environment.
        leaves: arrays of an observation: ``obs.i`` of the newest, ``final.i`` of the last one of
            an episode that ended at this step.
        num_envs: E.
        log: actions of an episode that are kept, and their dtype.
    """
    e, k = num_envs, spec.action_width
    arrays: dict[str, tuple[Sequence[int], Any]] = {"actions": ((e, k), spec.action_dtype)}
    arrays |= observation_arrays(leaves, e)
    arrays["reward"] = ((e,), np.float64)
    if spec.masked:
        arrays["mask"] = ((e, spec.choices), np.bool_)
    arrays |= state_arrays(e)
    arrays["astray"] = ((e,), np.bool_)
    arrays |= dict.fromkeys(("seed", "index", "episode"), ((e,), np.uint64))
    arrays |= {"ret": ((e,), np.float64), "length": ((e,), np.int64)}
    arrays |= {"ended_ret": ((e,), np.float64), "ended_length": ((e,), np.int64)}
    arrays["metrics"] = ((e, len(spec.metrics)), np.float64)
    arrays["log"] = ((e, log[0], k), log[1])
    arrays["info"] = ((e, MOST_BYTES), np.uint8)
    return Layout.of(arrays, lazy=("log", "info"))


def observation_arrays(leaves: Sequence[Shaped], num_envs: int) -> Arrays:
    """``obs.i`` and ``final.i`` [E, *leaf.shape] of every leaf."""
    return {
        f"{name}.{i}": ((num_envs, *leaf.shape), leaf.dtype)
        for i, leaf in enumerate(leaves)
        for name in ("obs", "final")
    }


def state_arrays(num_envs: int) -> Arrays:
    """How each copy's step ended, where it stands, and what is wanted of it, each [E]."""
    flags = ("terminated", "truncated", "valid", "ended", "kept", "lost", "down", "held")
    arrays: dict[str, tuple[Sequence[int], Any]] = {}
    arrays |= dict.fromkeys((*flags, "selected"), ((num_envs,), np.bool_))
    arrays["told"] = ((num_envs,), np.uint8)  # what it said besides: see `infos.py`
    arrays["tries"] = ((num_envs,), np.int64)  # of its episode, that failed
    # Steps that were asked for one by one, and those of them that are done: `send`, `recv`.
    return arrays | dict.fromkeys(("wanted", "served"), ((num_envs,), np.uint64))
