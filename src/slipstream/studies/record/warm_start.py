"""WarmStart: finished trials of another study, given to the sampler of this one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.core.config import get_by_path
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.text import date_text, plural
from slipstream.core.timeline import DAY
from slipstream.studies.config import StudyConfig, digest
from slipstream.studies.record.folder import StudyFolder, read_section
from slipstream.studies.record.inspection import lookup
from slipstream.studies.record.ledger import Ledger, Slot, Trial
from slipstream.studies.space import SearchSpace, encode_choice
from slipstream.studies.statistics.returns import (
    check_constraints,
    constraint_values,
    largest_values,
)
from slipstream.training.environments.parts import HoldoutRegister
from slipstream.training.settings.config import RunConfig, read_config

METADATA_KEY = "warm_start"  # of the ledger


@dataclass(frozen=True)
class WarmStart:
    """Trials taken from another study when this one began; later changes there have no effect.

    Attributes:
        study: name of that study.
        trials: for each trial `params` in this study's space, `score`, and `violations`: metric
            minus limit of each constraint of this study.
        num_skipped: finished trials whose settings are not in this study's space.
        num_started: trials started by that study, and by the studies that warm-started it.
    """

    study: str
    trials: Sequence[Mapping[str, Any]]
    num_skipped: int
    num_started: int

    @property
    def sentence(self) -> str:
        """Message on the trials taken."""
        text = f"The sampler has {plural(len(self.trials), 'finished trial')} of {self.study}"
        if self.num_skipped:
            text += f"; {self.num_skipped} more have settings outside this search space"
        return f"{text}."

    @property
    def metadata(self) -> dict[str, Any]:
        """All fields as a JSON-able mapping."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """sha256 of all fields."""
        return digest(self.metadata)


def warm_start(
    folder: StudyFolder, base: RunConfig, config: StudyConfig, space: SearchSpace
) -> WarmStart | None:
    """Return the trials of `study.from_study`, from this study's ledger or read from that study.

    Args:
        folder: folder of this study, new or not.
        base: config that trials vary.
        config: `study` section.
        space: search space.

    Raises:
        ConfigError: the trials of that study do not fit this one.
        CheckpointError: there is no such study, or it cannot be read.
    """
    if config.from_study is None:
        return None
    if folder.exists:
        with suppress(CheckpointError), Ledger(folder.ledger, read_only=True) as ledger:
            if (
                stored := ledger.get_metadata(METADATA_KEY)
            ) is not None:  # else it was killed as it began
                return WarmStart(**stored)
    path, source = lookup(config.from_study)
    named = f"`study.from_study: {config.from_study}`"
    if source is None:
        raise ConfigError(f"{named}: {path} is not a study.")
    if source.path.resolve() == folder.path.resolve():
        raise ConfigError(
            f"{named}: a study cannot warm-start itself. Use `resume` to continue this one."
        )
    values, section = read_config(source.config), read_section(source.config)
    for key, theirs, ours in (
        ("env.name", get_by_path(values, "env.name"), base.env_name),
        ("study.objective", section.objective, config.objective),
        (
            "study.fold_dispersion_penalty",
            section.fold_dispersion_penalty,
            config.fold_dispersion_penalty,
        ),
    ):
        if theirs != ours:
            raise ConfigError(
                f"{named}: there `{key}` is {theirs}, and here it is {ours}, so that scores do not "
                "compare. Name another study, or leave it out."
            )
    searched = SearchSpace.from_stored(section.space if isinstance(section.space, Mapping) else {})
    with Ledger(source.ledger, read_only=True) as ledger:
        trials = ledger.trials()
        done = [trial for trial in trials if trial.state != "running" and trial.score is not None]
        usable = []
        for trial in done:
            params = _params(trial, searched, values, space, base)
            violations = _violations(ledger, trial, config.constraints)
            if params is not None and len(violations) == len(config.constraints):
                usable.append({"params": params, "score": trial.score, "violations": violations})
        behind = (ledger.get_metadata(METADATA_KEY) or {}).get("num_started", 0)
    if not usable:
        why = "no finished trial"
        if done:
            why = f"{plural(len(done), 'finished trial')}, none with settings in this search space"
        raise ConfigError(f"{named}: that study has {why}. Name another one, or leave it out.")
    return WarmStart(source.name, usable, len(done) - len(usable), len(trials) + behind)


def check_holdout(config: StudyConfig, folds: Mapping[str, Any], register: HoldoutRegister) -> None:
    """Refuse `study.from_study` if that study searched on days of this study's hold-out.

    Args:
        config: `study` section of this study.
        folds: `development` and `holdout` of this study, UTC seconds; empty without prices.
        register: register of this study's data.

    Raises:
        ConfigError: the days overlap. Without an entry in the register, the dates of that study's
            folds decide.
    """
    source = None if config.from_study is None else lookup(config.from_study)[1]
    if source is None or "holdout" not in folds:
        return
    begin, end = folds["holdout"]
    days = register.searched_days(str(source.provenance.get("id")), source.path.parent)
    if days is None:
        before = (source.provenance.get("environment") or {}).get("folds") or {}
        until = min(before.get("development", [0, 0])[1], end)
    else:
        until = min((max(days, default=-1) + 1) * DAY, end)
    if until <= begin:
        return
    share = math.floor(100 * (end - until) / (end - folds["development"][0])) / 100
    first, last = date_text(begin), date_text(until - 1)
    later = "take prices that end later and a smaller hold-out"
    if share >= 0.05:
        later = f"let the hold-out begin after them, `--set study.folds.holdout={share:g}`"
    raise ConfigError(
        f"`study.from_study: {config.from_study}`: that study searched on {first} to {last}, which "
        "this study holds out, so that the hold-out would not be out of sample. Leave it out, or "
        f"{later}."
    )


def _params(
    trial: Trial,
    searched: SearchSpace,
    values: Mapping[str, Any],
    space: SearchSpace,
    base: RunConfig,
) -> dict[str, Any] | None:
    """Return a trial's settings as a suggestion of this study; None if it is not in the space.

    A setting that only one of the studies searches has one value in the other's config.
    """
    base_values = base.as_mapping()
    try:
        settings = {
            path: range_.to_value(trial.suggestion.params[path])
            for path, range_ in searched.ranges.items()
        }
        for path in settings.keys() - space.ranges.keys():
            if encode_choice(settings[path]) != encode_choice(get_by_path(base_values, path)):
                return None
        return {
            path: range_.to_suggestion(
                settings[path] if path in settings else get_by_path(values, path)
            )
            for path, range_ in space.ranges.items()
        }
    except (KeyError, ValueError):
        return None


def _violations(ledger: Ledger, trial: Trial, constraints: Mapping[str, float]) -> list[float]:
    """Return the violation of each constraint; fewer values if metrics are missing."""
    folds = []
    for fold in range(len(trial.last_decision.folds) if constraints else 0):
        name = Slot("search", trial.number, 0, fold).name
        outcome = ledger.outcome(name, trial.last_decision.milestone)
        if outcome is not None and outcome.backtests is not None:
            reported = outcome.backtests.metrics[0]
            check_constraints(constraints, list(reported), f"the study in {ledger.path.parent}")
            folds.append(constraint_values(outcome.backtests, constraints))
    figures = largest_values(folds).values()
    return [figure - most for figure, most in figures if math.isfinite(figure)]
