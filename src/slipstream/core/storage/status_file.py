"""Status: where a run or a study stands, for any other process, and the lines that people read.

`status.json` holds a `Status`. Terminals, log files and pages show the same lines of it and of
events; names, notes and reasons may come from strangers' files, so no line has a control character.
Reading a status imports nothing heavy.
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
    content,
    is_there,
    open_regular,
    read_json,
    regular_file,
)
from slipstream.core.storage.atomic_io import is_locked
from slipstream.core.storage.resource_monitor import Machine
from slipstream.core.text import (
    duration,
    four_digits,
    log_time,
    plural,
    printable,
    range_text,
    short,
)

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
GAP = "  "
_SHOWN = 5  # last events; members under way
_STILL = ("done", "of", "unit", "best", "scores", "counts", "phases")  # once nobody works
_WIDTH = 110  # of lines that are folded, but where a terminal knows better


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
        nodes: of a cluster, see `RayCluster.standing`.
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


def progress_parts(status: Status) -> list[str]:
    """What there is to tell of work under way, most important first."""
    outcomes, searching = _outcomes(status.counts), status.unit == "trials"
    trials = len({one.get("trial") for one in status.running})
    if searching and outcomes and trials:
        outcomes += f", {trials} running"
    parts = [
        how_far(status) + (f": {outcomes}" if searching and outcomes else ""),
        f"trials: {outcomes}" if outcomes and not searching else "",
        "" if status.rate is None else f"{short(status.rate)} steps/s",
        f"{short(status.trials_per_hour)} trials/h" if searching and status.trials_per_hour else "",
        "" if status.eta is None else f"ETA {duration(status.eta)}",
        *(
            f"{name.removeprefix('episode/')} {range_text(one)}"
            for name, one in status.scores.items()
        ),
        _best(status.best) if "score" in status.best else "",
        phases_part(status.phases),
        cluster_part(status.nodes, status.kind == "study"),
        machine_part(status.machine),
    ]
    return [printable(part) for part in parts if part]


def how_far(status: Status) -> str:
    """``search 84 %, 420 of 500 trials``."""
    if status.of <= 0:
        done = plural(status.done, status.unit.removesuffix("s")) if status.done else ""
        return ", ".join(filter(None, (status.phase, done)))
    share = min(100, 100 * status.done // status.of)  # 100 % is the end, and nothing before it
    return f"{status.phase} {share} %, {status.done:,} of {status.of:,} {status.unit}".strip()


def phases_part(phases: Mapping[str, float]) -> str:
    """``env 21 policy 30 update 49 %``: of the time, by what took at least half a percent of it."""
    total = sum(phases.values()) or 1.0
    shares = {kind: 100 * value / total for kind, value in phases.items()}
    told = " ".join(f"{kind} {share:.0f}" for kind, share in shares.items() if share >= 0.5)
    return f"{told} %" if told else ""


def machine_part(machine: Mapping[str, Any]) -> str:
    """``CPU 187 %  memory 1.2 GiB  no GPU``; empty where nothing is known."""
    known = {one.name: machine[one.name] for one in fields(Machine) if one.name in machine}
    return str(Machine(**known)) if known else ""


def cluster_part(nodes: Sequence[Mapping[str, Any]], stretches: bool = True) -> str:
    """``3 nodes, 46 of 48 seats busy, 120 stretches, 1 loss``; empty on one machine.

    Args:
        nodes: where things stand.
        stretches: False for a run, whose seats answer call by call: ``3 nodes, 48 seats, ...``.
    """
    if not nodes:
        return ""
    there = sum(node["seats"] > 0 for node in nodes)
    seats, busy, answers, losses = (
        sum(node[key] for node in nodes) for key in ("seats", "busy", "answers", "losses")
    )
    held = f"{busy} of {plural(seats, 'seat')} busy" if stretches else plural(seats, "seat")
    said = plural(answers, "stretch", "es") if stretches else plural(answers, "answer")
    return f"{plural(there, 'node')}, {held}, {said}, {plural(losses, 'loss', 'es')}"


def folded(parts: Sequence[str], width: int) -> list[str]:
    """Lines of whole parts, none wider than `width` unless a part alone is."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if len(lines[-1]) + len(GAP) + len(part) <= width:
            lines[-1] += GAP + part
        else:
            lines.append(part)
    return lines


