"""Trials as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from slipstream.files.files import plain
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader, Trial

FORMATS = ("csv", "json")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes a text for a formula by


def export_text(folder: StudyFolder, kind: str) -> str:
    """All trials by number.

    Args:
        folder: the study's.
        kind: ``csv`` (a column for each param and fold; a text that a spreadsheet would run as a
            formula has an apostrophe before it) or ``json`` (everything, as it is).
    """
    with StudyReader(folder) as reader:
        trials = reader.trials()
    if kind == "json":
        rows = {"study": folder.name, "trials": [_record(trial) for trial in trials]}
        return json.dumps(plain(rows), indent=2, allow_nan=False) + "\n"
    records = [_row(trial) for trial in trials]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_guarded(name) for name in names])
    writer.writerows([[_guarded(record.get(name)) for name in names] for record in records])
    return text.getvalue()


def _guarded(value: Any) -> Any:
    """Numbers as they are; text, such as a choice or a reason, never as a formula."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    told = str(value)
    return f"'{told}" if told.startswith(_FORMULA) else told


def _record(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "inactive": trial.inactive,
        "params": dict(trial.params),
        "overrides": dict(trial.overrides),
        "folds": [dict(fold) for fold in trial.folds],
        "rungs": [
            {"milestone": v.milestone, "kind": v.kind, "score": v.score, "reason": v.reason}
            for v in trial.stages
        ],
        "reason": trial.reason,
        "asked_at": trial.asked_at,
        "ended_at": trial.ended_at,
    }


def _row(trial: Trial) -> dict[str, Any]:
    row = {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "inactive": trial.inactive,
        "reason": trial.reason,
    }
    row |= {f"params.{name}": value for name, value in trial.params.items()}
    row |= {f"folds.{k}": fold.get("score") for k, fold in enumerate(trial.folds)}
    return row
