"""`slipstream status RUN`: what a run's directory tells while another process may train it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.reader import is_there
from slipstream.training.listeners.console import clock, count, number, short
from slipstream.training.listeners.node_lines import node_lines
from slipstream.training.record.lock import is_locked
from slipstream.training.record.status import Status, read_events, read_status

_RESULT = "result.json"
_SHOWN = 5  # last events


def run_lines(folder: Path) -> list[str]:
    """Where a run stands, in lines."""
    lines = [f"Run {folder}"]
    status, resume = read_status(folder), f"slipstream resume {folder}"
    if status is not None and status.judged() in ("running", "silent"):
        lines.append(progress_line(status))
        lines += node_lines(status.details.get("nodes", ()), stretches=False)
    elif is_there(folder / _RESULT):
        lines.append("Complete.")
    elif status is None and is_locked(folder):  # of an older version
        lines.append("A process trains it.")
    else:
        lines.append(idle_line(status, resume))
        if status is not None and status.total:
            lines.append(_how_far(status))
    return lines + [event_line(event) for event in read_events(folder, _SHOWN)]


def progress_line(status: Status) -> str:
    """``training  42 %, 210,000 of 500,000 steps  118 k steps/s  ETA 0:12  (process 7 on big)``."""
    parts = [status.phase]
    if status.total:
        parts.append(_how_far(status))
    if status.rate is not None:
        parts.append(f"{short(status.rate)} steps/s")
    if status.score is not None:
        parts.append(f"score {number(status.score)}")
    if status.eta is not None:
        parts.append(f"ETA {clock(status.eta)}")
    told = f"process {status.pid} on {status.host}"
    if status.judged() == "silent":
        told += f", silent for {clock(status.age)}"
    return "  ".join([*parts, f"({told})"])


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
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(event["at"]))
    facts = [
        f"{name} {value if name == 'pid' else _plain(value)}"
        for name, value in event.items()
        if name not in ("at", "event")
    ]
    return "  ".join([f"  {at}", str(event["event"]), *facts])


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_plain(one) for one in value[:8])}{', ...' * (len(value) > 8)}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _how_far(status: Status) -> str:
    share = 100 * status.done / max(status.total, 1)
    return f"{share:.0f} %, {count(status.done)} of {count(status.total)} {status.unit}"
