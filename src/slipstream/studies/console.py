"""What a terminal shows of a study: live lines, or plain ones where nobody can redraw."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.core.printable import printable_lines
from slipstream.studies.standing import Standing
from slipstream.training.listeners.console import clock, number, short
from slipstream.training.listeners.node_lines import cluster_part
from slipstream.training.listeners.output import steady
from slipstream.training.record.machine import Machine

_PLAIN_SECONDS = 30.0
_GAP = "  "


class StudyConsole:
    """Shows where a study stands, folded to the terminal's width.

    Args:
        console: where to.
        now: seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(file=cast(TextIO, steady(sys.stdout)), highlight=False)
        self._now = now
        self._live: Live | None = None
        self._drawn = -1e9
        self._shown = ""

    def show(self, standing: Standing) -> None:
        """Redraws the lines; where nobody can redraw, a line now and then if it changed."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(Text(""), console=self._console, auto_refresh=False)
                self._live.transient = True
                self._live.start()
            lines = folded(standing_parts(standing), self._console.width)
            text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)
        elif self._now() - self._drawn >= _PLAIN_SECONDS and counts(standing) != self._shown:
            self._drawn, self._shown = self._now(), counts(standing)
            self.say(standing_line(standing))

    def say(self, line: str, style: str | None = None) -> None:
        """Prints a sentence above the live line."""
        self._console.print(Text(printable_lines(line), style=style or ""), soft_wrap=True)

    def close(self) -> None:
        """Takes the live line away; also safe after an interruption."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def counts(standing: Standing) -> str:
    """``search 120/500: 80 done, 38 pruned, 2 failed, 16 running``."""
    if standing.phase != "search":
        return f"{standing.phase} {standing.members_done}/{standing.members} members"
    ended = standing.complete + standing.pruned + standing.failed
    idle = f" ({standing.inactive} inactive)" if standing.inactive else ""
    parts = [f"{standing.complete} done{idle}", f"{standing.pruned} pruned"]
    if standing.failed:
        parts.append(f"{standing.failed} failed")
    parts.append(f"{standing.running} running")
    return f"search {ended}/{standing.trials}: {', '.join(parts)}"


def standing_line(standing: Standing) -> str:
    """Everything in one line, most important first."""
    return _GAP.join(standing_parts(standing))


def folded(parts: Sequence[str], width: int) -> list[str]:
    """Lines of whole parts, none wider than `width` unless a part alone is."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return lines


def standing_parts(standing: Standing) -> list[str]:
    """What there is to tell, most important first."""
    parts = [counts(standing)]
    if standing.trials_per_hour is not None and standing.phase == "search":
        parts.append(f"{short(standing.trials_per_hour)} trials/h")
    if standing.steps_per_second is not None:
        parts.append(f"{short(standing.steps_per_second)} steps/s")
    if standing.eta is not None:
        parts.append(f"ETA {clock(standing.eta)}")
    if standing.best is not None:
        best = f"best {number(standing.best)} (trial {standing.best_trial}"
        if standing.best_low is not None and standing.best_high is not None:
            best += f", {number(standing.best_low)} to {number(standing.best_high)}"
        parts.append(f"{best})")
    if standing.shares:
        shares = [f"{kind} {100 * share:.0f}" for kind, share in standing.shares.items()]
        parts.append(" ".join(shares) + " %")
    if standing.nodes:
        parts.append(cluster_part(standing.nodes))
    if standing.machine:
        parts.append(str(Machine(**standing.machine)))
    return parts
