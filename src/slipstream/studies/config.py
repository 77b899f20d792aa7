"""StudyConfig: everything that decides a study besides the config that it varies.

Search spaces that come as files lie in `spaces/`, with the settings of a config that each needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from slipstream.core.bounds import Count, InnerShare, Natural, Seed
from slipstream.core.config import Config
from slipstream.core.storage import yaml_file
from slipstream.core.timeline import FoldPlan

_MUTABLE_FIELDS = ("n_trials", "final_refit", "keep_weights")
"""Fields that may change between two calls of one study: no trial depends on them."""
SETTINGS = "settings"
"""The key of a space's file that holds settings by dotted path; all other keys are ranges."""
_OPTIONAL_FIELDS = ("start_with", "constraints", "from_study")
"""Fields that studies of earlier versions lack: where they say nothing, nothing differs."""


class PruningConfig(Config):
    """When a trial stops early (docs/rules.md, section 12)."""

    enabled: bool = Field(True, description="stop trials at rungs")
    rungs: tuple[InnerShare, ...] = Field(
        (1 / 3, 2 / 3), description="shares of the budget where a trial is scored and may stop"
    )
    startup: Natural = Field(16, description="first trials, never stopped")
    min_correlation: Annotated[float, Field(ge=-1, le=1)] = Field(
        0.5, description="a rung stops trials only while its scores rank finished trials this well"
    )
    record: bool = Field(False, description="score trials at rungs even where nothing is stopped")

    @field_validator("rungs")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("name each share once, in ascending order")
        return value


class ConfirmationConfig(Config):
    """How the best trials are trained again and the winner is chosen.

    See docs/rules.md, section 13.
    """

    top: Count = Field(10, description="trials that are trained again")
    seeds: Count = Field(5, description="fresh seeds each")
    bootstrap: Count = Field(2_000, description="resamples of seeds and days")
    block_days: Annotated[float, Field(ge=1)] = Field(
        10.0, description="mean length of a block of days that is resampled together"
    )
    level: InnerShare = Field(
        0.05,
        description="level of the bounds: the candidates share it on the folds, so that each is "
        "judged by its level / top quantile; the hold-out has it whole",
    )


class StudyConfig(Config):
    """The `study` section of a config file; `slipstream tune` reads it."""

    n_trials: Count = Field(500, description="suggestions tried")
    seed: Seed = Field(0, description="of sampler and members")
    max_concurrent_trials: Count = Field(
        16, description="virtual slots; decides what an ask can know"
    )
    sampler: Literal["tpe", "random", "gp", "cmaes", "qmc"] = Field(
        "tpe", description="who suggests, of Optuna's samplers"
    )
    folds: FoldPlan = Field(default_factory=FoldPlan, description="train and test, on markets")
    fold_seeds: Count = Field(6, description="folds of an environment without prices: seeds")
    objective: Literal["sharpe", "information_ratio", "log_growth"] = Field(
        "sharpe", description="score of a fold on markets; games: mean return"
    )
    constraints: dict[str, float] = Field(
        default_factory=dict,
        description="the most that a metric of the environment may be, in every block of every "
        "fold: a trial beyond it cannot win",
    )
    fold_dispersion_penalty: Annotated[float, Field(ge=0)] = Field(
        0.1, description="times the deviation over folds, taken off a trial's score"
    )
    pruning: PruningConfig = Field(
        default_factory=lambda: PruningConfig.model_validate({}), description="stopping early"
    )
    confirmation: ConfirmationConfig = Field(
        default_factory=lambda: ConfirmationConfig.model_validate({}),
        description="training the best again",
    )
    final_seeds: Count = Field(5, description="seeds of the winner before the hold-out is opened")
    final_refit: bool = Field(False, description="also train the winner on everything")
    keep_weights: bool = Field(
        True, description="keep the weights of the search's trials, which nothing reads later"
    )
    from_study: str | None = Field(
        None, description="a study whose finished trials tell the sampler, by name or path"
    )
    start_with: tuple[dict[str, Any], ...] = Field(
        (),
        description="settings that the first trials have, by dotted name; the sampler adds others",
    )
    space: str | dict[str, Any] | None = Field(
        None,
        description="what is searched: ranges by dotted name, or a space's file; null: all "
        "names with a range beside their default",
    )

    @field_validator("sampler", mode="before")
    @classmethod
    def _as_optuna_writes_it(cls, value: object) -> object:
        """TPE and CMA-ES are tpe and cmaes."""
        return value.lower().replace("-", "") if isinstance(value, str) else value

    def identity(self) -> dict[str, Any]:
        """The fields that decide a trial; a study keeps them from its first start on."""
        values = self.model_dump(mode="json")
        unsaid = [name for name in _OPTIONAL_FIELDS if not values[name]]
        for name in (
            *_MUTABLE_FIELDS,
            *unsaid,
            "space",
        ):  # the space is compared by itself, resolved
            del values[name]
        return values


def digest(values: Mapping[str, Any]) -> str:
    """sha256 of plain values, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def published_spaces() -> list[str]:
    """Return the names of the spaces that come as files."""
    files = (resources.files("slipstream.studies") / "spaces").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def read_published_space(name: str) -> Any:
    """Return what a space's file says."""
    file = resources.files("slipstream.studies") / "spaces" / f"{name}.yaml"
    return yaml_file.parse(file.read_text(encoding="utf-8"), f"{name}.yaml")


def space_settings(name: object) -> Mapping[str, Any]:
    """Return settings, by dotted path, without which a space means something else."""
    if not isinstance(name, str) or name not in published_spaces():
        return {}
    found: Mapping[str, Any] = read_published_space(name).get(SETTINGS, {})
    return found
