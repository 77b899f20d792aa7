"""Output that is never in the way of the work: a reader who leaves loses what is said, no more."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO


class Output(io.TextIOBase):
    """A text stream that swallows what can no longer be written.

    A closed pipe, a terminal that is gone or a full disk is noted in `lost`, once. Characters that
    the stream's encoding lacks become question marks, and a plus-minus sign becomes ``+-``.

    Args:
        stream: where to; None where the process was started without one.
        on_loss: told the reason at that moment; set it to None to end that.
    """

    def __init__(
        self, stream: TextIO | None, on_loss: Callable[[OSError], None] | None = None
    ) -> None:
        self._stream, self.on_loss = stream, on_loss
        self.lost: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Nothing that can be said is an error."""
        return "replace"

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """Whether somebody sits there."""
        return self.lost is None and bool(self._try(lambda stream: stream.isatty()))

    def fileno(self) -> int:
        """Of the stream."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes, or lets it be."""
        known = text.encode(self.encoding, "replace").decode(self.encoding)
        if known != text:
            known = text.replace("±", "+-").encode(self.encoding, "replace").decode(self.encoding)
        self._try(lambda stream: stream.write(known))
        return len(text)

    def flush(self) -> None:
        """Flushes, or lets it be."""
        self._try(lambda stream: stream.flush())

    def close(self) -> None:
        """Leaves the stream as it is: it is somebody else's."""

    def _try(self, do: Callable[[TextIO], Any]) -> Any:
        if self._stream is None or self.lost is not None:
            return None
        try:
            return do(self._stream)
        except ValueError as error:  # it was closed
            self._lose(OSError(str(error)))
        except OSError as error:
            self._lose(error)
        return None

    def _lose(self, error: OSError) -> None:
        self.lost = error
        with suppress(OSError, ValueError):  # nor shall what it still holds fail at exit
            assert self._stream is not None
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self.on_loss is not None:
            self.on_loss(error)


def is_interactive() -> bool:
    """Whether a person sees what is written while it is written: a notebook, prompt or terminal."""
    return hasattr(sys, "ps1") or bool(sys.stdout and sys.stdout.isatty())


def robust_stream(stream: TextIO | None) -> Output:
    """The stream as `Output`; as it is where it is one already."""
    return stream if isinstance(stream, Output) else Output(stream)
