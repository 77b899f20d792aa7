"""Reports: what `slipstream evaluate` and the end of training write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slipstream.report.evaluate import evaluate_run
from slipstream.report.inputs import RunEvaluation
from slipstream.report.market_page import market_page
from slipstream.report.page import Page, write
from slipstream.report.plain_page import plain_page


def build_page(run: RunEvaluation) -> Page:
    """The page of a run, with or without prices; its headline and sentences suit a terminal too."""
    return plain_page(run) if run.market is None else market_page(run)


def write_report(run: RunEvaluation, folder: Path) -> Path:
    """Writes `report.html` and `figures/*.png` into `folder`; returns the page's path."""
    return write(build_page(run), folder)


def report_run(
    path: str | Path,
    *,
    data: str | Path | None = None,
    start: int | None = None,
    stop: int | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Evaluates a run directory's best policies and writes the report.

    Args:
        path: the run directory.
        data: folder of other prices to score instead of the run's own splits.
        start, stop: score only the bars in this half-open range, UTC seconds.
        out: where the report goes; by default the run directory, or its `window` folder when bars
            were chosen.
        say: told the warnings, the headline and the sentences below it.

    Returns:
        Path of `report.html`.
    """
    page = build_page(evaluate_run(path, data=data, start=start, stop=stop))
    if say is not None:
        for sentence in (*page.warnings, page.headline, *page.sentences):
            say(sentence)
    chosen = data is not None or start is not None or stop is not None
    return write(page, Path(out) if out else Path(path) / "window" if chosen else Path(path))
