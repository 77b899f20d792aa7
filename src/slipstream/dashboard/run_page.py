"""What the page of a run is told: curves, status, config and what lies in its directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slipstream.agents.discover import list_agents, load_config
from slipstream.core.config import model_in
from slipstream.core.discover import list_kernels
from slipstream.core.errors import SlipstreamError
from slipstream.core.reader import read_json
from slipstream.dashboard.news import MALFORMED, News, small
from slipstream.environments.factory import kind_of
from slipstream.files.checkpoint import checkpoints
from slipstream.runs.listeners.metrics import EVALUATIONS, METRICS
from slipstream.runs.run import CHECKPOINTS, CONFIG, PROVENANCE, REPORT, RESULT
from slipstream.settings.sections import EvaluationConfig, TrainingConfig
from slipstream.settings.target import read_config

VIDEOS = (".gif", ".mp4")
_MOST = 400  # settings; checkpoints and videos that are named


def run_news(folder: Path, place: str) -> News:
    """What is new of a run since a place."""
    news = News(folder, place)
    if news.changed("facts", ".", CONFIG, CHECKPOINTS, RESULT, REPORT):
        news.events.append(("facts", _facts(folder)))
    news.logbook(f"slipstream resume {shlex.quote(str(folder))}")
    news.rows("metrics", METRICS)
    news.rows("evaluations", EVALUATIONS)
    return news


def _facts(folder: Path) -> dict[str, Any]:
    """What lies in the directory; what cannot be read is left out and said."""
    facts: dict[str, Any] = {"name": folder.name, "page": small(folder, REPORT) is not None}
    facts["checkpoints"] = [one.name for one in checkpoints(folder / CHECKPOINTS)][-_MOST:]
    names = sorted(one.name for kind in VIDEOS for one in folder.glob(f"*{kind}"))
    facts["videos"] = [name for name in names[:_MOST] if small(folder, name)]
    try:
        facts["config"] = config_rows(read_config(folder / CONFIG)) if small(folder, CONFIG) else []
        result = read_json(folder / RESULT, SlipstreamError, "") if small(folder, RESULT) else None
        facts["score_is"] = str((result or {}).get("score_is", ""))
        made = (
            read_json(folder / PROVENANCE, SlipstreamError, "") if small(folder, PROVENANCE) else {}
        )
        facts["command"] = str((made or {}).get("command", ""))
    except MALFORMED as error:
        facts["unreadable"] = str(error)
    return facts


def config_rows(values: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Settings by dotted name, their values in words, and whether each is the default.

    Nothing that the config names is imported unless it is slipstream's own: of others, nobody knows
    the defaults here.
    """
    models: dict[str, type[BaseModel] | None] = {
        "training": TrainingConfig,
        "evaluation": EvaluationConfig,
    }
    for section, known in (("env", list_kernels()), ("agent", list_agents())):
        below = values.get(section)
        name = str(below.get("name")) if isinstance(below, Mapping) else ""
        if name in known:
            own = kind_of(name).model(name) if section == "env" else load_config(name)[1]
            models[section] = own
    found: list[tuple[str, str, bool]] = []
    for section, below in values.items():
        _add(found, str(section), below, models.get(str(section)))
    return found[:_MOST]


def _add(
    found: list[tuple[str, str, bool]], where: str, values: Any, model: type[BaseModel] | None
) -> None:
    if not isinstance(values, Mapping):
        found.append((where, _words(values), False))
        return
    for key, value in values.items():
        field = model.model_fields.get(str(key)) if model is not None else None
        nested = model_in(field.annotation) if field is not None else None
        if isinstance(value, Mapping) and value and nested is not None:
            _add(found, f"{where}.{key}", value, nested)
            continue
        default = field.get_default(call_default_factory=True) if field is not None else ...
        found.append((f"{where}.{key}", _words(value), _words(value) == _words(default)))


def _words(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return str(list(value) if isinstance(value, tuple) else value)[:300]
