"""Where observations are that do not lie in a ring's rows."""

from __future__ import annotations

import mmap
import tempfile
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.lines import zeros


def allocate(shape: tuple[int, ...], dtype: Any, mapped: bool) -> NDArray[Any]:
    """Zeros in memory, or in a temporary file that disappears with the process.

    A file lies in the system's folder for such (`TMPDIR`); pages that have not been used for a
    while leave the memory for it.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if not mapped or size == 0:
        return zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        block = mmap.mmap(file.fileno(), size)
    array: NDArray[Any] = np.frombuffer(block, dtype).reshape(shape)
    return array


class Storage(ABC):
    """Observations by copy and slot, beside the rings' rows.

    Attributes:
        raw: uint8 [E, S, bytes], all that is kept of each.
    """

    raw: NDArray[np.uint8]

    @abstractmethod
    def put(self, copies: NDArray[np.int64], slots: NDArray[np.int64], what: Any) -> None:
        """Keeps `what` in slots, both [n]; it has as many rows."""

    @abstractmethod
    def fetch(self, places: NDArray[np.int64], obs: NDArray[Any], after: NDArray[Any]) -> None:
        """Writes observations into obs [B, ...], those after them into `after`.

        Args:
            places: int64 [B, 3]: copy, slot, slot of the next observation.
        """

    @abstractmethod
    def differ(
        self, copies: NDArray[np.int64], slots: NDArray[np.int64], obs: NDArray[Any]
    ) -> NDArray[np.bool_]:
        """Whether the observations [n, *shape] are others than those that are kept, [n]."""


class Pixels(Storage):
    """Observations of uint8 as they are."""

    def __init__(self, copies: int, slots: int, shape: tuple[int, ...], mapped: bool) -> None:
        self._rows = allocate((copies, slots, *shape), np.uint8, mapped)
        self.raw = self._rows.reshape(copies, slots, -1)

    def put(self, copies: NDArray[np.int64], slots: NDArray[np.int64], what: Any) -> None:
        self._rows[copies, slots] = what

    def fetch(self, places: NDArray[np.int64], obs: NDArray[Any], after: NDArray[Any]) -> None:
        copies, here, there = places.T
        obs[:] = self._rows[copies, here]
        after[:] = self._rows[copies, there]

    def differ(
        self, copies: NDArray[np.int64], slots: NDArray[np.int64], obs: NDArray[Any]
    ) -> NDArray[np.bool_]:
        other = self._rows[copies, slots] != obs
        different: NDArray[np.bool_] = other.reshape(len(obs), -1).any(1)
        return different
