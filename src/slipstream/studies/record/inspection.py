"""Inspection of a run or study by name: status, best config, export, stop."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.core.safe_io import path_exists
from slipstream.core.storage import folder_registry
from slipstream.core.storage.atomic_io import is_locked, to_jsonable
from slipstream.core.storage.checkpoint import read_manifest
from slipstream.core.storage.csv_table import csv_text
from slipstream.core.storage.signals import request_stop
from slipstream.core.storage.status_file import (
    CURRENT,
    DEPLOYMENT,
    DEPLOYMENTS,
    MARKER_FILES,
    STUDY,
    Status,
    current_version,
    folder_status_lines,
    read_status,
    run_lines,
)
from slipstream.core.text import format_significant, printable
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import (
    Ledger,
    Trial,
    best_trials,
    count_states,
    nearest_violation,
)
from slipstream.training.settings.config import resolve

VERSIONS = "versions"
FORMATS = ("csv", "json")
_MAX_LISTED = 5


def status_lines(folder: StudyFolder) -> list[str]:
    """Return the status of a study in lines."""
    with Ledger(folder.ledger, read_only=True) as ledger:
        trials, result = ledger.trials(), folder.result
        status, ranked = read_status(folder.path), best_trials(trials)
        if (
            status is not None and not folder.is_locked
        ):  # after a kill the ledger is newer than the status
            counts = count_states(trial.last_decision for trial in trials)
            limit = int(ledger.get_metadata("cut") or folder.study.n_trials)
            done = sum(trial.state != "running" for trial in trials)
            best = status.best
            if ranked and best.get("trial") != ranked[0].number:
                best = {"score": ranked[0].score, "trial": ranked[0].number}
            status = replace(
                status, completed=done, total=limit, unit="trials", counts=counts, best=best
            )
        resume = f"slipstream resume {folder.handle}"
        lines = folder_status_lines(
            f"Study {folder.name} in {folder.path}", folder.path, resume, status
        )
        if ranked:
            lines.append(
                "Best trials (selected by the scores shown, which are therefore optimistic):"
            )
        for trial in ranked[:_MAX_LISTED]:
            settings = trial.suggestion.params.items()
            params = ", ".join(f"{name} {_short(value)}" for name, value in settings)
            lines.append(
                f"  trial {trial.number}: {format_significant(trial.score or 0.0)}  {params}"
            )
        for kind in ("violating", "failed"):
            mine = [trial for trial in trials if trial.final_state == kind]
            lines += [
                f"  {kind}: trial {trial.number}: {trial.reason}" for trial in mine[:_MAX_LISTED]
            ]
        lines += [] if result is None else result["sentences"]
        return [printable(line) for line in lines]


def best_config(folder: StudyFolder, number: int | None = None) -> str:
    """Return YAML for `slipstream train`: of a trial, else the winner, else the best trial so far.

    Raises:
        CheckpointError: no trial has finished, or there is no such trial.
    """
    with Ledger(folder.ledger, read_only=True) as ledger:
        trials = {trial.number: trial for trial in ledger.trials()}
        winner = (folder.result or {}).get("winner") or {}
        why = "requested"
        if number is None and winner:
            number, why = int(winner["trial"]), "the confirmed winner"
            if winner["forced"]:
                why = "deployed by force, not confirmed"
        if number is None:
            ranked = best_trials(list(trials.values()))
            if not ranked and any(trial.state == "complete" for trial in trials.values()):
                last = [trial.last_decision for trial in trials.values()]
                near = nearest_violation(last)
                idle = not near or any(trial.final_state == "inactive" for trial in last)
                within = " with policies that trade in every fold" * idle
                within += " within its constraints" * bool(near)
                loosen = f"{near}: begin a study with looser `study.constraints`, or " * bool(near)
                raise CheckpointError(
                    f"No trial of {folder.name} ended{within}, so none is best; {loosen}print any "
                    f"with `slipstream study best {folder.handle} --trial N`."
                )
            if not ranked:
                raise CheckpointError(
                    f"No trial of {folder.name} has finished yet: see `slipstream study status "
                    f"{folder.handle}`."
                )
            number, why = ranked[0].number, "best score on the folds' tests, not confirmed"
        if number not in trials:
            raise CheckpointError(
                f"The study {folder.name} has no trial {number}; it has {len(trials)}, from 0 on."
            )
        config = resolve(folder.base, trials[number].suggestion.overrides)
        score = trials[number].score
        score_text = "none" if score is None else f"{score:.6g}"
        head = f"# Study {printable(folder.name)}, trial {number}: {why}; score {score_text}.\n"
        return head + config.to_yaml()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def export_text(folder: StudyFolder, kind: str) -> str:
    """Export all trials by number.

    Args:
        folder: folder of the study.
        kind: ``csv`` (a column for each param and fold; a text that a spreadsheet would run as a
            formula gets a leading apostrophe) or ``json`` (everything, unchanged).
    """
    with Ledger(folder.ledger, read_only=True) as ledger:
        trials = ledger.trials()
    if kind == "json":
        rows = {"study": folder.name, "trials": [_record(trial) for trial in trials]}
        return json.dumps(to_jsonable(rows), indent=2, allow_nan=False) + "\n"
    return csv_text([_row(trial) for trial in trials])


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "inactive": trial.last_decision.is_inactive,
        "violating": trial.final_state == "violating",
        "reason": trial.reason,
    }


def _record(trial: Trial) -> dict[str, Any]:
    rung = ("milestone", "kind", "score", "reason")
    return _facts(trial) | {
        "params": trial.suggestion.params,
        "overrides": trial.suggestion.overrides,
        "folds": list(trial.last_decision.folds),
        "rungs": [{name: getattr(decision, name) for name in rung} for decision in trial.decisions],
        "asked_at": trial.suggestion.at,
        "ended_at": None if trial.state == "running" else trial.last_decision.at,
    }


def _row(trial: Trial) -> dict[str, Any]:
    params = {f"params.{name}": value for name, value in trial.suggestion.params.items()}
    folds = {f"folds.{k}": fold.get("score") for k, fold in enumerate(trial.last_decision.folds)}
    return _facts(trial) | params | folds


def status(name: str | os.PathLike[str]) -> Status | None:
    """Return the last status of a run or study; None before the first.

    Args:
        name: a run's directory, or a study's name or folder.
    """
    return read_status(lookup(name)[0])


def stop(name: str | os.PathLike[str]) -> bool:
    """Request that a run or study stops after the current iteration, as Ctrl-C does.

    Returns:
        True if a process works on it; otherwise nothing is requested.
    """
    folder, _ = lookup(name)
    if not is_running(folder):
        return False
    request_stop(folder)
    return True


def lookup(name: str | os.PathLike[str]) -> tuple[Path, StudyFolder | None]:
    """Return the folder of a name, and the study if it is one.

    Args:
        name: a path, the name of a study below ``./studies`` or of a deployment below
            ``./deployments``, or the name of a folder that this user's commands created anywhere.

    Raises:
        CheckpointError: it is neither a run, a study nor a deployment, or several have that name.
    """
    name = os.fspath(name)
    path = Path(name).expanduser().absolute()
    if path_exists(path / "config.yaml") or path_exists(path / CURRENT) or _watches(path):
        return path, None
    study, deployed = StudyFolder.from_name(name), Path(DEPLOYMENTS).absolute() / name
    if path_exists(deployed / CURRENT):
        if study.exists:
            raise CheckpointError(
                f"2 are called {name}: give its path, of {study.path} and {deployed}."
            )
        return deployed, None
    if not study.exists and not path_exists(study.config):
        registered = folder_registry.find_folder(name)
        if registered is not None and not path_exists(registered / MARKER_FILES[STUDY]):
            return registered, None
        if registered is None:
            raise CheckpointError(
                f"{name} is neither a run nor a study: give the directory that `slipstream train` "
                "printed, or the name that `slipstream tune` or `deploy` was given; `slipstream "
                "jobs --all` lists those that your commands made."
            )
        name = str(registered)  # a study
    study = StudyFolder.open(name)
    return study.path, study


def _watches(folder: Path) -> bool:
    """Return whether a process in this folder watches studies for a deployment."""
    status = read_status(folder)
    return status is not None and status.kind == DEPLOYMENT


def is_running(folder: Path) -> bool:
    """Return whether a process works in a folder, as far as this machine can see."""
    status = read_status(folder)
    if status is None:  # just begun
        return is_locked(folder)
    # After a clock change a living process can look like another one, so the lock is checked.
    return status.liveness() in ("running", "silent") or is_locked(folder)


def describe(name: str | Path) -> list[str]:
    """Return the status of a run or study in lines."""
    folder, study = lookup(name)
    if study is not None:
        return status_lines(study)
    lines = run_lines(folder)
    if path_exists(folder / CURRENT):
        lines += [f"  {printable(line)}" for line in _forced(folder)]
    return lines


def _forced(deployment: Path) -> list[str]:
    """Return the reasons for which failed gates of the deployed version were overridden."""
    from slipstream.training.runs.policies import (
        forced_gate_warnings,
    )  # imports environments and networks

    number = current_version(deployment)
    return forced_gate_warnings(read_manifest(deployment / VERSIONS / str(number)))
