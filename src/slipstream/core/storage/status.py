"""Status: where a run or a study stands, for any other process: what `status.json` says.

Reading it imports nothing heavy, so that looking is cheap.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.errors import CheckpointError
from slipstream.core.reader import UnreadableError, content, open_regular, read_json, regular_file

STATUS, EVENTS, LOG = "status.json", "events.jsonl", "log.txt"
RUN, STUDY, DEPLOYMENT = KINDS = ("run", "study", "deployment")
AUDIT, CURRENT, DEPLOYMENTS = "audit.jsonl", "current", "deployments"
LEDGER = "ledger.db"  # of a study
MARKS = {RUN: "config.yaml", STUDY: "study.yaml", DEPLOYMENT: CURRENT}
"""What only a folder of that kind has."""
_MOST_DIGITS = 64
_EVENT_BYTES = 16 << 20  # of the end of events.jsonl that is read
_SILENT_SECONDS = 60.0  # of another machine's process
_MOST_BYTES = 1 << 22  # of status.json: a cluster of thousands of nodes says less
_NUMBER = (int, float)
_PERHAPS = (*_NUMBER, type(None))
_SHAPE = {
    **dict.fromkeys(("kind", "state", "phase", "host", "unit", "reason"), str),
    **dict.fromkeys(("pid", "done", "of"), int),
    **dict.fromkeys(("started", "updated"), _NUMBER),
    **dict.fromkeys(("rate", "trials_per_hour", "eta"), _PERHAPS),
    "best": {"score?": _NUMBER, "trial?": int, "low?": _PERHAPS, "high?": _PERHAPS},
    "scores": {"*": [_NUMBER]},
    "counts": {"*": int},
    "phases": {"*": _NUMBER},
    "machine": {"cpu?": _NUMBER, "memory?": _NUMBER, "*": _PERHAPS},
    "running": [dict.fromkeys(("trial?", "fold?", "step?", "score?", "time?"), _PERHAPS)],
    "nodes": [{"node": str, **dict.fromkeys(("seats", "busy", "answers", "losses"), int)}],
    "notes": [str],
    "pattern?": str,
}


@dataclass(frozen=True)
class Status:
    """What a process last said of its work: all that any screen, file or page tells of it.

    Attributes:
        kind: one of `KINDS`.
        state: ``running``, ``stopped``, ``complete`` or ``failed``; ask `judged` whether it still
            runs.
        phase: what it does now. Runs: ``compiling``, ``training``, ``validating``, ``writing``,
            ``testing``; studies: ``loading``, ``measuring``, ``search``, ``confirmation``, ...
        pid, host: of the process.
        started: when this session began; `updated`: when this was written. UTC seconds.
        done, of: how far it is, in `unit`: ``steps`` of all members; of a study ``trials``, or
            ``members`` of the phase after the search; of a deployment's account ``decisions``, of
            an unknown number, 0; of a process that watches studies ``looks``.
        rate: steps per second of all members, lately; None before it is known. `trials_per_hour`:
            of a study's search.
        eta: seconds to the end of everything; None before it is known.
        best: ``score`` of the best policy so far; of a study its ``trial``, and the ends of the
            score's 95 % interval, ``low`` and ``high``.
        scores: by name what recent episodes of training show, [mean, lowest, highest] of members.
        counts: of a study's trials: ``asked`` of ``limit``; ``complete`` (of these ``inactive``:
            they hardly traded in some fold, and ``violating``: they are beyond a constraint;
            neither can win), ``pruned`` and ``failed``.
        running: trials or members under way, each with its ``trial`` and, where known, its
            ``fold``, ``step``, ``score`` and ``time``.
        phases: seconds spent so far by kind: ``env``, ``policy``, ``update``, ``validate``, ...
        machine: what all processes take, fields of `Machine`; empty before it is known.
        nodes: of a cluster, see `slipstream.training.cluster.cluster.Cluster.standing`.
        notes: sentences that the user must see.
        reason: why it failed.
        pattern: of a process that watches studies for a deployment: their names.
    """

    kind: str
    state: str = "running"
    phase: str = "starting"
    pid: int = 0
    host: str = ""
    started: float = 0.0
    updated: float = 0.0
    done: int = 0
    of: int = 0
    unit: str = "steps"
    rate: float | None = None
    trials_per_hour: float | None = None
    eta: float | None = None
    best: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    running: Sequence[Mapping[str, Any]] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    reason: str = ""
    pattern: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For `status.json`."""
        return asdict(self)

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.updated)

    @property
    def all_done(self) -> bool:
        """Whether it is through all of a known number."""
        return 0 < self.of <= self.done

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
        except (psutil.Error, ValueError):  # no process has such a number
            return "gone"


def read_status(folder: Path) -> Status | None:
    """What was last said; None where nothing was, or a power cut took it.

    Raises:
        CheckpointError: the file is damaged.
    """
    with suppress(OSError, UnreadableError):
        if not regular_file(
            folder / STATUS
        ).st_size:  # nobody waits for the disk when it is written
            return None
    remedy = "Delete it: nothing but what `slipstream status` says depends on it."
    found = read_json(folder / STATUS, CheckpointError, remedy, _SHAPE, limit=_MOST_BYTES)
    if found is None:
        return None
    known = {one.name for one in fields(Status)}
    status = Status(**{name: value for name, value in found.items() if name in known})
    # A full disk may have had room for its last event alone.
    last = read_events(folder, 1) if status.judged() == "gone" else []
    if last and last[0]["event"] == "failed" and last[0]["at"] >= status.started:
        status = replace(status, state="failed", reason=str(last[0].get("reason")))
    return status


def read_events(folder: Path, last: int | None = None) -> list[dict[str, Any]]:
    """Lines at the end of `events.jsonl`, the last ones; what a kill cut short is left out."""
    try:
        with open_regular(folder / EVENTS) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _EVENT_BYTES))
            text = file.read(_EVENT_BYTES).decode("utf-8", "replace")
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


def version_in_force(deployment: Path) -> int:
    """Return the number of a deployment's version in force; 0 before the first.

    Raises:
        CheckpointError: `current` is something else.
    """
    path = deployment / CURRENT
    try:
        return int(content(path, _MOST_DIGITS))
    except FileNotFoundError:
        return 0
    except (ValueError, UnreadableError):
        raise CheckpointError(
            f"{path} must hold the number of a version, such as 1: write it there."
        ) from None
