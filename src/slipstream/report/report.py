"""Reports: what `slipstream evaluate` and the end of training write."""

from __future__ import annotations

from pathlib import Path

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
