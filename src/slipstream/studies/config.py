"""StudyConfig: the settings of a study, besides the config that it varies.

Published search spaces are in `spaces/`, with the settings that each requires.
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
"""Fields that may change on resume: no trial depends on them."""
SETTINGS = "settings"
"""Key of a space's file with settings by dotted path; all other keys are ranges."""
_OPTIONAL_FIELDS = ("start_with", "constraints", "from_study")
"""Fields that older studies lack: empty values are not part of the identity."""


class PruningConfig(Config):
    """Configuration of pruning (docs/explanation/statistics.md, section 12)."""

    enabled: bool = Field(True, description="Prune trials at rungs.")
    rungs: tuple[InnerShare, ...] = Field(
        (1 / 3, 2 / 3),
        description="Shares of the budget at which a trial is scored and may be pruned.",
    )
    startup: Natural = Field(16, description="Number of first trials that are never pruned.")
    min_correlation: Annotated[float, Field(ge=-1, le=1)] = Field(
        0.5,
        description="Minimum rank correlation of a rung's scores with final scores for pruning.",
    )
    record: bool = Field(False, description="Score trials at rungs even if pruning is off.")

    @field_validator("rungs")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("name each share once, in ascending order")
        return value


class ConfirmationConfig(Config):
    """Configuration of the confirmation: retraining of the best trials and selection of a winner.

    See docs/explanation/statistics.md, section 13.
    """

    top: Count = Field(10, description="Number of best trials to retrain.")
    seeds: Count = Field(5, description="Fresh seeds of each trial.")
    bootstrap: Count = Field(2_000, description="Number of bootstrap resamples of seeds and days.")
    block_days: Annotated[float, Field(ge=1)] = Field(
        10.0, description="Mean length of a bootstrap block, in days."
    )
    level: InnerShare = Field(
        0.05,
        description="Level of the lower bounds. Candidates share it on the folds: each uses its "
        "level / top quantile. The hold-out uses the whole level.",
    )


class StudyConfig(Config):
    """The `study` section of a config file; `slipstream tune` reads it."""

    n_trials: Count = Field(500, description="Number of trials.")
    seed: Seed = Field(0, description="Seed of the sampler and the members.")
    max_concurrent_trials: Count = Field(
        16,
        description="Concurrent trials in virtual time; decides which results a suggestion sees.",
    )
    sampler: Literal["tpe", "random", "gp", "cmaes", "qmc"] = Field(
        "tpe", description="Optuna sampler."
    )
    folds: FoldPlan = Field(
        default_factory=FoldPlan, description="Train and test folds of markets."
    )
    fold_seeds: Count = Field(
        6, description="Number of folds of an environment without prices; its folds are seeds."
    )
    objective: Literal["sharpe", "information_ratio", "log_growth"] = Field(
        "sharpe", description="Score of a fold on markets; games use the mean return."
    )
    constraints: dict[str, float] = Field(
        default_factory=dict,
        description="Maximum of environment metrics in every block of every fold; a trial that "
        "exceeds one cannot win.",
    )
    fold_dispersion_penalty: Annotated[float, Field(ge=0)] = Field(
        0.1,
        description="Factor of the standard deviation over folds, subtracted from a trial's score.",
    )
    pruning: PruningConfig = Field(
        default_factory=lambda: PruningConfig.model_validate({}), description="Pruning."
    )
    confirmation: ConfirmationConfig = Field(
        default_factory=lambda: ConfirmationConfig.model_validate({}),
        description="Retraining of the best trials.",
    )
    final_seeds: Count = Field(5, description="Seeds of the winner in the final training.")
    final_refit: bool = Field(False, description="Also train the winner on all data.")
    keep_weights: bool = Field(
        True, description="Keep the weights of the search's trials; no command needs them."
    )
    from_study: str | None = Field(
        None, description="Study whose finished trials warm-start the sampler, by name or path."
    )
    start_with: tuple[dict[str, Any], ...] = Field(
        (),
        description="Settings of the first trials, by dotted name; the sampler adds the others.",
    )
    space: str | dict[str, Any] | None = Field(
        None,
        description="Search space: ranges by dotted name, or a space's file; null searches all "
        "settings with a default range.",
    )

    @field_validator("sampler", mode="before")
    @classmethod
    def _as_optuna_writes_it(cls, value: object) -> object:
        """TPE and CMA-ES are tpe and cmaes."""
        return value.lower().replace("-", "") if isinstance(value, str) else value

    def identity(self) -> dict[str, Any]:
        """Return the fields that decide a trial; a study stores them when it begins."""
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
    """Return the sha256 of plain values, independent of their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def published_spaces() -> list[str]:
    """Return the names of the published spaces."""
    files = (resources.files("slipstream.studies") / "spaces").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def read_published_space(name: str) -> Any:
    """Read a published space."""
    file = resources.files("slipstream.studies") / "spaces" / f"{name}.yaml"
    return yaml_file.parse(file.read_text(encoding="utf-8"), f"{name}.yaml")


def space_settings(name: object) -> Mapping[str, Any]:
    """Return the settings that a published space requires, by dotted path."""
    if not isinstance(name, str) or name not in published_spaces():
        return {}
    settings: Mapping[str, Any] = read_published_space(name).get(SETTINGS, {})
    return settings
