"""A replay in pieces for checkpoints: a piece that is full is written once.

A copy's slots are counted from the beginning of training; a chunk holds the same `length` numbers
of every copy of a member. It is named by its place and its content, so a chunk that was written
never has to be written again, and no other content can be taken for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNKS = 64  # of a whole ring
PRIORITIES = "priorities"

Made = Callable[[], NDArray[Any]]


class Chunks:
    """The chunks of one member.

    Args:
        arrays: uint8 [N, S, bytes], what is kept of each slot; several, side by side.
        leaves: float32 [N S], priorities; empty without.
        keep: slots that are saved, counted back from the newest; None: all.
    """

    def __init__(
        self,
        arrays: list[NDArray[np.uint8]],
        leaves: NDArray[np.float32],
        keep: int | None = None,
    ) -> None:
        self._arrays, self._leaves = arrays, leaves
        self._slots = arrays[0].shape[1]
        self._keep = self._slots if keep is None else min(keep, self._slots)
        self._length = -(-self._slots // CHUNKS)
        self._names: dict[int, str] = {}  # of full chunks

    def save(self, written: NDArray[np.int64]) -> Mapping[str, Made]:
        """What makes each chunk, by its name.

        Args:
            written: int64 [N], slots that each copy has left behind.
        """
        full = int(written.min()) // self._length
        oldest = max(0, int(written.min()) - self._keep + 1) // self._length
        chunks: dict[str, Made] = {}
        self._names = {k: name for k, name in self._names.items() if k >= oldest}
        for k in range(oldest, int(written.max()) // self._length + 1):
            if k in self._names:
                chunks[self._names[k]] = _Later(self, k, written.copy())
                continue
            content = self._content(k, written)
            name = f"{k:08d}-{_digest(content)}"
            chunks[name] = _Now(content)
            if k < full:
                self._names[k] = name
        if len(self._leaves):
            leaves = self._leaves.copy()
            chunks[f"{PRIORITIES}-{_digest(leaves)}"] = _Now(leaves)
        return chunks

    def load(self, written: NDArray[np.int64], chunks: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Puts chunks of `save` where they were; slots that have been written over are left out."""
        full = int(written.min()) // self._length
        for name, content in chunks:
            place, _, _ = name.partition("-")
            if place == PRIORITIES:
                self._leaves[:] = content
                continue
            k = int(place)
            self._put(k, written, content)
            if k < full:
                self._names[k] = name

    def forget(self, number: int) -> None:
        """A slot of this number was changed after it was left behind."""
        self._names.pop(number // self._length, None)

    def _live(self, k: int, written: NDArray[np.int64]) -> tuple[Any, Any]:
        """Slots [Q] of chunk k; whether each copy still has what was written there, [N, Q]."""
        numbers = k * self._length + np.arange(self._length)
        behind = written[:, None] - numbers
        return numbers % self._slots, (behind >= 0) & (behind < self._keep)

    def _content(self, k: int, written: NDArray[np.int64]) -> NDArray[np.uint8]:
        slots, live = self._live(k, written)
        width = sum(array.shape[2] for array in self._arrays)
        content = np.empty((*live.shape, width), np.uint8)
        np.concatenate([array[:, slots] for array in self._arrays], axis=2, out=content)
        content[~live] = 0
        return content

    def _put(self, k: int, written: NDArray[np.int64], content: NDArray[np.uint8]) -> None:
        slots, live = self._live(k, written)
        copies, places = np.nonzero(live)
        begin = 0
        for array in self._arrays:
            end = begin + array.shape[2]
            array[copies, slots[places]] = content[copies, places, begin:end]
            begin = end


class _Later:
    """Makes a chunk when it turns out that there is no file of it."""

    def __init__(self, chunks: Chunks, k: int, written: NDArray[np.int64]) -> None:
        self._chunks, self._k, self._written = chunks, k, written

    def __call__(self) -> NDArray[Any]:
        return self._chunks._content(self._k, self._written)


class _Now:
    """A chunk that was made to name it."""

    def __init__(self, content: NDArray[Any]) -> None:
        self._content = content

    def __call__(self) -> NDArray[Any]:
        return self._content


def _digest(content: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(content).data).hexdigest()[:16]
