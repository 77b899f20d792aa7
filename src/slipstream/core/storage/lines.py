"""What people read of a `Status` and of events: the same lines in terminals, log files and pages.

Names, notes and reasons may come from files that strangers wrote: no line sends a control character
to a terminal.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from slipstream.core.reader import is_there
from slipstream.core.storage.lock import is_locked
from slipstream.core.storage.machine import Machine
from slipstream.core.storage.status import (
    CURRENT,
    DEPLOYMENT,
    DEPLOYMENTS,
    Status,
    read_events,
    read_status,
)
from slipstream.core.text import plural, printable

GAP = "  "
_SHOWN = 5  # last events; members under way
_STILL = ("done", "of", "unit", "best", "scores", "counts", "phases")  # once nobody works
_WIDTH = 110  # of lines that are folded, but where a terminal knows better


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
        "" if status.eta is None else f"ETA {clock(status.eta)}",
        *(f"{name.removeprefix('episode/')} {_range(one)}" for name, one in status.scores.items()),
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
        silent = f", silent for {clock(status.age)}" if state == "silent" else ""
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
        f"{clock(status.age)} after it last wrote; {go_on}"
    )


def event_line(event: Mapping[str, Any]) -> str:
    """One event for people: ``2026-01-31 07:30:00 UTC  checkpoint  steps 1,000``."""
    facts = {name: value for name, value in event.items() if name not in ("at", "event")}
    told = str(event.get("line") or f"{event['event']}{GAP}{_facts(facts, GAP)}")
    return f"{stamp(event['at'])}{GAP}{printable(told.strip())}"


def stamp(at: float) -> str:
    """UTC seconds as every line begins with them."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):  # not written by us
        return "at some time"


def summary(values: Iterable[float]) -> tuple[float, float, float] | None:
    """Mean, lowest and highest of the finite values; None before there is one."""
    finite = [float(value) for value in values if math.isfinite(value)]
    return (sum(finite) / len(finite), min(finite), max(finite)) if finite else None


def spread(values: Iterable[float]) -> str:
    """One value, or mean and range over members; ``-`` before there is one."""
    return _range(summary(values) or ())


def number(value: float) -> str:
    """Four significant digits, all digits of large numbers."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def short(value: float) -> str:
    """``950``, ``118 k``, ``1.24 M``."""
    if value < 1_000:
        return f"{value:.0f}"
    return f"{value / 1e3:.0f} k" if value < 1e6 else f"{value / 1e6:.2f} M"


def clock(seconds: float) -> str:
    """``0:12`` or ``1:02:03``."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    return f"{hours}:{rest_minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _range(found: Sequence[float]) -> str:
    if not found:
        return "-"
    mean, lowest, highest = (number(one) for one in (found[0], min(found), max(found)))
    return mean if lowest == highest else f"{mean} ({lowest} to {highest})"


def _best(best: Mapping[str, Any]) -> str:
    """``best 1.234 (trial 145, -0.5 to 2.31)``."""
    told = [f"trial {best['trial']}"] if "trial" in best else []
    if best.get("low") is not None and best.get("high") is not None:
        told.append(f"{number(best['low'])} to {number(best['high'])}")
    return f"best {number(best['score'])}" + (f" ({', '.join(told)})" if told else "")


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
