"""Status of a run or a study for other processes, and its text representation.

`status.json` holds a `Status`. Terminals, log files and pages show the same lines. Names, notes and
reasons may come from untrusted files, so lines never contain control characters. This module
imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.errors import CheckpointError
from slipstream.core.safe_io import (
    UnreadableError,
    open_regular,
    path_exists,
    read_bytes,
    read_json,
    regular_file,
)
from slipstream.core.storage.atomic_io import is_locked
from slipstream.core.storage.resource_monitor import ResourceUsage
from slipstream.core.text import (
    SummaryRepr,
    duration,
    format_count,
    format_significant,
    log_time,
    plural,
    printable,
    range_text,
)

STATUS, EVENTS, LOG = "status.json", "events.jsonl", "log.txt"
RUN, STUDY, DEPLOYMENT = KINDS = ("run", "study", "deployment")
AUDIT, CURRENT, DEPLOYMENTS = "audit.jsonl", "current", "deployments"
LEDGER = "ledger.db"  # of a study
MARKER_FILES = {RUN: "config.yaml", STUDY: "study.yaml", DEPLOYMENT: CURRENT}
"""File that identifies a folder of each kind."""
_MOST_DIGITS = 64
_EVENT_BYTES = 16 << 20  # read from the end of events.jsonl
_SILENT_SECONDS = 60.0  # for processes of other machines
_MOST_BYTES = 1 << 22  # of status.json; enough for thousands of nodes
_NUMBER = (int, float)
_PERHAPS = (*_NUMBER, type(None))
_SHAPE = {
    **dict.fromkeys(("kind", "state", "phase", "host", "unit", "reason"), str),
    **dict.fromkeys(("pid", "completed", "total"), int),
    **dict.fromkeys(("started", "updated"), _NUMBER),
    **dict.fromkeys(("rate", "trials_per_hour", "eta"), _PERHAPS),
    "best": {"score?": _NUMBER, "trial?": int, "low?": _PERHAPS, "high?": _PERHAPS},
    "scores": {"*": [_NUMBER]},
    "counts": {"*": int},
    "phases": {"*": _NUMBER},
    "machine": {"cpu?": _NUMBER, "memory?": _NUMBER, "*": _PERHAPS},
    "running": [dict.fromkeys(("trial?", "fold?", "step?", "score?", "time?"), _PERHAPS)],
    "nodes": [{"node": str, **dict.fromkeys(("slots", "busy", "answers", "losses"), int)}],
    "notes": [str],
    "pattern?": str,
}
GAP = "  "
_SHOWN = 5  # last events; members under way
# Fields that are valid without a process.
_STILL = ("completed", "total", "unit", "best", "scores", "counts", "phases")
_WIDTH = 110  # default width of wrapped lines


@dataclass(frozen=True, repr=False)
class Status(SummaryRepr):
    """Latest state of a process, which terminals, files and pages display.

    Attributes:
        kind: one of `KINDS`.
        state: ``running``, ``stopped``, ``complete`` or ``failed``; `liveness` returns whether it
            still runs.
        phase: current activity. Runs: ``compiling``, ``training``, ``validating``, ``writing``,
            ``testing``; studies: ``loading``, ``measuring``, ``search``, ``confirmation``, ...
        pid, host: of the process.
        started: start of this session; `updated`: time of this status. UTC seconds.
        completed, total: completed and total work in `unit`: ``steps`` of all members; of a study
            ``trials``, or ``members`` of the phase after the search; of a deployment's account
            ``decisions``, with total 0 (unknown); of a process that watches studies ``looks``.
        rate: recent steps per second of all members; None if unknown. `trials_per_hour`: of a
            study's search.
        eta: seconds to the end of all work; None if unknown.
        best: ``score`` of the best policy so far; of a study its ``trial``, and the ends of the
            score's 95 % interval, ``low`` and ``high``.
        scores: recent training episodes by name, [mean, lowest, highest] of members.
        counts: trials of a study: ``asked`` of ``limit``; ``complete`` (including ``inactive``:
            hardly any trades in some fold, and ``violating``: a constraint is violated; neither can
            win), ``pruned`` and ``failed``.
        running: running trials or members, each with its ``trial`` and, if known, its ``fold``,
            ``step``, ``score`` and ``time``.
        phases: seconds spent so far by kind: ``env``, ``policy``, ``update``, ``validate``, ...
        machine: fields of `ResourceUsage` of all processes; empty if unknown.
        nodes: of a cluster, see `RayCluster.standing`.
        notes: messages for the user.
        reason: reason of a failure.
        pattern: names of the studies that a process watches for a deployment.
    """

    kind: str
    state: str = "running"
    phase: str = "starting"
    pid: int = 0
    host: str = ""
    started: float = 0.0
    updated: float = 0.0
    completed: int = 0
    total: int = 0
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
        """Return the content of `status.json`."""
        return asdict(self)

    def summary(self) -> dict[str, object]:
        """Return kind, state, progress, remaining time and best score."""
        best = self.best.get("score")
        return {
            "kind": self.kind,
            "state": self.liveness(),
            "progress": progress_text(self),
            "ETA": None if self.eta is None else duration(self.eta),
            "best": None if best is None else format_significant(best),
            "reason": self.reason or None,
        }

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.updated)

    @property
    def is_done(self) -> bool:
        """Return true if all of a known total is completed."""
        return 0 < self.total <= self.completed

    def liveness(self) -> str:
        """Return the state, verified from this machine.

        Returns:
            `state`; ``gone`` if it is ``running`` but its process has ended; ``silent`` if it runs
                on
            another machine and has not written for a minute.
        """
        if self.state != "running":
            return self.state
        if self.host != platform.node():
            return "silent" if self.age > _SILENT_SECONDS else "running"
        try:
            process = psutil.Process(self.pid)
            same = process.create_time() <= self.started  # otherwise the pid was reused
            return "running" if same and process.status() != psutil.STATUS_ZOMBIE else "gone"
        except (psutil.Error, ValueError):  # no such process
            return "gone"


def read_status(folder: Path) -> Status | None:
    """Return the latest status; None if there is none, or if a power cut erased it.

    Raises:
        CheckpointError: the file is damaged.
    """
    with suppress(OSError, UnreadableError):
        if not regular_file(folder / STATUS).st_size:  # written without waiting for the disk
            return None
    remedy = "Delete it: only the output of `slipstream status` depends on it."
    values = read_json(folder / STATUS, CheckpointError, remedy, _SHAPE, limit=_MOST_BYTES)
    if values is None:
        return None
    known = {field.name for field in fields(Status)}
    status = Status(**{name: value for name, value in values.items() if name in known})
    # On a full disk only the last event may have been written.
    last = read_events(folder, 1) if status.liveness() == "gone" else []
    if last and last[0]["event"] == "failed" and last[0]["at"] >= status.started:
        status = replace(status, state="failed", reason=str(last[0].get("reason")))
    return status


def read_events(folder: Path, last: int | None = None) -> list[dict[str, Any]]:
    """Return the last lines of `events.jsonl`; a line truncated by a kill is omitted."""
    try:
        with open_regular(folder / EVENTS) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _EVENT_BYTES))
            text = file.read(_EVENT_BYTES).decode("utf-8", "replace")
    except (OSError, UnreadableError):
        return []
    events = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("at"), _NUMBER) and "event" in event:
            events.append(event)
    return events if last is None else events[-last:]


def current_version(deployment: Path) -> int:
    """Return the active version of a deployment; 0 before the first.

    Raises:
        CheckpointError: `current` is invalid.
    """
    path = deployment / CURRENT
    try:
        return int(read_bytes(path, _MOST_DIGITS))
    except FileNotFoundError:
        return 0
    except (ValueError, UnreadableError):
        raise CheckpointError(
            f"{path} must hold the number of a version, such as 1: write it there."
        ) from None


def progress_parts(status: Status) -> list[str]:
    """Return the parts of a progress line of running work, most important first."""
    outcomes, searching = _outcomes(status.counts), status.unit == "trials"
    trials = len({member.get("trial") for member in status.running})
    if searching and outcomes and trials:
        outcomes += f", {trials} running"
    parts = [
        progress_text(status) + (f": {outcomes}" if searching and outcomes else ""),
        f"trials: {outcomes}" if outcomes and not searching else "",
        "" if status.rate is None else f"{format_count(status.rate)} steps/s",
        f"{format_count(status.trials_per_hour)} trials/h"
        if searching and status.trials_per_hour
        else "",
        "" if status.eta is None else f"ETA {duration(status.eta)}",
        *(
            f"{name.removeprefix('episode/')} {range_text(member)}"
            for name, member in status.scores.items()
        ),
        _best(status.best) if "score" in status.best else "",
        phases_part(status.phases),
        cluster_part(status.nodes, status.kind == "study"),
        machine_part(status.machine),
    ]
    return [printable(part) for part in parts if part]


def progress_text(status: Status) -> str:
    """``search 84 %, 420 of 500 trials``."""
    if status.total <= 0:
        done = plural(status.completed, status.unit.removesuffix("s")) if status.completed else ""
        return ", ".join(filter(None, (status.phase, done)))
    share = min(100, 100 * status.completed // status.total)  # rounded down: 100 % means done
    return (
        f"{status.phase} {share} %, {status.completed:,} of {status.total:,} {status.unit}".strip()
    )


def phases_part(phases: Mapping[str, float]) -> str:
    """Format time shares: ``time: env 21 %, policy 79 %``, without shares below half a percent.

    Empty before training starts, when only `other` has been measured.
    """
    total = sum(phases.values()) or 1.0
    shares = {kind: 100 * value / total for kind, value in phases.items()}
    listed = [f"{kind} {share:.0f} %" for kind, share in shares.items() if share >= 0.5]
    return f"time: {', '.join(listed)}" if len(listed) > 1 else ""


def machine_part(machine: Mapping[str, Any]) -> str:
    """Format resources: ``CPU 187 %  memory 1.2 GiB  no GPU``; empty if unknown."""
    known = {
        field.name: machine[field.name] for field in fields(ResourceUsage) if field.name in machine
    }
    return str(ResourceUsage(**known)) if known else ""


def cluster_part(nodes: Sequence[Mapping[str, Any]], segments: bool = True) -> str:
    """Format cluster load: ``3 nodes, 46 of 48 slots busy, 120 segments, 1 loss``.

    Empty without nodes.

    Args:
        nodes: nodes of the cluster.
        segments: False for a run, whose workers answer call by call: ``3 nodes, 48 slots, ...``.
    """
    if not nodes:
        return ""
    num_nodes = sum(node["slots"] > 0 for node in nodes)
    slots, busy, answers, losses = (
        sum(node[key] for node in nodes) for key in ("slots", "busy", "answers", "losses")
    )
    held = f"{busy} of {plural(slots, 'slot')} busy" if segments else plural(slots, "slot")
    work = plural(answers, "segment") if segments else plural(answers, "answer")
    return f"{plural(num_nodes, 'node')}, {held}, {work}, {plural(losses, 'loss', 'es')}"


def wrap_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join parts into lines of at most `width` characters; a longer part gets its own line."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if len(lines[-1]) + len(GAP) + len(part) <= width:
            lines[-1] += GAP + part
        else:
            lines.append(part)
    return lines


def folder_status_lines(title: str, folder: Path, resume: str, status: Status | None) -> list[str]:
    """Return the state of a run or study as lines, also while another process works on it.

    Args:
        title: the first line.
        folder: of the run or study.
        resume: command that resumes it.
        status: its latest status.
    """
    lines, state = [title], status.liveness() if status else ""
    if status is not None and state in ("running", "silent"):
        silent = f", silent for {duration(status.age)}" if state == "silent" else ""
        who = f"(process {status.pid} on {status.host}{silent})"
        lines += wrap_parts([*progress_parts(status), who], _WIDTH)
        members = [member for member in status.running if member.get("step") is not None]
        lines += [f"{GAP}{_facts({**member, 'time': None}, ', ')}" for member in members[:_SHOWN]]
        lines += [f"{GAP}and {len(members) - _SHOWN} more"] * (len(members) > _SHOWN)
        for node in status.nodes:
            part = cluster_part([node], status.kind == "study")
            lines.append(f"{GAP}{node['node']}: {part.partition(', ')[2]}")
    else:
        complete = path_exists(folder / "result.json")
        at_work = "A process works on it." if is_locked(folder) else idle_line(status, resume)
        lines.append("Complete." if complete else at_work)
        if status is not None and (status.total or status.completed):
            lines.append(GAP.join(progress_parts(idle_status(status))))
    lines += [GAP + event_line(event) for event in read_events(folder, _SHOWN)]
    return [printable(line) for line in lines]


def idle_status(status: Status) -> Status:
    """Return the part of a status that stays valid without a running process."""
    kept_fields = {name: getattr(status, name) for name in _STILL}
    return Status(status.kind, status.state, "", **kept_fields)


def run_lines(folder: Path) -> list[str]:
    """Return the state of a run or a deployment as lines."""
    status = read_status(folder)
    kind = "Deployment" if path_exists(folder / CURRENT) else "Run"
    kind = "Watch for new studies" if status and status.pattern else kind
    return folder_status_lines(f"{kind} {folder}", folder, resume_command(folder, status), status)


def resume_command(folder: Path, status: Status | None, name: str = "") -> str:
    """Return the command that resumes a run or a deployment.

    Args:
        folder: of the run or deployment.
        status: its latest status.
        name: name given by the user; its folder by default.
    """
    if status is not None and status.pattern:
        below = folder.parent.parent == Path(DEPLOYMENTS).absolute()
        deployment = folder.parent.name if below else str(folder.parent)
        return shlex.join(["slipstream", "deploy", "--name", deployment, "--watch", status.pattern])
    return f"slipstream resume {shlex.quote(name or str(folder))}"


def idle_line(status: Status | None, resume: str) -> str:
    """Return why no process works on it, and the command that resumes it."""
    go_on = f"resume with `{resume}`."
    if status is None or status.state == "stopped":
        return f"No process works on it; {go_on}"
    if status.state == "failed":
        return f"It failed: {status.reason} Fix it, then {go_on}"
    if status.state == "complete" and status.pattern:
        return f"It has looked once; {go_on}"
    if status.state == "complete" and status.kind == DEPLOYMENT:
        return f"Its feed has ended; {go_on}"
    if status.state == "complete":
        return f"It was complete, and its result is missing; {go_on}"
    return (
        f"Process {status.pid} on {status.host} worked on it and ended unexpectedly (killed?), "
        f"{duration(status.age)} after it last wrote; {go_on}"
    )


def event_line(event: Mapping[str, Any]) -> str:
    """Format one event: ``2026-01-31 07:30:00 UTC  checkpoint  steps 1,000``."""
    facts = {name: value for name, value in event.items() if name not in ("at", "event")}
    text = str(event.get("line") or f"{event['event']}{GAP}{_facts(facts, GAP)}")
    return f"{log_time(event['at'])}{GAP}{printable(text.strip())}"


def _best(best: Mapping[str, Any]) -> str:
    """Format the best score: ``best 1.234 (trial 145, -0.5 to 2.31)``."""
    parts = [f"trial {best['trial']}"] if "trial" in best else []
    if best.get("low") is not None and best.get("high") is not None:
        parts.append(f"{format_significant(best['low'])} to {format_significant(best['high'])}")
    return f"best {format_significant(best['score'])}" + (f" ({', '.join(parts)})" if parts else "")


def _outcomes(counts: Mapping[str, int]) -> str:
    """Format trial counts: ``180 complete (7 inactive), 238 pruned, 2 failed``."""
    outcomes = {kind: counts.get(kind, 0) for kind in ("complete", "pruned", "failed")}
    unable = [f"{counts[kind]} {kind}" for kind in ("inactive", "violating") if counts.get(kind)]
    idle = f" ({', '.join(unable)})" if unable else ""
    failed = f", {outcomes['failed']} failed" if outcomes["failed"] else ""
    return f"{outcomes['complete']} complete{idle}, {outcomes['pruned']} pruned{failed}" * bool(
        counts
    )


def _facts(facts: Mapping[str, Any], gap: str) -> str:
    """Format values by name: ``trial 7, step 40,000``."""
    known = {name: value for name, value in facts.items() if value is not None}
    return gap.join(f"{name} {v if name == 'pid' else _plain(v)}" for name, v in known.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(item) for item in value[:8])}{', ...' * (len(value) > 8)}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
