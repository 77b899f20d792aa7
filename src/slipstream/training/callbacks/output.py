"""Output stream that never interrupts the work: if the reader is gone, only output is lost."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO


class Output(io.TextIOBase):
    """A text stream that ignores write errors.

    A closed pipe, a lost terminal or a full disk is recorded in `lost`, once. Characters that the
    stream's encoding lacks become question marks, and a plus-minus sign becomes ``+-``.

    Args:
        stream: underlying stream; None if the process was started without one.
        on_loss: called with the error when the stream is lost; set it to None to disable.
    """

    def __init__(
        self, stream: TextIO | None, on_loss: Callable[[OSError], None] | None = None
    ) -> None:
        self._stream, self.on_loss = stream, on_loss
        self.lost: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Error mode "replace"."""
        return "replace"

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.lost is None and bool(self._try(lambda stream: stream.isatty()))

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write, ignoring errors."""
        encoded = text.encode(self.encoding, "replace").decode(self.encoding)
        if encoded != text:
            encoded = text.replace("±", "+-").encode(self.encoding, "replace").decode(self.encoding)
        self._try(lambda stream: stream.write(encoded))
        return len(text)

    def flush(self) -> None:
        """Flush, ignoring errors."""
        self._try(lambda stream: stream.flush())

    def close(self) -> None:
        """Do nothing: the stream belongs to the caller."""

    def _try(self, do: Callable[[TextIO], Any]) -> Any:
        if self._stream is None or self.lost is not None:
            return None
        try:
            return do(self._stream)
        except ValueError as error:  # the stream is closed
            self._lose(OSError(str(error)))
        except OSError as error:
            self._lose(error)
        return None

    def _lose(self, error: OSError) -> None:
        self.lost = error
        with suppress(OSError, ValueError):  # its buffered output must not fail at exit
            assert self._stream is not None
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self._stream.fileno())
            os.close(null_device)
        if self.on_loss is not None:
            self.on_loss(error)


def is_interactive() -> bool:
    """Return whether a person sees the output immediately: a notebook, prompt or terminal."""
    return hasattr(sys, "ps1") or bool(sys.stdout and sys.stdout.isatty())


def robust_stream(stream: TextIO | None) -> Output:
    """Wrap a stream as `Output`, unless it is one already."""
    return stream if isinstance(stream, Output) else Output(stream)
