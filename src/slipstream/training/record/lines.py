"""What people read of a `Status` and of events: the same lines in terminals, log files and pages.

Names, notes and reasons may come from files that strangers wrote: no line sends a control character
to a terminal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from slipstream.core.printable import printable
from slipstream.core.reader import is_there
from slipstream.training.record.lock import is_locked
from slipstream.training.record.machine import Machine
from slipstream.training.record.status import Status, read_events, read_status

_GAP = "  "
_SHOWN = 5  # last events; members under way
_UNSAID = ("at", "event", "line")


def progress_line(status: Status) -> str:
    """Where things stand in one line: ``training 42 %, 210,000 of 500,000 steps  ...``."""
    return _GAP.join(progress_parts(status))


def progress_parts(status: Status) -> list[str]:
    """What there is to tell of work under way, most important first."""
    outcomes, study = _outcomes(status.counts), status.kind == "study"
    parts = [how_far(status)]
    if outcomes and status.unit == "trials":
        trials = {one.get("trial") for one in status.running}
        running = f", {len(trials)} running" if trials else ""
        parts[0] += f": {outcomes}{running}"
    elif outcomes:
        parts.append(f"trials: {outcomes}")
    if status.rate is not None:
        parts.append(f"{short(status.rate)} steps/s")
    if status.trials_per_hour is not None and status.unit == "trials":
        parts.append(f"{short(status.trials_per_hour)} trials/h")
    if status.eta is not None:
        parts.append(f"ETA {clock(status.eta)}")
    parts += [
        f"{name.removeprefix('episode/')} {_range(*found)}"
        for name, found in status.scores.items()
        if len(found) == 3
    ]
    if "score" in status.best:
        parts.append(_best(status.best))
    parts += [
        phases_part(status.phases),
        cluster_part(status.nodes, study),
        machine_part(status.machine),
    ]
    return [printable(part) for part in parts if part]


def how_far(status: Status) -> str:
    """``search 84 %, 420 of 500 trials``."""
    if status.of <= 0:
        return status.phase
    share = min(100.0, 100 * status.done / status.of)
    return f"{status.phase} {share:.0f} %, {status.done:,} of {status.of:,} {status.unit}"


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
    told = {key: sum(node[key] for node in nodes) for key in ("seats", "busy", "answers", "losses")}
    seats = many(told["seats"], "seat")
    return ", ".join(
        (
            many(sum(node["seats"] > 0 for node in nodes), "node"),
            f"{told['busy']} of {seats} busy" if stretches else seats,
            many(told["answers"], *(("stretch", "es") if stretches else ("answer",))),
            many(told["losses"], "loss", "es"),
        )
    )


def folded(parts: Sequence[str], width: int) -> list[str]:
    """Lines of whole parts, none wider than `width` unless a part alone is."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return lines


def folder_lines(
    title: str, folder: Path, resume: str, complete: bool, status: Status | None = None
) -> list[str]:
    """Where a run or a study stands, also while another process works on it.

    Args:
        title: the first line.
        folder: of the run or study.
        resume: the command that goes on.
        complete: its result is there.
        status: what it last said of itself; read unless given.
    """
    status, lines = status or read_status(folder), [title]
    if status is not None and status.judged() in ("running", "silent"):
        told = f"process {status.pid} on {status.host}"
        if status.judged() == "silent":
            told += f", silent for {clock(status.age)}"
        lines += [*progress_parts(status), f"({told})"]
        lines += _running_lines(status.running)
        for node in status.nodes:
            part = cluster_part([node], status.kind == "study")
            lines.append(f"  {node['node']}: {part.partition(', ')[2]}")
    elif complete:
        lines.append("Complete.")
    elif is_locked(folder):  # just begun
        lines.append("A process works on it.")
    else:
        lines.append(idle_line(status, resume))
    if status is not None and status.of and len(lines) == 2:
        rest = replace(status, phase="", rate=None, eta=None, running=(), machine={}, nodes=())
        lines.append(progress_line(rest).strip())
    lines += [f"  {event_line(event)}" for event in read_events(folder, _SHOWN)]
    return [printable(line) for line in lines]


def run_lines(folder: Path) -> list[str]:
    """Where a run stands."""
    complete = is_there(folder / "result.json")
    return folder_lines(f"Run {folder}", folder, f"slipstream resume {folder}", complete)


def idle_line(status: Status | None, resume: str) -> str:
    """Why nobody works on it, and what goes on with it."""
    go_on = f"go on with `{resume}`."
    if status is None or status.state == "stopped":
        return f"No process works on it; {go_on}"
    if status.state == "failed":
        return f"It failed: {status.reason} Mend it, then {go_on}"
    if status.state == "complete":
        return f"It was complete, and its result is missing; {go_on}"
    return (
        f"Process {status.pid} on {status.host} worked on it and is gone without a word (killed?), "
        f"{clock(status.age)} after it last wrote; {go_on}"
    )


def event_line(event: Mapping[str, Any]) -> str:
    """One event for people: ``2026-01-31 07:30:00 UTC  checkpoint  steps 1,000``."""
    facts = [
        f"{name} {value if name == 'pid' else _plain(value)}"
        for name, value in event.items()
        if name not in _UNSAID
    ]
    told = event.get("line") or _GAP.join([str(event["event"]), *facts])
    return f"{stamp(event['at'])}  {printable(str(told).strip())}"


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
    found = summary(values)
    return "-" if found is None else _range(*found)


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
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _range(mean: float, lowest: float, highest: float) -> str:
    told = number(mean)
    return told if lowest == highest else f"{told} ({number(lowest)} to {number(highest)})"


def _best(best: Mapping[str, Any]) -> str:
    """``best 1.234 (trial 145, -0.5 to 2.31)``."""
    told = [f"trial {best['trial']}"] if "trial" in best else []
    if best.get("low") is not None and best.get("high") is not None:
        told.append(f"{number(best['low'])} to {number(best['high'])}")
    return f"best {number(best['score'])}" + (f" ({', '.join(told)})" if told else "")


def _outcomes(counts: Mapping[str, int]) -> str:
    """``180 complete (7 inactive), 238 pruned, 2 failed``."""
    told = [f"{counts.get('complete', 0)} complete", f"{counts.get('pruned', 0)} pruned"]
    if counts.get("inactive"):
        told[0] += f" ({counts['inactive']} inactive)"
    if counts.get("failed"):
        told.append(f"{counts['failed']} failed")
    return ", ".join(told) if counts else ""


def phases_part(phases: Mapping[str, float]) -> str:
    """``env 21 policy 30 update 49 %``: of the time, by what took at least half a percent of it."""
    total = sum(phases.values())
    shares = {kind: 100 * value / total for kind, value in phases.items()} if total > 0 else {}
    told = " ".join(f"{kind} {share:.0f}" for kind, share in shares.items() if share >= 0.5)
    return f"{told} %" if told else ""


def _running_lines(running: Sequence[Mapping[str, Any]]) -> list[str]:
    """The members under way that say how far they are."""
    told = [one for one in running if one.get("step") is not None]
    lines = []
    for one in told[:_SHOWN]:
        facts = [
            f"{key} {_plain(one[key])}"
            for key in ("trial", "fold", "step", "score")
            if one.get(key) is not None
        ]
        lines.append(f"  {', '.join(facts)}")
    return lines + [f"  and {len(told) - _SHOWN} more"] * (len(told) > _SHOWN)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(one) for one in value[:8])}{', ...' * (len(value) > 8)}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def many(number: int, word: str, plural: str = "s") -> str:
    """``1 node``, ``3 nodes``."""
    return f"{number:,} {word}{'' if number == 1 else plural}"
