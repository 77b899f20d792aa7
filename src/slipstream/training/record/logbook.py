"""Logbook: what a run or a study tells other processes, while it works and after it.

    status.json    where it stands, see `Status`; replaced whole, at most once a second
    events.jsonl   one line for each notable event, only ever appended

No result depends on it, and nothing ends because it cannot be written: that is said once. Only who
holds the folder's lock keeps it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.core.errors import CheckpointError, ResourceError, SlipstreamError
from slipstream.training.record.files import AppendedFile, disk_errors, plain, write_json
from slipstream.training.record.interruption import Interrupted, StoppedError
from slipstream.training.record.status import EVENTS, STATUS, Status, read_status

_SECONDS = 1.0  # between two writings of the status


class Logbook:
    """Kept by one session of a run or a study; use it in a `with` statement.

    What leaves the body decides the last entry: nothing is ``complete``, a request to stop
    ``stopped``, anything else ``failed``.

    Args:
        folder: of the run or study.
        kind: ``run`` or ``study``.
        say: told in a sentence where nothing can be written.
    """

    def __init__(self, folder: Path, kind: str, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._status = Status(kind)
        self._events: AppendedFile | None = None
        self._written = -1e9
        self._mute = False

    @property
    def due(self) -> bool:
        """Whether `show` would write now."""
        return time.monotonic() - self._written >= _SECONDS

    def show(self, **changes: Any) -> None:
        """Where things stand: fields of `Status`; a phase at once, the others once a second."""
        before, self._status = self._status, replace(self._status, **changes)
        if self.due or self._status.phase != before.phase:
            self._write()

    def note(self, event: str, **facts: Any) -> None:
        """Appends an event with JSON-able facts."""
        line = {"at": round(time.time(), 3), "event": event, **plain(facts)}
        self._try(lambda: self._append(json.dumps(line, allow_nan=False).encode() + b"\n"))

    def __enter__(self) -> Logbook:
        before = self._before()
        now = time.time()
        self._mute = False
        self._status = Status(
            self._status.kind, pid=os.getpid(), host=platform.node(), started=now, updated=now
        )
        if before is not None and before.state == "running":
            self.note("lost", pid=before.pid, host=before.host, last=before.updated)
        self.note("begun" if before is None else "resumed", pid=os.getpid(), host=platform.node())
        self._write()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            state, event, reason = "complete", "ended", ""
        elif isinstance(error, (Interrupted, StoppedError, KeyboardInterrupt)):
            state, event, reason = "stopped", "stopped", ""
        else:
            state, event = "failed", "failed"
            reason = str(error) if isinstance(error, SlipstreamError) else repr(error)
        self._status = replace(self._status, state=state, reason=reason, eta=None)
        self.note(event, **({"reason": reason} if reason else {}))
        self._write()
        if self._events is not None:
            self._events.close()
            self._events = None

    def enter_end(self) -> None:
        """Enters the end of a session that was killed when its result was written already."""
        before = self._before()
        if before is None or before.state != "complete":
            with self:
                pass

    def _before(self) -> Status | None:
        """What an earlier session left."""
        try:
            return read_status(self._folder)
        except (CheckpointError, ResourceError):
            return Status(self._status.kind, "stopped")

    def _append(self, line: bytes) -> None:
        if self._events is None:
            path = self._folder / EVENTS
            self._events = AppendedFile(path)
            with disk_errors(path):
                if _torn(path):
                    line = b"\n" + line
        self._events.write(line)

    def _write(self) -> None:
        self._written = time.monotonic()
        self._status = replace(self._status, updated=time.time())
        facts = self._status.as_dict()
        self._try(lambda: write_json(self._folder / STATUS, facts, durable=False))

    def _try(self, write: Callable[[], None]) -> None:
        """What cannot be written is said once a session."""
        try:
            write()
        except ResourceError as error:
            if not self._mute:
                self._mute = True
                self._say(f"{error} The work goes on; other processes cannot see how far it is.")


def _torn(path: Path) -> bool:
    """Whether the last line was cut short by a kill or a full disk."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
