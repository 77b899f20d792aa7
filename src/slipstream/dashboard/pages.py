"""Updates of the pages of a run, a study and a deployment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slipstream.core.config import find_model
from slipstream.core.errors import SlipstreamError
from slipstream.core.safe_io import UnreadableError, read_json
from slipstream.core.storage import yaml_file
from slipstream.core.storage.checkpoint import checkpoints
from slipstream.core.storage.database import ConcurrentWriteError
from slipstream.core.storage.status_file import LEDGER
from slipstream.core.storage.updates import (
    MALFORMED,
    MOST_BYTES,
    Cursor,
    Updates,
    find_small_file,
    read_tail,
    resolve_inside,
)
from slipstream.dashboard.overview import open_ledger
from slipstream.kernels.kernel_registry import list_kernels
from slipstream.rl.agents.agent_registry import list_agents, load_config
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Slot, Trial, best_trials
from slipstream.training.callbacks.metrics import EVALUATIONS, METRICS
from slipstream.training.environments.factory import get_kind
from slipstream.training.population.member_state import PROGRESS_FILE
from slipstream.training.runs.run import CHECKPOINTS, CONFIG, PROVENANCE, REPORT, RESULT
from slipstream.training.settings.config import STUDY, EvaluationConfig, TrainingConfig, read_config

VIDEOS = (".gif", ".mp4")
_MAX_ITEMS = 400  # maximum number of settings, checkpoints and videos


def run_updates(folder: Path, cursor: str) -> Updates:
    """Return updates of a run since a cursor."""
    updates = Updates(folder, cursor)
    if updates.has_changed("facts", ".", CONFIG, CHECKPOINTS, RESULT, REPORT):
        updates.events.append(("facts", _run_metadata(folder)))
    updates.add_logbook(f"slipstream resume {shlex.quote(str(folder))}")
    updates.add_rows("metrics", METRICS)
    updates.add_rows("evaluations", EVALUATIONS)
    return updates


def _run_metadata(folder: Path) -> dict[str, Any]:
    """Return the contents of the folder; unreadable parts are omitted and reported."""
    facts: dict[str, Any] = {
        "name": folder.name,
        "page": find_small_file(folder, REPORT) is not None,
    }
    facts["checkpoints"] = [checkpoint.name for checkpoint in checkpoints(folder / CHECKPOINTS)][
        -_MAX_ITEMS:
    ]
    names = sorted(path.name for kind in VIDEOS for path in folder.glob(f"*{kind}"))
    facts["videos"] = [name for name in names[:_MAX_ITEMS] if find_small_file(folder, name)]
    try:
        facts["config"] = (
            config_rows(read_config(folder / CONFIG)) if find_small_file(folder, CONFIG) else []
        )
        result = (
            read_json(folder / RESULT, SlipstreamError, "")
            if find_small_file(folder, RESULT)
            else None
        )
        facts["score_is"] = str((result or {}).get("score_is", ""))
        made = (
            read_json(folder / PROVENANCE, SlipstreamError, "")
            if find_small_file(folder, PROVENANCE)
            else {}
        )
        facts["command"] = str((made or {}).get("command", ""))
    except MALFORMED as error:
        facts["unreadable"] = str(error)
    return facts


def config_rows(values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return settings by dotted name, their values as text, and whether each is the default.

    Only slipstream's own classes are imported; defaults of others are unknown here.
    """
    models: dict[str, type[BaseModel] | None] = {
        "training": TrainingConfig,
        "evaluation": EvaluationConfig,
    }
    for section, known in (("env", list_kernels()), ("agent", list_agents())):
        below = values.get(section)
        name = str(below.get("name")) if isinstance(below, Mapping) else ""
        if name in known:
            model = get_kind(name).model if section == "env" else load_config(name)[1]
            models[section] = model
    rows: list[tuple[str, str, bool]] = []
    for section, below in values.items():
        _add_rows(rows, str(section), below, models.get(str(section)))
    return rows[:_MAX_ITEMS]


def _add_rows(
    rows: list[tuple[str, str, bool]], where: str, values: Any, model: type[BaseModel] | None
) -> None:
    if not isinstance(values, Mapping):
        rows.append((where, _format_value(values), False))
        return
    for key, value in values.items():
        field = model.model_fields.get(str(key)) if model is not None else None
        nested = find_model(field.annotation) if field is not None else None
        if isinstance(value, Mapping) and value and nested is not None:
            _add_rows(rows, f"{where}.{key}", value, nested)
            continue
        default = field.get_default(call_default_factory=True) if field is not None else ...
        rows.append(
            (f"{where}.{key}", _format_value(value), _format_value(value) == _format_value(default))
        )


