"""Progress of a run or a study on a terminal or in a notebook."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.core.storage.status_file import Status, progress_parts, wrap_parts
from slipstream.core.text import printable_lines
from slipstream.training.callbacks.events import Evaluated, Event, Progress, Updated
from slipstream.training.callbacks.output import is_interactive, robust_stream
from slipstream.training.callbacks.progress_reporter import ProgressReporter

_REDRAWS = 8  # of the live lines, per second
_PLAIN_SECONDS = 10.0  # between plain lines
_SECONDS = 0.5  # between drawings
_MOST = 400  # points of a curve
_WIDTH, _HEIGHT = 640, 150  # of the curves, pixels
_COLUMNS = 100  # of the lines
_COLOURS = {"training": "#0072b2", "validation": "#d55e00"}


class ConsoleCallback:
    """Shows progress on a terminal, folded to its width.

    Args:
        console: where to.
        clock: seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(
            file=cast(TextIO, robust_stream(sys.stdout)), highlight=False
        )
        self._clock = clock
        self._live: Live | None = None
        self._telling = ProgressReporter(self, clock)
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
            lines = "\n".join(wrap_parts(parts, self._console.width))
            self._live.update(Text(lines, no_wrap=True, overflow="ellipsis"), refresh=True)
        # What begins is said in a sentence: nothing is planned yet.
        elif not (
            status.of > 0
            and parts[0] != self._shown
            and (self.due or (status.is_done and not at_once))
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


def default_callback() -> ConsoleCallback | NotebookCallback | None:
    """Who shows progress where nobody else is named: None where nobody watches."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if type(shell).__name__ == "ZMQInteractiveShell":
        return NotebookCallback()
    return ConsoleCallback() if is_interactive() else None


class NotebookCallback:
    """Shows progress and the curves of the score in the cell that trains.

    Args:
        clock: seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        module: Any = import_module("IPython.display")  # a notebook has it
        self._html, self._display = module.HTML, module.display
        self._clock, self._drawn = clock, -1e9
        self._handle: Any = None  # of the place that is drawn again; IPython's own
        self._telling = ProgressReporter(self, clock)
        self._curves: dict[str, list[tuple[int, float]]] = {name: [] for name in _COLOURS}

    def __call__(self, event: Event) -> None:
        """Listens to a training."""
        if isinstance(event, Updated) and "score" in event.metrics:
            self._add("training", event.progress, event.metrics["score"])
        elif isinstance(event, Evaluated):
            self._add("validation", event.progress, event.scores)
        self._telling(event)

    @property
    def due(self) -> bool:
        """Whether `show` would do anything now."""
        return self._clock() - self._drawn >= _SECONDS

    def show(self, status: Status, at_once: bool = False) -> None:
        """Draws the lines and the curves again."""
        if not (at_once or self.due or status.is_done):
            return
        lines = "\n".join(wrap_parts(progress_parts(status), _COLUMNS))
        shown = self._html(f"<pre>{html.escape(lines)}</pre>{curves(self._curves)}")
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)
        self._drawn = self._clock()

    def say(self, line: str, style: str = "") -> None:
        """Prints a sentence below."""
        print(printable_lines(line))

    def note(self, event: str, line: str = "", style: str = "", **facts: Any) -> None:
        """Prints an event that has a line; what a curve shows is not said, too."""
        if line and event != "validated":
            self.say(line)

    def close(self) -> None:
        """Nothing is held: what was drawn stays in the notebook."""

    def _add(self, name: str, progress: Progress, scores: NDArray[np.float64]) -> None:
        """A point of a curve: the mean of the members that have a score."""
        known, points = scores[np.isfinite(scores)], self._curves[name]
        apart = progress.budget / _MOST
        if len(known) and (not points or progress.steps - points[-1][0] >= apart):
            points.append((progress.steps, float(known.mean())))


def curves(known: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """The curves as SVG, in colours that show on white and on black; empty before a second point.

    Args:
        known: by name, steps and score of each point.
    """
    shown = {name: points for name, points in known.items() if len(points) > 1}
    if not shown:
        return ""
    every = np.array([point for points in shown.values() for point in points])
    (left, low), (right, high) = every.min(axis=0), every.max(axis=0)
    wide, tall = max(right - left, 1.0), (high - low) or 1.0
    parts, place = list[str](), 0
    for name, points in shown.items():
        at = " ".join(
            f"{(steps - left) / wide * _WIDTH:.1f},{(high - score) / tall * _HEIGHT:.1f}"
            for steps, score in points
        )
        line = f'fill="none" stroke-width="2" stroke="{_COLOURS[name]}"'
        parts.append(f'<polyline points="{at}" {line}/>')
        words = f"{name} score {points[-1][1]:.4g}"
        parts.append(f'<text x="{place}" y="{_HEIGHT + 34}" fill="{_COLOURS[name]}">{words}</text>')
        place += 220
    ends = f"{low:.4g} to {high:.4g}, {int(right):,} steps"
    parts.append(f'<text x="0" y="{_HEIGHT + 17}" fill="#888">{ends}</text>')
    size = f'viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 44}" width="{_WIDTH}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" font-size="12" {size}>{"".join(parts)}</svg>'
