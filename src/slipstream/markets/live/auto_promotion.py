"""Automatic promotion: a new study's winner replaces the current version if it is better.

It must pass every gate and beat the current policy on bars that no opening of a hold-out saw and
neither policy was trained on, which are those that the paper account has stored since. The only
state is the audit log, so the process can be killed at any time.
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
from slipstream.markets.live.deployment_gates import deploy_policy
from slipstream.markets.live.paper_account import BARS
from slipstream.report.statistics import Floats, Ints
from slipstream.report.study.study_view import daily_returns
from slipstream.studies.record.folder import STUDIES
from slipstream.studies.statistics.bootstrap import LEVEL, MIN_BOUND_DAYS, lower_bounds
from slipstream.training.runs.policies import DeployedPolicy

UNCHANGED = "kept"  # audit event
_REQUIRED_FILES = (
    "result.json",
    f"policy/{checkpoint.MANIFEST}",
)  # files of a complete study with a policy
WATCH = "watch"
_POLL_SECONDS = 60.0
_STOP_SECONDS = 0.5  # between checks for a stop request
Notify = Callable[[str], None]


def watch_studies(
    pattern: str, name: str, *, once: bool = False, notify: Notify = lambda sentence: None
) -> None:
    """Check new studies until interrupted: each when it is complete, and all once per day.

    Args:
        pattern: names of studies in ``./studies``, or their folders, such as ``'nightly*'``.
        name: name of the deployment.
        once: check once.
        notify: called with each logged line and the reason for a new version.

    Raises:
        Interrupted: a stop was requested.
    """
    deployment, checked, day, looks, trouble = Deployment.from_name(name), list[Path](), -1, 0, ""
    folder = watch_folder(deployment)
    make_folder(folder)
    refusal = f"Another process watches studies for {deployment.path.name}. Stop it first."
    logbook = Logbook(folder, DEPLOYMENT, notify, every=inf)  # checks are logged separately

    def log_and_notify(sentence: str) -> None:
        notify(sentence)
        logbook.log(sentence)

    def show(phase: str) -> None:
        logbook.show(
            Status(DEPLOYMENT, phase=phase, completed=looks, unit="looks", pattern=pattern), True
        )

    with ExitStack() as stack:
        stack.enter_context(acquire_lock(folder, refusal))
        clear_stop_request(folder)  # it was meant for the previous process
        interruption = stack.enter_context(Interruption(folder))
        stack.enter_context(logbook)
        show("starting")
        while not interruption.requested:
            studies, today = _complete_studies(pattern), int(time.time() // DAY)
            if studies != checked or today != day:
                try:
                    promote_first_passing(studies, pattern, deployment, log_and_notify)
                    checked, day, looks, trouble = studies, today, looks + 1, ""
                except SlipstreamError as error:  # retried in a minute
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
    """Return the folder of the process that watches studies, with status, log and lock."""
    return deployment.path / WATCH


def promote_first_passing(
    studies: list[Path], pattern: str, deployment: Deployment, notify: Notify
) -> None:
    """Deploy the first study that passes; otherwise log why each one was rejected."""
    before, reasons = _deployed_ids(deployment), list[str]()
    for study in studies:
        if read_id(study) in before:
            reasons.append(f"{study.name}: it was deployed before")
            continue
        messages: list[str] = []
        try:
            deploy_policy(
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
            f"Version {deployment.current} of {deployment.path.name} is current: "
            f"{deployment.audit()[-1]['why']}."
        )
        return
    reasons += [f"{folder.name}: {reason}" for folder, reason in _incomplete_studies(pattern)]
    reason = " | ".join(reasons) or f"no study matches {pattern}"
    make_folder(deployment.path)
    with acquire_lock(
        deployment.path, f"Another process deploys {deployment.path.name}. Wait for it."
    ):
        deployment.append_audit(UNCHANGED, deployment.current, {"why": reason})
    stays = (
        f"Version {deployment.current} remains current"
        if deployment.exists
        else "Nothing was deployed"
    )
    line = f"{stays}: {reason}"
    notify(line)
    with closing(AppendOnlyFile(deployment.path / LOG)) as file:
        file.write(f"{log_time(time.time())}  {line}\n".encode())


def _find_studies(pattern: str) -> list[Path]:
    """Return the folders of studies that match a pattern."""
    path = Path(pattern).expanduser()
    absolute_pattern = path if len(path.parts) > 1 else Path(STUDIES) / path
    return [
        folder.absolute()
        for folder in map(Path, sorted(glob(str(absolute_pattern))))
        if path_exists(folder / LEDGER)
    ]


def _complete_studies(pattern: str) -> list[Path]:
    """Return complete studies with a policy, most recent first."""
    complete = [
        folder
        for folder in _find_studies(pattern)
        if all(path_exists(folder / file) for file in _REQUIRED_FILES)
    ]
    return sorted(
        complete, key=lambda folder: (folder / _REQUIRED_FILES[0]).stat().st_mtime, reverse=True
    )


def _incomplete_studies(pattern: str) -> list[tuple[Path, str]]:
    """Return the other studies, with the reason."""
    whys = dict(
        zip(
            _REQUIRED_FILES,
            ("it is not complete", "it has no winner, and thus no policy"),
            strict=True,
        )
    )
    lacking = {
        folder: next((file for file in _REQUIRED_FILES if not path_exists(folder / file)), None)
        for folder in _find_studies(pattern)
    }
    return [(folder, whys[file]) for folder, file in lacking.items() if file is not None]


def _deployed_ids(deployment: Deployment) -> set[str]:
    """Return the ids of studies deployed under this name, including those rolled back."""
    lines = [line for line in deployment.audit() if line["event"] != UNCHANGED]
    if lines and lines[-1]["to"] != deployment.current:  # a kill between the line and the switch
        lines.pop()
    numbers = {line["to"] for line in lines} & set(deployment.versions)
    ids = (checkpoint.read_manifest(deployment.version(number)).get("id") for number in numbers)
    return {study_id for study_id in ids if study_id is not None}


def _explain_preference(new: DeployedPolicy, deployment: Deployment) -> str:
    """Return why a policy is preferred.

    Raises:
        ConfigError: it is not better, or this cannot be shown yet.
    """
    if not deployment.exists:
        return "first version, all gates passed"
    old, bars = deployment.policy(), deployment.account(deployment.current) / BARS
    before, end = (policy.metadata.get("trained_until") for policy in (old, new))
    if end is None or before is None or end <= before:
        raise ConfigError("its prices do not end later than those of the current version")
    try:
        results = [_daily_results(policy, bars, end) for policy in (old, new)]
    except CheckpointError as error:
        raise ConfigError(f"nothing to compare it on: {error}") from None
    except SlipstreamError as error:
        raise ConfigError(f"the account's bars of {log_time(end)} on: {error}") from None
    days, *rows = np.intersect1d(results[0][0], results[1][0], return_indices=True)
    fresh = ~np.isin(days, list(results[0][2] | results[1][2]))
    excess = (results[1][1][rows[1]] - results[0][1][rows[0]])[fresh]
    many = f"{len(excess)} days since {log_time(end)} that no opening saw"
    bound = lower_bounds([excess[None, :]], results[1][3], LEVEL)
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
    """Return days and returns of a policy on the stored bars from a time on, and opened days."""
    if not bars.is_dir():
        raise CheckpointError("the paper account has no bars yet")
    environment = policy.environment(bars, None, start)
    backtest = MarketBacktest.from_environment(environment)
    assert backtest is not None and environment.spec.market is not None
    passes = backtest.for_split("window", policy.config.training.resolved_backend)
    days, returns = daily_returns(passes, policy.evaluate(environment).splits["window"].episodes)
    opened = get_opened_days(price_series(environment, "window"))
    return days, returns, opened, environment.spec.market.days_per_year
