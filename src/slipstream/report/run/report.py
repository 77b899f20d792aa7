"""Reports: what `slipstream evaluate` and the end of training write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from slipstream.core.plugins import offered
from slipstream.report.inputs import RunEvaluation, Window
from slipstream.report.page import Page, write
from slipstream.report.run.evaluation import evaluate_deployed, evaluate_run
from slipstream.report.run.page import run_page
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.runs.run import EPISODES, Run


def build_page(run: RunEvaluation) -> Page:
    """Return the page of a run: a plugin's for its environments, else the plain one.

    Its `lines` suit a terminal too.
    """
    pages = (page(run.environment, run) for page in offered("pages"))
    return next(filter(None, pages), None) or run_page(run)


def report_run(
    path: str | Path | Run,
    *,
    out: str | Path | None = None,
    count: bool = True,
    say: Callable[[str], None] | None = None,
    **window: Unpack[Window],
) -> Path:
    """Evaluates a run directory's best policies and writes the report and `episodes.csv`.

    Args:
        path: the run directory, or the run.
        out: where the report goes; by default the run directory, or its `window` folder when bars
            were chosen.
        count: this is one more look at the test split, which the run directory counts.
        say: told that it begins, then what stands above the sections.
        window: bars to score instead of the run's own splits.

    Returns:
        Path of `report.html`.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    if say is not None:
        say("Evaluating the chosen policies for the report ...")
    found = evaluate_run(run, count=count, **window)
    chosen = any(option is not None for option in window.values())
    folder = Path(out or (run.path / "window" if chosen else run.path))
    return _write(found, folder, say)


def report_deployed(
    deployed: DeployedPolicy,
    *,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
    **window: Unpack[Window],
) -> Path:
    """Scores a policy that a study deployed and writes the report and `episodes.csv`.

    Args:
        deployed: the policy.
        out: where the report goes; by default a folder beside the policy's.
        say: told what stands above the sections.
        window: bars to score; a market needs a choice.

    Returns:
        Path of `report.html`.
    """
    folder = deployed.path
    found = evaluate_deployed(deployed, **window)
    out = Path(out or folder.with_name(f"{folder.name}-window"))
    return _write(found, out, say)


def _write(found: RunEvaluation, folder: Path, say: Callable[[str], None] | None) -> Path:
    """Writes the page, and a row for each of its evaluation episodes."""
    rows = [
        {"member": found.number(k), "data": data, "episode": one.name, "return": one.ret}
        | {"length": one.length, **one.metrics}
        for data, members in found.tracks.items()
        for k, tracks in enumerate(members)
        for one in tracks
    ]
    return write(build_page(found), folder, say=say, tables={EPISODES: rows})