def folder_lines(title: str, folder: Path, resume: str, status: Status | None) -> list[str]:
    """Where a run or a study stands, also while another process works on it.

    Args:
        title: the first line.
        folder: of the run or study.
        resume: the command that goes on.
        status: what it last said of itself.
    """
    lines, state = [title], status.judged() if status else ""
    if status is not None and state in ("running", "silent"):
        silent = f", silent for {duration(status.age)}" if state == "silent" else ""
        who = f"(process {status.pid} on {status.host}{silent})"
        lines += folded([*progress_parts(status), who], _WIDTH)
        told = [one for one in status.running if one.get("step") is not None]
        lines += [f"{GAP}{_facts({**one, 'time': None}, ', ')}" for one in told[:_SHOWN]]
        lines += [f"{GAP}and {len(told) - _SHOWN} more"] * (len(told) > _SHOWN)
        for node in status.nodes:
            part = cluster_part([node], status.kind == "study")
            lines.append(f"{GAP}{node['node']}: {part.partition(', ')[2]}")
    else:
        complete = is_there(folder / "result.json")
        at_work = "A process works on it." if is_locked(folder) else idle_line(status, resume)
        lines.append("Complete." if complete else at_work)
        if status is not None and (status.of or status.done):
            lines.append(GAP.join(progress_parts(still(status))))
    lines += [GAP + event_line(event) for event in read_events(folder, _SHOWN)]
    return [printable(line) for line in lines]


def still(status: Status) -> Status:
    """What of it stays true once nobody works."""
    kept = {name: getattr(status, name) for name in _STILL}
    return Status(status.kind, status.state, "", **kept)


def run_lines(folder: Path) -> list[str]:
    """Where a run or a deployment stands."""
    status = read_status(folder)
    kind = "Deployment" if is_there(folder / CURRENT) else "Run"
    kind = "Watch for new studies" if status and status.pattern else kind
    return folder_lines(f"{kind} {folder}", folder, resume_command(folder, status), status)


def resume_command(folder: Path, status: Status | None, name: str = "") -> str:
    """Return the command that goes on with a run or a deployment.

    Args:
        folder: of it.
        status: its last one.
        name: how its user calls it; its folder by default.
    """
    if status is not None and status.pattern:
        below = folder.parent.parent == Path(DEPLOYMENTS).absolute()
        deployment = folder.parent.name if below else str(folder.parent)
        return shlex.join(["slipstream", "deploy", "--as", deployment, "--watch", status.pattern])
    return f"slipstream resume {shlex.quote(name or str(folder))}"


def idle_line(status: Status | None, resume: str) -> str:
    """Why nobody works on it, and what goes on with it."""
    go_on = f"go on with `{resume}`."
    if status is None or status.state == "stopped":
        return f"No process works on it; {go_on}"
    if status.state == "failed":
        return f"It failed: {status.reason} Mend it, then {go_on}"
    if status.state == "complete" and status.pattern:
        return f"It has looked once; {go_on}"
    if status.state == "complete" and status.kind == DEPLOYMENT:
        return f"Its feed has ended; {go_on}"
    if status.state == "complete":
        return f"It was complete, and its result is missing; {go_on}"
    return (
        f"Process {status.pid} on {status.host} worked on it and is gone without a word (killed?), "
        f"{duration(status.age)} after it last wrote; {go_on}"
    )


def event_line(event: Mapping[str, Any]) -> str:
    """One event for people: ``2026-01-31 07:30:00 UTC  checkpoint  steps 1,000``."""
    facts = {name: value for name, value in event.items() if name not in ("at", "event")}
    told = str(event.get("line") or f"{event['event']}{GAP}{_facts(facts, GAP)}")
    return f"{log_time(event['at'])}{GAP}{printable(told.strip())}"


def _best(best: Mapping[str, Any]) -> str:
    """``best 1.234 (trial 145, -0.5 to 2.31)``."""
    told = [f"trial {best['trial']}"] if "trial" in best else []
    if best.get("low") is not None and best.get("high") is not None:
        told.append(f"{four_digits(best['low'])} to {four_digits(best['high'])}")
    return f"best {four_digits(best['score'])}" + (f" ({', '.join(told)})" if told else "")


def _outcomes(counts: Mapping[str, int]) -> str:
    """``180 complete (7 inactive), 238 pruned, 2 failed``."""
    found = {kind: counts.get(kind, 0) for kind in ("complete", "pruned", "failed")}
    unable = [f"{counts[kind]} {kind}" for kind in ("inactive", "violating") if counts.get(kind)]
    idle = f" ({', '.join(unable)})" if unable else ""
    failed = f", {found['failed']} failed" if found["failed"] else ""
    return f"{found['complete']} complete{idle}, {found['pruned']} pruned{failed}" * bool(counts)


def _facts(facts: Mapping[str, Any], gap: str) -> str:
    """``trial 7, step 40,000``."""
    known = {name: value for name, value in facts.items() if value is not None}
    return gap.join(f"{name} {v if name == 'pid' else _plain(v)}" for name, v in known.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(one) for one in value[:8])}{', ...' * (len(value) > 8)}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
