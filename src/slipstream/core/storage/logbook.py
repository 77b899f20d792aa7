"""Logbook: status, events and log of a run or a study for other processes.

    status.json    latest `Status`; replaced atomically, at most once a second
    events.jsonl   one line per notable event, append-only, for machines
    log.txt        events and all messages, for people; log.txt.1 is the previous part

No result depends on it, and write errors never end the work; they are reported once. Only the
holder of the folder's lock writes it.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from slipstream.core.errors import CheckpointError, ResourceError, SlipstreamError
from slipstream.core.storage.atomic_io import AppendOnlyFile, disk_errors, to_jsonable, write_json
from slipstream.core.storage.signals import Interrupted, StoppedError
from slipstream.core.storage.status_file import (
    EVENTS,
    GAP,
    LOG,
    STATUS,
    Status,
    event_line,
    progress_parts,
    read_status,
)
from slipstream.core.text import log_time, printable

_SECONDS = 1.0  # between two writes of the status
_LOG_SECONDS = 60.0
_LOG_BYTES = 4 << 20  # of log.txt before it becomes log.txt.1


class Logbook:
    """Logbook of one session of a run or a study; used in a `with` statement.

    The exception that leaves the body determines the final state: none gives ``complete``, a stop
    request ``stopped``, any other ``failed``.

    Args:
        folder: of the run or study.
        kind: ``run`` or ``study``.
        log: receives a message if writing fails.
        every: seconds between two progress lines of the log.
    """

    def __init__(
        self, folder: Path, kind: str, log: Callable[[str], None], every: float = _LOG_SECONDS
    ) -> None:
        self._folder, self._log, self._every = folder, log, every
        self._status = Status(kind)
        self._files: dict[str, AppendOnlyFile] = {}
        self._written, self._told = -1e9, -1e9  # seconds, of the status and in the log
        self._mute = self._open = False
        self._lock = threading.Lock()

    @property
    def due(self) -> bool:
        """Return true if `show` would write now."""
        return time.monotonic() - self._written >= _SECONDS

    def show(self, status: Status, at_once: bool = False) -> None:
        """Update the status; the logbook sets the process fields.

        Args:
            status: written at most once a second.
            at_once: write immediately, because the next step may take long.
        """
        mine = {name: getattr(self._status, name) for name in ("kind", "pid", "host", "started")}
        self._status = replace(status, **mine)
        if at_once or self.due:
            self._write()

    def log_event(self, event: str, line: str = "", style: str = "", **facts: Any) -> None:
        """Append an event with JSON-compatible values; `line` is its text for people."""
        record = {"at": round(time.time(), 3), "event": event, **({"line": line} if line else {})}
        record |= to_jsonable(facts)
        encoded = json.dumps(record, allow_nan=False).encode() + b"\n"
        self._try(lambda: self._append(EVENTS, encoded))
        self._append_line(event_line(record))

    def log(self, line: str, style: str = "") -> None:
        """Append a sentence to the log; ignored outside a session."""
        if self._open:
            self._append_line(f"{log_time(time.time())}  {printable(line.strip())}")

    def __enter__(self) -> Logbook:
        before = self._before()
        now = time.time()
        self._mute, self._open, self._told = False, True, time.monotonic()
        self._status = Status(
            self._status.kind, pid=os.getpid(), host=platform.node(), started=now, updated=now
        )
        if before is not None and before.state == "running":
            line = f"Process {before.pid} on {before.host} is gone; it last wrote "
            line += f"{log_time(before.updated)}."
            self.log_event("lost", line, pid=before.pid, host=before.host, last=before.updated)
        self.log_event(
            "started" if before is None else "resumed", pid=os.getpid(), host=platform.node()
        )
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
        self.log_event(event, **({"reason": reason} if reason else {}))
        self._write()
        self._open = False
        for file in self._files.values():
            file.close()
        self._files.clear()

    def mark_complete(self) -> None:
        """Add the end of a session that was killed after writing its result."""
        before = self._before()
        if before is None or before.state != "complete":
            with self:
                if before is not None:
                    self.show(before)

    def _before(self) -> Status | None:
        """Return the status of an earlier session."""
        try:
            return read_status(self._folder)
        except (CheckpointError, ResourceError):
            return Status(self._status.kind, "stopped")

    def _append(self, name: str, line: bytes) -> None:
        path = self._folder / name
        if name not in self._files:
            self._files[name] = AppendOnlyFile(path)
            with disk_errors(path):
                if _torn(path):
                    line = b"\n" + line
        self._files[name].write(line)

    def _append_line(self, line: str) -> None:
        def write() -> None:
            path = self._folder / LOG
            with disk_errors(path):
                if path.is_file() and path.stat().st_size > _LOG_BYTES:
                    if LOG in self._files:
                        self._files.pop(LOG).close()
                    os.replace(path, path.with_name(f"{LOG}.1"))
            self._append(LOG, line.encode(errors="replace") + b"\n")

        with self._lock:  # a cluster's thread also logs
            self._try(write)

    def _write(self) -> None:
        self._written = time.monotonic()
        self._status = replace(self._status, updated=time.time())
        facts = self._status.as_dict()
        self._try(lambda: write_json(self._folder / STATUS, facts, durable=False))
        if self._written - self._told >= self._every:
            self._told = self._written
            self.log(GAP.join(progress_parts(self._status)))

    def _try(self, write: Callable[[], None]) -> None:
        """Run a write; a failure is reported once per session."""
        try:
            write()
        except ResourceError as error:
            if not self._mute:
                self._mute = True
                self._log(f"{error} The work continues; other processes cannot see its progress.")


def _torn(path: Path) -> bool:
    """Return true if the last line was truncated by a kill or a full disk."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
