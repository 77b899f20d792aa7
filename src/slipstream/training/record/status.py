"""Status: where a run or a study stands, for any other process: what `status.json` says.

Reading it imports nothing heavy, so that looking is cheap.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.errors import CheckpointError
from slipstream.core.reader import UnreadableError, read_json, regular_file

STATUS, EVENTS = "status.json", "events.jsonl"
_SILENT_SECONDS = 60.0  # of another machine's process
_NUMBER = (int, float)
_SHAPE = {
    **dict.fromkeys(("kind", "state", "phase", "host"), str),
    **dict.fromkeys(("pid", "done", "total"), int),
    **dict.fromkeys(("started", "updated"), _NUMBER),
    **dict.fromkeys(("rate", "score", "eta"), (*_NUMBER, type(None))),
    "unit": str,
    "reason": str,
    "details": {},
}


@dataclass(frozen=True)
class Status:
    """What a process last said of its work.

    Attributes:
        kind: ``run`` or ``study``.
        state: ``running``, ``stopped``, ``complete`` or ``failed``; ask `judged` whether it still
            runs.
        phase: what it does: ``training``; of a study ``search``, ``confirmation``, ...
        pid, host: of the process.
        started: when this session began; `updated`: when this was written. UTC seconds.
        done, total: how far it is, in `unit`: ``steps`` of all members; of a study ``trials`` or
            ``members`` of the phase.
        rate: steps per second of all members, lately; None before it is known.
        score: of the members together, or of the best trial; None before it is known.
        eta: seconds to the end of everything; None before it is known.
        reason: why it failed.
        details: JSON-able, of its kind: a study's `Standing`.
    """

    kind: str
    state: str = "running"
    phase: str = "starting"
    pid: int = 0
    host: str = ""
    started: float = 0.0
    updated: float = 0.0
    done: int = 0
    total: int = 0
    unit: str = "steps"
    rate: float | None = None
    score: float | None = None
    eta: float | None = None
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For `status.json`."""
        return asdict(self)

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.updated)

    def judged(self) -> str:
        """Its state, as far as can be seen from here.

        Returns:
            `state`; ``gone`` where that says ``running`` and its process has ended without a
            word; ``silent`` where that runs on another machine and has not written for a minute.
        """
        if self.state != "running":
            return self.state
        if self.host != platform.node():
            return "silent" if self.age > _SILENT_SECONDS else "running"
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() <= self.started  # a later one took its number
            return "running" if same and process.status() != psutil.STATUS_ZOMBIE else "gone"
        except psutil.Error:
            return "gone"


def read_status(folder: Path) -> Status | None:
    """What was last written; None where nothing was.

    Raises:
        CheckpointError: the file is damaged.
    """
    remedy = "Delete it: nothing but what `slipstream status` says depends on it."
    found = read_json(folder / STATUS, CheckpointError, remedy, _SHAPE)
    if found is None:
        return None
    known = {one.name for one in fields(Status)}
    return Status(**{name: value for name, value in found.items() if name in known})


def read_events(folder: Path, last: int | None = None) -> list[dict[str, Any]]:
    """Lines of `events.jsonl`, the last ones or all; what a kill cut short is left out."""
    try:
        regular_file(folder / EVENTS)
        text = (folder / EVENTS).read_text(encoding="utf-8", errors="replace")
    except (OSError, UnreadableError):
        return []
    found = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("at"), _NUMBER) and "event" in event:
            found.append(event)
    return found if last is None else found[-last:]
