"""Successor: a new study's confirmed winner that takes a deployment over by itself, or does not.

It does when every gate holds and it beats the policy in force on bars that no opening saw and
neither was trained on: those that the paper account has kept since. Nothing is remembered but the
audit, so that it may be killed at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from glob import glob
from math import inf
from pathlib import Path

import numpy as np

from slipstream.core.errors import CheckpointError, ConfigError, SlipstreamError
from slipstream.core.safe_io import path_exists
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import AppendOnlyFile, acquire_lock, make_folder
from slipstream.core.storage.folder_registry import read_id
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import Interrupted, Interruption, clear_stop_request
from slipstream.core.storage.status_file import DEPLOYMENT, LEDGER, LOG, Status, resume_command
from slipstream.core.text import log_time
from slipstream.core.timeline import DAY
from slipstream.markets.evaluation.holdout_register import get_opened_days, price_series
from slipstream.markets.evaluation.market_backtest import MarketBacktest
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.deployment_gates import deploy
from slipstream.markets.live.paper_account import BARS
from slipstream.report.statistics import Floats, Ints
from slipstream.report.study.study_view import daily_returns
from slipstream.studies.record.folder import STUDIES
from slipstream.studies.statistics.bootstrap import LEVEL, MIN_BOUND_DAYS, lower_bounds
from slipstream.training.runs.policies import DeployedPolicy

UNCHANGED = "kept"  # event of the audit
_REQUIRED_FILES = (
    "result.json",
    f"policy/{checkpoint.MANIFEST}",
)  # of a complete study with a policy
WATCH = "watch"
_POLL_SECONDS = 60.0
_STOP_SECONDS = 0.5  # between two looks at a request to stop
Notify = Callable[[str], None]


def watch(
    pattern: str, name: str, *, once: bool = False, notify: Notify = lambda sentence: None
) -> None:
    """Looks at new studies until it is interrupted, each when it is complete, and all once a day.

    Args:
        pattern: of studies' names below ``./studies``, or of their folders: ``'nightly*'``.
        name: of the deployment.
        once: look once.
        say: told every line that is kept, and what a new version was preferred for.

    Raises:
        Interrupted: somebody asked it to stop.
    """
    deployment, seen, day, looks, trouble = Deployment.from_name(name), list[Path](), -1, 0, ""
    folder = watch_folder(deployment)
    make_folder(folder)
    refusal = f"Another process watches studies for {deployment.path.name}: stop it first."
    log = Logbook(folder, DEPLOYMENT, notify, every=inf)  # its looks have lines of their own

    def log_and_notify(sentence: str) -> None:
        notify(sentence)
        log.say(sentence)

    def show(phase: str) -> None:
        log.show(Status(DEPLOYMENT, phase=phase, done=looks, unit="looks", pattern=pattern), True)

    with ExitStack() as stack:
        stack.enter_context(acquire_lock(folder, refusal))
        clear_stop_request(folder)  # it was for the process before
        interruption = stack.enter_context(Interruption(folder))
        stack.enter_context(log)
        show("starting")
        while not interruption.requested:
            studies, today = _complete_studies(pattern), int(time.time() // DAY)
            if studies != seen or today != day:
                try:
                    promote_first_passing(studies, pattern, deployment, log_and_notify)
                    seen, day, looks, trouble = studies, today, looks + 1, ""
                except SlipstreamError as error:  # another process deploys, say: in a minute again
                    if once:
                        raise
                    if str(error) != trouble:
                        log_and_notify(str(error))
                    trouble = str(error)
            show(f"watches {pattern}")
            if once:
                return
            wake = time.monotonic() + _POLL_SECONDS
            while time.monotonic() < wake and not interruption.requested:
                time.sleep(_STOP_SECONDS)
        command = resume_command(folder, Status(DEPLOYMENT, pattern=pattern))
        raise Interrupted(deployment.path, command, "Resume with:")


def watch_folder(deployment: Deployment) -> Path:
    """Return the folder of the process that watches studies: its status, log and lock."""
    return deployment.path / WATCH


def promote_first_passing(
    studies: list[Path], pattern: str, deployment: Deployment, notify: Notify
) -> None:
    """Put the first study in force that passes; else log a line that names each and why not."""
    before, reasons = _deployed_ids(deployment), list[str]()
    for study in studies:
        if read_id(study) in before:
            reasons.append(f"{study.name}: it was in force before")
            continue
        messages: list[str] = []
        try:
            deploy(
                study,
                str(deployment.path),
                {},
                notify=messages.append,
                preference=lambda new: _explain_preference(new, deployment),
            )
        except SlipstreamError as error:
            failed = [line.removeprefix("FAILED").strip() for line in messages if "FAILED" in line]
            reasons.append(f"{study.name}: {'; '.join(failed) or error}")
            continue
        notify(
            f"Version {deployment.current} of {deployment.path.name} is in force: "
            f"{deployment.audit()[-1]['why']}."
        )
        return
    reasons += [f"{one.name}: {why}" for one, why in _incomplete_studies(pattern)]
    why = " | ".join(reasons) or f"no study is called {pattern}"
    make_folder(deployment.path)
    with acquire_lock(
        deployment.path, f"Another process deploys {deployment.path.name}: wait for it."
    ):
        deployment.append_audit(UNCHANGED, deployment.current, {"why": why})
    stays = (
        f"Version {deployment.current} stays in force"
        if deployment.exists
        else "Nothing was deployed"
    )
    line = f"{stays}: {why}"
    notify(line)
    with closing(AppendOnlyFile(deployment.path / LOG)) as log:
        log.write(f"{log_time(time.time())}  {line}\n".encode())


def _find_studies(pattern: str) -> list[Path]:
    """Return the folders of studies with these names."""
    path = Path(pattern).expanduser()
    whole = path if len(path.parts) > 1 else Path(STUDIES) / path
    return [
        one.absolute() for one in map(Path, sorted(glob(str(whole)))) if path_exists(one / LEDGER)
    ]


def _complete_studies(pattern: str) -> list[Path]:
    """Return complete studies that have a policy; the one that ended last comes first."""
    there = [
        one
        for one in _find_studies(pattern)
        if all(path_exists(one / file) for file in _REQUIRED_FILES)
    ]
    return sorted(there, key=lambda one: (one / _REQUIRED_FILES[0]).stat().st_mtime, reverse=True)


def _incomplete_studies(pattern: str) -> list[tuple[Path, str]]:
    """Return the other studies, and why there is nothing to deploy."""
    whys = dict(
        zip(
            _REQUIRED_FILES,
            ("it is not complete", "it has no policy: it had no winner"),
            strict=True,
        )
    )
    lacking = {
        one: next((file for file in _REQUIRED_FILES if not path_exists(one / file)), None)
        for one in _find_studies(pattern)
    }
    return [(one, whys[file]) for one, file in lacking.items() if file is not None]


def _deployed_ids(deployment: Deployment) -> set[str]:
    """Ids of the studies that were in force under this name, though they were rolled back."""
    lines = [line for line in deployment.audit() if line["event"] != UNCHANGED]
    if lines and lines[-1]["to"] != deployment.current:  # a kill between the line and the switch
        lines.pop()
    numbers = {line["to"] for line in lines} & set(deployment.versions)
    known = (checkpoint.read_manifest(deployment.version(one)).get("id") for one in numbers)
    return {one for one in known if one is not None}


def _explain_preference(new: DeployedPolicy, deployment: Deployment) -> str:
    """What a policy was preferred for.

    Raises:
        ConfigError: it is not better, or nothing shows it yet.
    """
    if not deployment.exists:
        return "the first one, and every gate holds"
    old, bars = deployment.policy(), deployment.account(deployment.current) / BARS
    before, end = (one.metadata.get("trained_until") for one in (old, new))
    if end is None or before is None or end <= before:
        raise ConfigError(
            "its prices are not known to end later than those of the version in force"
        )
    try:
        each = [_daily_results(one, bars, end) for one in (old, new)]
    except CheckpointError as error:
        raise ConfigError(f"nothing to compare it on: {error}") from None
    except SlipstreamError as error:
        raise ConfigError(f"the account's bars of {log_time(end)} on: {error}") from None
    days, *rows = np.intersect1d(each[0][0], each[1][0], return_indices=True)
    fresh = ~np.isin(days, list(each[0][2] | each[1][2]))
    excess = (each[1][1][rows[1]] - each[0][1][rows[0]])[fresh]
    many = f"{len(excess)} days since {log_time(end)} that no opening saw"
    bound = lower_bounds([excess[None, :]], each[1][3], LEVEL)
    ratio, lower = float(bound.ratio[0]), float(bound.lower[0])
    if np.isnan(lower):
        raise ConfigError(f"not shown to be better: {many}, and a bound needs {MIN_BOUND_DAYS}")
    figures = (
        f"information ratio {ratio:.2f} against version {deployment.current}, lower bound "
        f"{lower:.2f}, on {many}"
    )
    if lower <= 0.0:
        raise ConfigError(f"not better: {figures}")
    return figures


def _daily_results(
    policy: DeployedPolicy, bars: Path, start: int
) -> tuple[Ints, Floats, frozenset[int], float]:
    """Days and returns of a policy on the kept bars from a moment on; days that were opened."""
    if not bars.is_dir():
        raise CheckpointError("the paper account has kept no bar yet")
    environment = policy.environment(bars, None, start)
    backtest = MarketBacktest.from_environment(environment)
    assert backtest is not None and environment.spec.market is not None
    passes = backtest.for_split("window", policy.config.training.resolved_backend)
    days, returns = daily_returns(passes, policy.evaluate(environment)["window"][0])
    opened = get_opened_days(price_series(environment, "window"))
    return days, returns, opened, environment.spec.market.days_per_year
