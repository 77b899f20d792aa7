"""Requests to stop after the running iteration: Ctrl-C, SIGTERM, SIGHUP, or a file in the folder.

A signal that is ignored at the start, by `nohup` say, stays ignored.

`stop.json` says ``{"now": true}``; any file of that name without ``"now": false``, which asks a
study to end its search and go on, is such a request.
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
from slipstream.core.safe_io import UnreadableError, content
from slipstream.core.storage.atomic_io import remove, write_json

STOP = "stop.json"


class Interrupted(Exception):  # noqa: N818 - stopping on request is no error
    """Training was asked to stop, or its time is over; what was done is kept.

    Attributes:
        run: the directory of the run or study.
        command: what goes on with it.
        final: whether a queue leaves it to its user to go on, as after the end of a time budget.
    """

    def __init__(
        self,
        run: Path,
        command: str | None = None,
        how: str = "Stopped after a checkpoint. Go on with:",
        final: bool = False,
    ) -> None:
        self.final = final
        self.run, self.command = run, command or f"slipstream resume {shlex.quote(str(run))}"
        super().__init__(f"{how} {self.command}")

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: how to go on, without the frames that were left."""
        return [str(self)]


class StoppedError(Exception):
    """Raised by `Interruption.check` within work that may be left and done again."""


def ask_to_stop(folder: Path, now: bool = True) -> None:
    """Leaves a request for the process that works on a run or study."""
    write_json(folder / STOP, {"now": now, "at": time.time()})


def asked_to_stop(folder: Path) -> bool:
    """Whether a request to end lies there that nobody has followed yet."""
    path = folder / STOP
    if not os.path.exists(path):
        return False
    try:
        return json.loads(content(path)).get("now") is not False
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError, RecursionError, UnreadableError):  # made by hand
        return True


def forget_stop(folder: Path) -> None:
    """The request to end was followed, or was for a process that is gone."""
    if asked_to_stop(folder):
        remove(folder / STOP)


class Interruption:
    """Turns the first signal or request into `requested`; a second Ctrl-C interrupts at once.

    Processes that are forked from this one see the request, too.

    Args:
        folder: where a request may be left; None: signals alone count.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._flag = mmap.mmap(-1, 1)  # shared with forked processes
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal or a request came."""
        if not self._flag[0] and self._folder is not None and asked_to_stop(self._folder):
            self._flag[0] = 1
        return self._flag[0] != 0

    def check(self) -> None:
        """Leaves what is being done.

        Raises:
            StoppedError: a signal or a request came.
        """
        if self.requested:
            raise StoppedError

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._flag[0] and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._flag[0] = 1

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # only it may set handlers
            for number in STOP_SIGNALS:
                before = signal.getsignal(number)
                if before == signal.SIG_IGN:  # by `nohup`, or a shell in the background
                    continue
                self._previous[number] = signal.signal(number, self._request)
                # Before this one began; or a library took Ctrl-C for an error of its own.
                if getattr(getattr(before, "__self__", None), "requested", False) is True:
                    self._flag[0] = 1
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            forget_stop(self._folder)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
