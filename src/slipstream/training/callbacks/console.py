"""What a terminal shows of a run or a study: live lines, or plain ones where nobody can redraw."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.core.storage.status import Status, folded, progress_parts
from slipstream.core.text import printable_lines
from slipstream.training.callbacks.events import Event
from slipstream.training.callbacks.output import steady
from slipstream.training.callbacks.telling import Telling

_REDRAWS = 8  # of the live lines, per second
_PLAIN_SECONDS = 10.0  # between plain lines


class ConsoleListener:
    """Shows progress on a terminal, folded to its width.

    Args:
        console: where to.
        clock: seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(file=cast(TextIO, steady(sys.stdout)), highlight=False)
        self._clock = clock
        self._live: Live | None = None
        self._telling = Telling(self, clock)
        self._drawn = -1e9
        self._shown = ""

    def __call__(self, event: Event) -> None:
        """Listens to a training."""
        self._telling(event)

    @property
    def due(self) -> bool:
        """Whether `show` would do anything now."""
        wait = 1 / _REDRAWS if self._console.is_terminal else _PLAIN_SECONDS
        return self._clock() - self._drawn >= wait

    def show(self, status: Status, at_once: bool = False) -> None:
        """Redraws the lines; where nobody can redraw, prints one now and then if it changed."""
        parts = progress_parts(status)
        if self._console.is_terminal:
            if not (at_once or self.due):
                return
            if self._live is None:
                self._live = Live(
                    Text(""),
                    console=self._console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                )
                self._live.start()
            lines = "\n".join(folded(parts, self._console.width))
            self._live.update(Text(lines, no_wrap=True, overflow="ellipsis"), refresh=True)
        # What begins is said in a sentence: nothing is planned yet.
        elif not (
            status.of > 0
            and parts[0] != self._shown
            and (self.due or (status.all_done and not at_once))
        ):
            return
        else:
            self._shown = parts[0]
            self.say("  ".join(parts))
        self._drawn = self._clock()

    def say(self, line: str, style: str = "") -> None:
        """Prints a sentence above the live lines."""
        self._console.print(Text(printable_lines(line), style=style), soft_wrap=True)

    def note(self, event: str, line: str = "", style: str = "", **facts: Any) -> None:
        """Prints an event that has a line."""
        if event == "finished":  # live lines have no more to tell
            self.close()
        if line:
            self.say(line, style)

    def close(self) -> None:
        """Takes the live lines away; also safe after an interruption."""
        if self._live is not None:
            self._live.stop()
            self._live = None
