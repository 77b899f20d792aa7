"""Means that a parent and its workers share: a block of arrays, words, and bells.

A `Layout` says where arrays lie in one block; a `Block` is that memory, which has no name, so that
nothing of it can be left behind. Each worker shares further words with its parent, by which orders
are given and reported done. Who waits for such a word spins for a while, then sleeps until a `Bell`
rings.
"""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.capacity import free_memory
from slipstream.core.child_process import HEARTBEAT_WORDS
from slipstream.core.errors import ResourceError

_LINE = 64  # bytes of a cache line: what one process writes shares none with its neighbour's
WORDS = HEARTBEAT_WORDS  # uint64 that a worker shares with its parent, two lines
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


Shapes = Mapping[str, tuple[Sequence[int], Any]]
"""Shape and dtype by name."""


@dataclass(frozen=True)
class Layout:
    """Shapes by name, and the bytes that they take.

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
    def of(cls, arrays: Shapes, lazy: tuple[str, ...] = ()) -> Layout:
        """Shapes (shape, dtype) by name, each on lines of its own; `lazy` ones come last."""
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


_SHARE = 0.8  # of free memory


def anonymous_file(size: int, sure: int = 0) -> int:
    """Descriptor of a file without a name, `size` bytes of zeros, of which `sure` are reserved.

    On Linux it is memory (`memfd_create`); elsewhere a temporary file, unlinked at once.

    Raises:
        OSError: there is no room.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("slipstream", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        if sure and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, sure)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SharedBlock:
    """The arrays of a layout in shared memory.

    Args:
        layout: what lies where.
        fd: of the block that another process made; a new one unless given.

    Attributes:
        fd: descriptor, to be handed to other processes.

    Raises:
        ResourceError: it is larger than the memory that is free; says how much is needed.
    """

    def __init__(self, layout: Layout, fd: int | None = None) -> None:
        if fd is None:
            fd = _made(layout)
        self.layout, self.fd = layout, fd
        self._memory: mmap.mmap | None = mmap.mmap(fd, layout.size)
        self.arrays: dict[str, NDArray[Any]] = layout.views(self._memory)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def close(self) -> None:
        """Lets go; the memory is the system's again once nobody has a view of it.

        May be called again.
        """
        self.arrays = {}
        memory, self._memory = self._memory, None
        if memory is None:
            return
        with suppress(OSError):
            os.close(self.fd)
        with suppress(BufferError):  # somebody still has a view: it goes with that
            memory.close()


def _made(layout: Layout) -> int:
    free = free_memory()
    why = ""
    if layout.sure <= _SHARE * free:
        try:
            return anonymous_file(layout.size, layout.sure)
        except OSError as error:
            why = f" ({error.strerror})"
    raise ResourceError(
        f"The copies' shared memory needs {layout.sure / 2**20:,.1f} MiB, and {free / 2**20:,.1f} "
        f"MiB are free{why}. Lower the number of copies, or let the environment show less."
    )


class PipeEvent:
    """A pipe. Ringing never blocks and is never lost.

    Linux takes a write into a pipe for a sign that who writes is about to sleep, as who rings is,
    and wakes who listens on the same core, where it need not wait for another one to stir. Of an
    eventfd it expects nothing, and puts two that are woken at once behind each other.

    Args:
        fds: (to hear, to ring) of a bell that was handed over; a new one unless given.
    """

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        if fds is None:
            fds = os.pipe()
            for fd in fds:
                os.set_blocking(fd, False)
        self.fds = fds

    def ring(self) -> None:
        """Wakes who listens now or later."""
        try:
            os.write(self.fds[1], b"!")
        except (BlockingIOError, BrokenPipeError):
            return  # it rings already; nobody is left

    def hush(self) -> None:
        """Ends the ringing."""
        try:
            while len(os.read(self.fds[0], _MOST)) == _MOST:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Once."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


_MOST = 4096


SPIN_SECONDS = 50e-6  # about what being woken costs
POLL_MS = 50  # longest sleep between two looks at workers that say nothing
ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Writes of one core are seen in their order by the others."""
_LOCK = threading.Lock()
_LOOKS = 16  # between two looks at the clock


def spin_seconds(others: int, cores: int) -> float:
    """Seconds of spinning before sleeping, while so many others may be at work.

    Not at all where they need every core: who looks would take the time from who works. Nor where
    another core may see "done" before what was done.
    """
    return SPIN_SECONDS if ORDERED and others < cores else 0.0


def fence() -> None:
    """What was written before is seen by others before anything that is read after it.

    Two processes that each leave a note and then look for the other's need it, or both may miss it.
    """
    with _LOCK:  # a locked instruction, without a call of the system
        pass  # neither a signal's exception nor a finalizer comes before it is let go


def spin(ready: Callable[[], bool], seconds: float) -> bool:
    """Looks for so long whether something is ready."""
    if seconds <= 0.0:
        return ready()
    end = time.perf_counter() + seconds
    while True:
        for _ in range(_LOOKS):
            if ready():
                return True
        if time.perf_counter() > end:
            return False


def poll_ms(hang_seconds: float) -> int:
    """Longest sleep between two looks at workers that say nothing."""
    return int(min(POLL_MS, max(1.0, 250.0 * hang_seconds)))
