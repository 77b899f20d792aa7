"""Stop requests: Ctrl-C, SIGTERM, SIGHUP, or a file in the folder; followed after the iteration.

Signals that are ignored at the start, for example by `nohup`, stay ignored.

`stop.json` holds ``{"now": true}``. Any file of that name is a stop request, except with
``"now": false``, which ends a study's search and continues with its confirmation.
"""

from __future__ import annotations

import json
import mmap
import os
import shlex
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from slipstream.core.child_process import STOP_SIGNALS
from slipstream.core.safe_io import UnreadableError, read_bytes
from slipstream.core.storage.atomic_io import remove, write_json

STOP = "stop.json"


class Interrupted(Exception):  # noqa: N818 - stopping on request is no error
    """Training was stopped on request or by its time limit; completed work is kept.

    Attributes:
        run: the directory of the run or study.
        command: command that resumes it.
        final: true if a queue leaves resuming to its user, as after the end of a time budget.
    """

    def __init__(
        self,
        run: Path,
        command: str | None = None,
        how: str = "Stopped after a checkpoint. Resume with:",
        final: bool = False,
    ) -> None:
        self.final = final
        self.run, self.command = run, command or f"slipstream resume {shlex.quote(str(run))}"
        super().__init__(f"{how} {self.command}")

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: how to resume, without a traceback."""
        return [str(self)]


class StoppedError(Exception):
    """Raised by `Interruption.check` within work that may be aborted and repeated."""


def request_stop(folder: Path, now: bool = True) -> None:
    """Write a stop request for the process that works on a run or study."""
    write_json(folder / STOP, {"now": now, "at": time.time()})


def is_stop_requested(folder: Path) -> bool:
    """Return true if there is a stop request that no process has followed yet."""
    path = folder / STOP
    if not os.path.exists(path):
        return False
    try:
        return json.loads(read_bytes(path)).get("now") is not False
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError, RecursionError, UnreadableError):  # made by hand
        return True


def clear_stop_request(folder: Path) -> None:
    """Remove a stop request that was followed, or was for a process that has ended."""
    if is_stop_requested(folder):
        remove(folder / STOP)


class Interruption:
    """Convert the first signal or request into `requested`; a second Ctrl-C interrupts immediately.

    Processes forked from this one also see the request.

    Args:
        folder: folder that may contain a request; None: signals only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._flag = mmap.mmap(-1, 1)  # shared with forked processes
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Return true after a signal or a request."""
        if not self._flag[0] and self._folder is not None and is_stop_requested(self._folder):
            self._flag[0] = 1
        return self._flag[0] != 0

    def check(self) -> None:
        """Abort the current work if a stop was requested.

        Raises:
            StoppedError: a signal or a request was received.
        """
        if self.requested:
            raise StoppedError

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._flag[0] and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._flag[0] = 1

    def __enter__(self) -> Interruption:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # only the main thread may set handlers
            for number in STOP_SIGNALS:
                before = signal.getsignal(number)
                if before == signal.SIG_IGN:  # by `nohup`, or a shell in the background
                    continue
                self._previous[number] = signal.signal(number, self._request)
                # A signal came before this object; or a library converted Ctrl-C to an error.
                if getattr(getattr(before, "__self__", None), "requested", False) is True:
                    self._flag[0] = 1
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            clear_stop_request(self._folder)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
