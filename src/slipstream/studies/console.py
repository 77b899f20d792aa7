"""What a terminal shows of a study: one live line, or plain lines where nobody can redraw."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.studies.progress import Standing
from slipstream.training.console import clock, number, short

_PLAIN_SECONDS = 30.0


class StudyConsole:
    """Shows where a study stands.

    Args:
        console: where to.
        now: seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(highlight=False)
        self._now = now
        self._live: Live | None = None
        self._drawn = -1e9
        self._shown = ""

    def show(self, standing: Standing) -> None:
        """Redraws the line; where nobody can redraw, a line now and then if it changed."""
        line = standing_line(standing)
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(Text(""), console=self._console, auto_refresh=False)
                self._live.transient = True
                self._live.start()
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._now() - self._drawn >= _PLAIN_SECONDS and counts(standing) != self._shown:
            self._drawn, self._shown = self._now(), counts(standing)
            self.say(line)

    def say(self, line: str, style: str | None = None) -> None:
        """Prints a sentence above the live line."""
        self._console.print(Text(line, style=style or ""), soft_wrap=True)

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
    parts = [f"{standing.complete} done", f"{standing.pruned} pruned"]
    if standing.failed:
        parts.append(f"{standing.failed} failed")
    parts.append(f"{standing.running} running")
    return f"search {ended}/{standing.trials}: {', '.join(parts)}"


def standing_line(standing: Standing) -> str:
    """Everything in one line, most important first."""
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
    if standing.memory:
        held = f"{standing.memory / 2**30:.1f} GiB"
        parts.append(f"CPU {standing.cpu:.0f} %  GPU not used  memory {held}")
    return "  ".join(parts)
