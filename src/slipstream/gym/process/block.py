"""One block of memory that processes share and that has no name: nothing of it can be left."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from slipstream.core.capacity import free_memory
from slipstream.core.errors import ResourceError
from slipstream.gym.process.layout import Layout

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


class Block:
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
