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

_REDRAWS = 8  # redraws of the live lines per second
_PLAIN_SECONDS = 10.0  # interval of plain lines
_SECONDS = 0.5  # interval of redraws
_MOST = 400  # maximum points of a curve
_WIDTH, _HEIGHT = 640, 150  # pixels of the curves
_COLUMNS = 100  # width of the lines
_COLOURS = {"training": "#0072b2", "validation": "#d55e00"}


class ConsoleCallback:
    """Shows progress on a terminal, wrapped to its width.

    Args:
        console: output console.
        clock: time in seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(
            file=cast(TextIO, robust_stream(sys.stdout)), highlight=False
        )
        self._clock = clock
        self._live: Live | None = None
        self._reporter = ProgressReporter(self, clock)
        self._drawn = -1e9
        self._shown = ""

    def __call__(self, event: Event) -> None:
        """Handle an event of a training."""
        self._reporter(event)

    @property
    def due(self) -> bool:
        """Return whether `show` would draw now."""
        wait = 1 / _REDRAWS if self._console.is_terminal else _PLAIN_SECONDS
        return self._clock() - self._drawn >= wait

    def show(self, status: Status, at_once: bool = False) -> None:
        """Redraw the live lines; without a terminal, print a line at intervals if it changed."""
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
        # The start is reported as a message.
        elif not (
            status.total > 0
            and parts[0] != self._shown
            and (self.due or (status.is_done and not at_once))
        ):
            return
        else:
            self._shown = parts[0]
            self.log("  ".join(parts))
        self._drawn = self._clock()

    def log(self, line: str, style: str = "") -> None:
        """Print a message above the live lines."""
        self._console.print(Text(printable_lines(line), style=style), soft_wrap=True)

    def log_event(self, event: str, line: str = "", style: str = "", **fields: Any) -> None:
        """Print an event that has a line."""
        if event == "finished":  # the live lines are complete
            self.close()
        if line:
            self.log(line, style)

    def close(self) -> None:
        """Remove the live lines. Safe after an interruption."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def default_callback() -> ConsoleCallback | NotebookCallback | None:
    """Return the default progress callback; None without a terminal or notebook."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if type(shell).__name__ == "ZMQInteractiveShell":
        return NotebookCallback()
    return ConsoleCallback() if is_interactive() else None


class NotebookCallback:
    """Shows progress and the score curves in the notebook cell that trains.

    Args:
        clock: time in seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        module: Any = import_module("IPython.display")  # always available in a notebook
        self._html, self._display = module.HTML, module.display
        self._clock, self._drawn = clock, -1e9
        self._handle: Any = None  # IPython's handle of the redrawn output
        self._reporter = ProgressReporter(self, clock)
        self._curves: dict[str, list[tuple[int, float]]] = {name: [] for name in _COLOURS}

    def __call__(self, event: Event) -> None:
        """Handle an event of a training."""
        if isinstance(event, Updated) and "score" in event.metrics:
            self._add("training", event.progress, event.metrics["score"])
        elif isinstance(event, Evaluated):
            self._add("validation", event.progress, event.scores)
        self._reporter(event)

    @property
    def due(self) -> bool:
        """Return whether `show` would draw now."""
        return self._clock() - self._drawn >= _SECONDS

    def show(self, status: Status, at_once: bool = False) -> None:
        """Redraw the lines and the curves."""
        if not (at_once or self.due or status.is_done):
            return
        lines = "\n".join(wrap_parts(progress_parts(status), _COLUMNS))
        content = self._html(f"<pre>{html.escape(lines)}</pre>{curves(self._curves)}")
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)
        self._drawn = self._clock()

    def log(self, line: str, style: str = "") -> None:
        """Print a message below."""
        print(printable_lines(line))

    def log_event(self, event: str, line: str = "", style: str = "", **fields: Any) -> None:
        """Print an event that has a line, unless a curve shows it."""
        if line and event != "validated":
            self.log(line)

    def close(self) -> None:
        """Do nothing: the output stays in the notebook."""

    def _add(self, name: str, progress: Progress, scores: NDArray[np.float64]) -> None:
        """Add a point to a curve: the mean over members with a score."""
        finite, points = scores[np.isfinite(scores)], self._curves[name]
        spacing = progress.budget / _MOST
        if len(finite) and (not points or progress.steps - points[-1][0] >= spacing):
            points.append((progress.steps, float(finite.mean())))


def curves(points_by_name: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return the curves as SVG, in colours for light and dark themes; empty before a second point.

    Args:
        points_by_name: steps and score of each point, by name.
    """
    curves_shown = {name: points for name, points in points_by_name.items() if len(points) > 1}
    if not curves_shown:
        return ""
    all_points = np.array([point for points in curves_shown.values() for point in points])
    (left, low), (right, high) = all_points.min(axis=0), all_points.max(axis=0)
    wide, tall = max(right - left, 1.0), (high - low) or 1.0
    parts, x = list[str](), 0
    for name, points in curves_shown.items():
        coordinates = " ".join(
            f"{(steps - left) / wide * _WIDTH:.1f},{(high - score) / tall * _HEIGHT:.1f}"
            for steps, score in points
        )
        line = f'fill="none" stroke-width="2" stroke="{_COLOURS[name]}"'
        parts.append(f'<polyline points="{coordinates}" {line}/>')
        label = f"{name} score {points[-1][1]:.4g}"
        parts.append(f'<text x="{x}" y="{_HEIGHT + 34}" fill="{_COLOURS[name]}">{label}</text>')
        x += 220
    axis_text = f"{low:.4g} to {high:.4g}, {int(right):,} steps"
    parts.append(f'<text x="0" y="{_HEIGHT + 17}" fill="#888">{axis_text}</text>')
    size = f'viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 44}" width="{_WIDTH}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" font-size="12" {size}>{"".join(parts)}</svg>'
