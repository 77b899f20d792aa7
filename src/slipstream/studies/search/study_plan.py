"""StudyPlan: the configs, folds and members of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from slipstream.core.config import Config
from slipstream.core.random import derive_seed
from slipstream.core.timeline import DEVELOPMENT, EVERYTHING, FOLD, HOLDOUT, test_split
from slipstream.kernels.spec import MarketSpec
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.ledger import Slot
from slipstream.studies.record.warm_start import WarmStart
from slipstream.studies.space import SearchSpace
from slipstream.training.population.member import Member
from slipstream.training.settings.config import RunConfig, resolve
from slipstream.training.settings.sizing import limited, size_of, size_suggestions


class Stages(NamedTuple):
    """Milestones at which a trial is scored.

    Attributes:
        milestones: iterations of a member, ascending; the last one is the end.
        steps: the same in steps of a member.
        shares: shares of the budget at the rungs, as configured.
    """

    milestones: tuple[int, ...]
    steps: tuple[int, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class StudyPlan:
    """Everything about a study that does not depend on outcomes.

    Attributes:
        base: the config that trials vary; `members` is 1 and `num_envs` a number.
        study: the `study` section.
        space: the search space.
        num_folds: number of folds of a trial.
        market: values for annualisation; None for games, whose folds are seeds.
        warm_start: trials of another study given to the sampler.
    """

    base: RunConfig
    study: StudyConfig
    space: SearchSpace
    num_folds: int
    market: MarketSpec | None
    warm_start: WarmStart | None = None

    @property
    def num_prior_trials(self) -> int:
        """Number of trials of earlier studies behind the warm start; they count as tried."""
        return 0 if self.warm_start is None else self.warm_start.num_started

    @cached_property
    def sampled_configs(self) -> tuple[RunConfig, ...]:
        """Configs of random trials; their mean cost estimates the mean cost of trials."""
        return tuple(self.config(values) for values in self.space.sample_overrides(self.base))

    def with_configs(
        self, draws: Sequence[RunConfig], study: StudyConfig | None = None
    ) -> StudyPlan:
        """Return a plan with other sampled configs, and optionally another `study` section."""
        plan = replace(self, study=study or self.study)
        vars(plan)["sampled_configs"] = tuple(draws)
        return plan

    def with_limit(self, path: str, most: int) -> StudyPlan | None:
        """Return a plan with a setting capped at `most`; None if the sizes do not agree.

        Args:
            path: a setting of a run, or a field of the study, such as study.confirmation.top.
            most: maximum value; sampled configs with larger values are capped.
        """
        if path.startswith("study."):
            return self.with_configs(
                self.sampled_configs, _with_value(self.study, path.split(".")[1:], most)
            )
        limits = [limited(config, path, most) for config in self.sampled_configs]
        draws = [config for config in limits if config is not None]
        return self.with_configs(draws) if len(draws) == len(limits) else None

    def suggest_sizes(
        self, paths: Iterable[str], enough: Callable[[StudyPlan], bool]
    ) -> dict[str, int]:
        """Return the maximum of each setting with which the study is small enough."""

        def size(path: str) -> int:
            if path.startswith("study."):
                value: Any = self.study
                for name in path.split(".")[1:]:
                    value = getattr(value, name)
                return int(value)
            return max(size_of(config, path) for config in self.sampled_configs)

        def fits(path: str, most: int) -> bool:
            less = self.with_limit(path, most)
            return less is not None and enough(less)

        return size_suggestions(paths, size, fits)

    @cached_property
    def mean_steps(self) -> float:
        """Mean number of steps of a trial's member over the space."""
        return sum(map(num_steps, self.sampled_configs)) / len(self.sampled_configs)

    def config(self, overrides: Mapping[str, Any]) -> RunConfig:
        """Return the config of a trial.

        Raises:
            ConfigError: the combination of settings is invalid.
        """
        return resolve(self.base, overrides)

    def stages(self, config: RunConfig) -> Stages:
        """Return rungs and end of a trial with this config."""
        pruning, end = self.study.pruning, num_iterations(config)
        shares = pruning.rungs if pruning.enabled or pruning.record else ()
        rungs = {math.ceil(share * end): share for share in reversed(shares)}
        rungs.pop(end, None)
        milestones = (*sorted(rungs), end)
        steps = tuple(milestone * config.iteration_steps for milestone in milestones)
        return Stages(milestones, steps, tuple(rungs[milestone] for milestone in milestones[:-1]))

    def member(self, slot: Slot, config: RunConfig) -> Member:
        """Return the member in a slot; its seed depends only on the study's seed and the slot."""
        fold = f"{FOLD}{slot.fold}"
        test: str | None = test_split(fold)
        if slot.phase == "final":
            fold, test = DEVELOPMENT, HOLDOUT
        elif slot.phase == "refit":
            fold, test = EVERYTHING, None
        parts = (slot.trial, slot.fold) if slot.phase == "search" else slot
        return Member(
            name=slot.name,
            config=config,
            fold=fold,
            test=test,
            seed=derive_seed(self.study.seed, *parts),
            budget=num_steps(config),
        )

    def trial_slots(self, trial: int) -> list[Slot]:
        """Return the slots of a trial in the search, by fold."""
        return [Slot("search", trial, 0, fold) for fold in range(self.num_folds)]


def _with_value(part: Config, names: Sequence[str], most: int) -> Any:
    """Return a section with one number replaced."""
    name, *rest = names
    value = getattr(part, name)
    return part.model_copy(update={name: _with_value(value, rest, most) if rest else most})


def num_iterations(config: RunConfig) -> int:
    """Return the number of iterations of a member's budget."""
    return math.ceil(config.training.total_timesteps / config.iteration_steps)


def num_steps(config: RunConfig) -> int:
    """Return the number of steps of a member's budget."""
    return num_iterations(config) * config.iteration_steps
