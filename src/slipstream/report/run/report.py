"""Reports: what `slipstream evaluate` and the end of training write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.report.game.page import plain_page
from slipstream.report.inputs import RunEvaluation
from slipstream.report.market.page import market_page
from slipstream.report.page import Page, write
from slipstream.report.portfolio.page import portfolio_page
from slipstream.report.run.evaluation import evaluate_deployed, evaluate_run
from slipstream.training.runs.deployed import DeployedPolicy
from slipstream.training.runs.run import Run


def build_page(run: RunEvaluation) -> Page:
    """The page of a run, with or without prices; its `lines` suit a terminal too."""
    if run.market is None:
        return plain_page(run)
    return market_page(run) if run.holdings is None else portfolio_page(run)


def write_report(run: RunEvaluation, folder: Path) -> Path:
    """Writes `report.html` and `figures/*.png` into `folder`; returns the page's path."""
    return write(build_page(run), folder)


def report_run(
    path: str | Path | Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    out: str | Path | None = None,
    count: bool = True,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Evaluates a run directory's best policies and writes the report.

    Args:
        path: the run directory, or the run.
        data: folder of other prices to score instead of the run's own splits.
        symbols: which of the prices; those of the run unless given.
        start, stop: score only the bars in this half-open range, UTC seconds.
        out: where the report goes; by default the run directory, or its `window` folder when bars
            were chosen.
        count: this is one more look at the test split, which the run directory counts.
        say: told that it begins, then what stands above the sections.

    Returns:
        Path of `report.html`.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    if say is not None:
        say("Evaluating the chosen policies for the report ...")
    found = evaluate_run(run, data=data, symbols=symbols, start=start, stop=stop, count=count)
    chosen = any(option is not None for option in (data, symbols, start, stop))
    return _written(found, Path(out or (run.path / "window" if chosen else run.path)), say)


def report_deployed(
    deployed: DeployedPolicy,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Scores a policy that a study deployed and writes the report.

    Args:
        deployed: the policy.
        data, symbols, start, stop: as for `report_run`; a market needs one of them.
        out: where the report goes; by default a folder beside the policy's.
        say: told what stands above the sections.

    Returns:
        Path of `report.html`.
    """
    folder = deployed.path
    found = evaluate_deployed(deployed, data=data, symbols=symbols, start=start, stop=stop)
    return _written(found, Path(out or folder.with_name(f"{folder.name}-window")), say)


def _written(found: RunEvaluation, folder: Path, say: Callable[[str], None] | None) -> Path:
    page = build_page(found)
    if say is not None:
        for line in page.lines:
            say(line)
    return write(page, folder)
