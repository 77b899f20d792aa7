"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the running iteration."""

from __future__ import annotations

import mmap
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from slipstream.training.child import STOP_SIGNALS


class Interrupted(Exception):  # noqa: N818 - stopping on request is no error
    """Training was asked to stop; what was done is kept.

    Attributes:
        run: the directory of the run or study.
        command: what goes on with it.
    """

    def __init__(
        self,
        run: Path,
        command: str | None = None,
        how: str = "Stopped after a checkpoint. Go on with:",
    ) -> None:
        self.run, self.command = run, command or f"slipstream resume {run}"
        super().__init__(f"{how} {self.command}")


class StoppedError(Exception):
    """Raised by `Interruption.check` within work that may be left and done again."""


class Interruption:
    """Turns the first signal into `requested`; a second Ctrl-C interrupts at once.

    Processes that are forked from this one see the request, too.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)  # shared with forked processes
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._flag[0] != 0

    def check(self) -> None:
        """Leaves what is being done.

        Raises:
            StoppedError: a signal came.
        """
        if self.requested:
            raise StoppedError

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._flag[0] = 1

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in STOP_SIGNALS:
                before = self._previous[number] = signal.signal(number, self._request)
                outer = getattr(before, "__self__", None)
                if isinstance(outer, Interruption) and outer.requested:  # before this one began
                    self._flag[0] = 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
