"""Shared memory and events between a parent and its workers.

A `Layout` describes arrays in one block of memory. A `SharedBlock` is that memory; it is anonymous,
so nothing remains after a crash. Each worker also shares words with its parent that carry commands
and their completion. A waiting process spins for a while, then sleeps until a `PipeEvent` is set.
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

_LINE = 64  # bytes of a cache line; prevents false sharing between processes
WORDS = HEARTBEAT_WORDS  # uint64 words shared by a worker and its parent, two cache lines
COMMAND, DONE, REPORTS, STEP, REQUESTS = 0, 1, 4, 5, 6
"""Indices of a worker's words beside `AT` and `BEAT`: last command, last completed command, number
of reports sent, step number, number of requests for single steps."""
NUM_COMMANDS = 16
"""A command word is its sequence number times this plus the command, so that one read is atomic."""
ASLEEP, WAITING = 8, 9
"""Words for sleeping processes: the worker must be woken; the parent waits for the worker.

With `SAME_CORE`, the parent is preferably woken on the worker's core.
"""
HANG_WARNING = 10
"""First of two words: `BEAT` and `AT` of the call that the hang signal is sent for."""
NOT_WAITING, ANY_CORE, SAME_CORE = range(3)


class Field(NamedTuple):
    """Position of one array in the block."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


Shapes = Mapping[str, tuple[Sequence[int], Any]]
"""Shape and dtype by name."""


@dataclass(frozen=True)
class Layout:
    """Layout of named arrays in one block of memory.

    Attributes:
        fields: Arrays by name, in the order of their offsets.
        size: Total number of bytes.
        reserved_size: Bytes allocated in advance. The system allocates the rest (action logs,
            infos) at the first write.
    """

    fields: Mapping[str, Field]
    size: int
    reserved_size: int

    @classmethod
    def of(cls, arrays: Shapes, lazy: tuple[str, ...] = ()) -> Layout:
        """Create a layout from (shape, dtype) by name.

        Arrays start on cache-line boundaries. Those named in `lazy` come last.
        """
        fields, offset, reserved_size = {}, 0, 0
        for name in sorted(arrays, key=lambda name: name in lazy):
            shape, dtype = tuple(int(n) for n in arrays[name][0]), np.dtype(arrays[name][1])
            fields[name] = Field(shape, dtype, offset)
            size = dtype.itemsize
            for n in shape:
                size *= n
            offset += -(-size // _LINE) * _LINE
            if name not in lazy:
                reserved_size = offset
        return cls(fields, max(offset, _LINE), max(reserved_size, _LINE))

    def views(self, buffer: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays as views of a buffer of `size` bytes.

        The buffer cannot be closed or resized while a view exists.
        """
        # Keeps the buffer exported; `np.ndarray(..., buffer)` would release it.
        whole = np.frombuffer(buffer, np.uint8)
        return {
            name: np.ndarray(field.shape, field.dtype, whole, field.offset)
            for name, field in self.fields.items()
        }


_SHARE = 0.8  # of free memory


def anonymous_file(size: int, reserved_size: int = 0) -> int:
    """Create an anonymous file of `size` zero bytes and return its descriptor.

    On Linux it is in memory (`memfd_create`), elsewhere an unlinked temporary file. The first
    `reserved_size` bytes are allocated.

    Raises:
        OSError: There is not enough space.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("slipstream", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        if reserved_size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, reserved_size)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SharedBlock:
    """The arrays of a layout in shared memory.

    Args:
        layout: Layout of the arrays.
        fd: Descriptor of a block that another process created. None creates a block.

    Attributes:
        fd: Descriptor to send to other processes.
        arrays: The arrays by name.

    Raises:
        ResourceError: The block does not fit into free memory.
    """

    def __init__(self, layout: Layout, fd: int | None = None) -> None:
        if fd is None:
            fd = _allocate(layout)
        self.layout, self.fd = layout, fd
        self._memory: mmap.mmap | None = mmap.mmap(fd, layout.size)
        self.arrays: dict[str, NDArray[Any]] = layout.views(self._memory)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def close(self) -> None:
        """Release the block. The memory is freed with its last view. Safe to call again."""
        self.arrays = {}
        memory, self._memory = self._memory, None
        if memory is None:
            return
        with suppress(OSError):
            os.close(self.fd)
        with suppress(BufferError):  # a view still exists and keeps it alive
            memory.close()


def _allocate(layout: Layout) -> int:
    free = free_memory()
    why = ""
    if layout.reserved_size <= _SHARE * free:
        try:
            return anonymous_file(layout.size, layout.reserved_size)
        except OSError as error:
            why = f" ({error.strerror})"
    raise ResourceError(
        f"The shared memory of the environments needs {layout.reserved_size / 2**20:,.1f} MiB, and "
        f"{free / 2**20:,.1f} MiB are free{why}. Lower num_envs, or reduce the size of an "
        "observation."
    )


class PipeEvent:
    """Event on a pipe. Setting it never blocks and is never lost.

    Linux treats a pipe write as a hint that the writer will sleep, and wakes the reader on the
    writer's core, without waiting for an idle core. An eventfd gives no such hint, and two
    processes that it wakes together may be queued on one core.

    Args:
        fds: Read and write descriptors of an event of another process. None creates an event.
    """

    def __init__(self, fds: tuple[int, int] | None = None) -> None:
        if fds is None:
            fds = os.pipe()
            for fd in fds:
                os.set_blocking(fd, False)
        self.fds = fds

    def set(self) -> None:
        """Set the event and wake its waiter."""
        try:
            os.write(self.fds[1], b"!")
        except (BlockingIOError, BrokenPipeError):
            return  # already set; the other end is closed

    def clear(self) -> None:
        """Clear the event."""
        try:
            while len(os.read(self.fds[0], _CHUNK)) == _CHUNK:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close both descriptors. Call it once."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


_CHUNK = 4096


SPIN_SECONDS = 50e-6  # about the cost of a wake-up
POLL_MS = 50  # longest sleep between two checks of silent workers
STORES_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""True if other cores see the writes of one core in order."""
_LOCK = threading.Lock()
_CHECKS_PER_CLOCK = 16


def spin_seconds(others: int, cores: int) -> float:
    """Return the seconds to spin before sleeping while `others` processes may be working.

    The result is 0 if they need every core, or if stores may be seen out of order: then a flag
    could become visible before the data.
    """
    return SPIN_SECONDS if STORES_ORDERED and others < cores else 0.0


def fence() -> None:
    """Full memory barrier: earlier writes become visible before later reads.

    Needed where two processes each write a flag and then read the flag of the other.
    """
    with _LOCK:  # a locked instruction, no system call
        pass  # no signal handler or finalizer can run before the release


def spin_wait(ready: Callable[[], bool], seconds: float) -> bool:
    """Spin until `ready` returns true or the time is over; return its last result."""
    if seconds <= 0.0:
        return ready()
    end = time.perf_counter() + seconds
    while True:
        for _ in range(_CHECKS_PER_CLOCK):
            if ready():
                return True
        if time.perf_counter() > end:
            return False


def poll_ms(hang_seconds: float) -> int:
    """Return the longest sleep, in ms, between two checks of silent workers."""
    return int(min(POLL_MS, max(1.0, 250.0 * hang_seconds)))