def _format_value(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return str(list(value) if isinstance(value, tuple) else value)[:300]


PAGE = "study.html"
_PROGRESS_PATH = f"live/{PROGRESS_FILE}"
_MAX_PROGRESS_ROWS = 2_000  # progress rows of one update
_CURVE_POINTS = 120  # initial points of a member's curve
_MAX_TEXT = 400  # maximum length of a text
_RECENT_SECONDS = 300.0  # members with a point in this time are sent first


def study_updates(folder: Path, cursor: str) -> Updates:
    """Return updates of a study since a cursor."""
    updates = Updates(folder, cursor)
    if updates.has_changed("facts", "study.yaml", "result.json", PAGE):
        updates.events.append(("facts", _study_metadata(folder)))
    updates.add_logbook(f"slipstream resume {shlex.quote(str(folder))}")
    _add_trials(updates)
    _add_progress(updates)
    return updates


def importances(folder: Path) -> dict[str, float]:
    """Return hyperparameter importances, see `SearchSpace.importances`.

    Raises:
        SlipstreamError, UnreadableError, OSError: its files cannot be read.
    """
    from slipstream.studies.space import SearchSpace  # importing Optuna takes a second, once

    resolve_inside(folder, "study.yaml", MOST_BYTES)
    space = SearchSpace.from_stored(read_config(folder / "study.yaml")[STUDY]["space"])
    with open_ledger(folder) as (ledger, _):
        trials = ledger.trials()
    return space.importances(
        [(trial.suggestion.params, trial.score) for trial in trials if trial.score is not None]
    )


def _study_metadata(folder: Path) -> dict[str, Any]:
    """Return the settings of a study and, at its end, its result."""
    facts: dict[str, Any] = {"name": folder.name, "page": find_small_file(folder, PAGE) is not None}
    try:
        study_folder = StudyFolder(folder)
        if find_small_file(folder, "study.yaml"):
            values, study = read_config(folder / "study.yaml"), study_folder.study
            rungs = study.pruning.rungs if study.pruning.enabled or study.pruning.record else ()
            space = study.space if isinstance(study.space, dict) else {}
            facts |= {
                "n_trials": study.n_trials,
                "rungs": list(rungs),
                "steps": values.get("training", {}).get("total_timesteps"),
                "log": [name for name, one in space.items() if _is_log(one)],
                "text": yaml_file.dump(values)[: 64 << 10],
            }
        result = study_folder.result if find_small_file(folder, "result.json") else None
        if result is not None:
            facts["result"] = {name: result.get(name) for name in ("sentences", "market")}
            facts["result"]["candidates"] = result["confirmation"]["candidates"][:100]
    except MALFORMED as error:
        facts["unreadable"] = str(error)
    return facts


def _is_log(one: Any) -> bool:
    return isinstance(one, Mapping) and bool(one.get("log"))


def _add_trials(updates: Updates) -> None:
    """Add trials that are new or updated; a row replaces the earlier row of the trial.

    New rows are found by time. If the clock was set back and some are missing, all are sent again.
    """
    before = updates.numbers("trials")
    try:
        with open_ledger(updates.folder) as (ledger, (num_suggestions, decisions, openings)):
            if [num_suggestions, decisions, openings] == before[:3]:
                updates.set_cursor("trials", updates.previous("trials"))
                return
            trials = ledger.trials()
        newest = max([0.0, *(_last_time(trial) for trial in trials)])
        rows = trials
        if len(before) == 4 and before[0] <= num_suggestions and before[1] <= decisions:
            times = [
                at
                for trial in trials
                for at in (trial.suggestion.at, *(stage.at for stage in trial.decisions))
            ]
            if (
                sum(at > before[3] for at in times)
                == num_suggestions + decisions - before[0] - before[1]
            ):
                rows = [trial for trial in trials if _last_time(trial) > before[3]]
        best = best_trials(trials)[:1]
        trial_updates = {
            "rows": [_row(row) for row in rows],
            "best": best[0].number if best else None,
            "openings": openings,
        }
    except (FileNotFoundError, ConcurrentWriteError):  # the next read returns the rest
        return
    except MALFORMED as error:
        updates.add_snapshot("trials", {"unreadable": f"{LEDGER} cannot be read: {error}"})
        return
    updates.events.append(("trials", trial_updates))
    updates.set_cursor("trials", f"{num_suggestions}_{decisions}_{openings}_{newest!r}")


def _last_time(trial: Trial) -> float:
    return max(trial.suggestion.at, trial.last_decision.at)


def _row(trial: Trial) -> dict[str, Any]:
    """Return a trial as the page draws it; text is bounded, numbers are finite or None."""
    ended = trial.state != "running"
    return {
        "number": trial.number,
        "state": trial.final_state,
        "score": trial.score,
        "started": trial.suggestion.at,
        "ended": trial.last_decision.at if ended else None,
        "params": {
            str(k)[:80]: _bound_value(v) for k, v in list(trial.suggestion.params.items())[:64]
        },
        "folds": [fold.get("score") for fold in trial.last_decision.folds][:64],
        "rungs": [(decision.time, decision.score) for decision in trial.decisions][:16],
        "reason": trial.reason[:_MAX_TEXT],
    }


def _bound_value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else str(value)[:80]


def _add_progress(updates: Updates) -> None:
    """Add progress of members: first their curves, thinned, then new points."""
    mark = Cursor.parse(updates.previous("members"))
    try:
        tail = read_tail(updates.folder, _PROGRESS_PATH, mark)
    except UnreadableError as error:
        updates.add_snapshot("members", {"unreadable": f"{PROGRESS_FILE} cannot be read: {error}."})
        return
    updates.set_cursor("members", str(tail.cursor))
    curves: dict[str, list[tuple[float, float | None, float]]] = {}
    for line in tail.lines:
        try:
            at, name, step, score = json.loads(line)
            point = (float(step), None if score is None else float(score), float(at))
            curves.setdefault(str(name), []).append(point)
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
    rows, newest = [], max((points[-1][2] for points in curves.values()), default=0.0)
    for name, points in curves.items():
        if points[-1][2] < newest - _RECENT_SECONDS:  # the member ended long ago
            continue
        with suppress(ValueError, IndexError):
            slot = Slot.from_name(name[:80])
            stride = -(-len(points) // _CURVE_POINTS)
            sampled = points[(len(points) - 1) % stride :: stride]
            rows += [(slot.phase, slot.trial, slot.repeat, slot.fold, *point) for point in sampled]
    if tail.restarted and updates.previous("members"):
        updates.events.append(("reset", {"part": "members"}))
    if rows:
        updates.events.append(("members", rows[-_MAX_PROGRESS_ROWS * (1 + 9 * updates.is_first) :]))
