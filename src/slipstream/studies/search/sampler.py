"""Asker: Optuna's samplers suggest, from a study in memory with what the order of events allows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial, TrialState

from slipstream.core.errors import ConfigError, VersionError
from slipstream.core.extras import import_optional
from slipstream.core.random import derive_seed
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.storage import running_trial
from slipstream.studies.record.warm_start import WarmStart
from slipstream.studies.space import SearchSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

_SEEDS = 2**32  # what NumPy's generators take
_STATEFUL = ("cmaes", "qmc")  # what they asked is in their own state, which no ledger has
_MODEL_BASED = ("tpe", "gp")  # from constraints, and from trials that they did not suggest
LIBRARIES: dict[str, tuple[str, ...]] = {
    "tpe": (),
    "random": (),
    "gp": ("scipy", "torch"),
    "cmaes": ("cmaes",),
    "qmc": ("scipy",),
}
"""What suggestions are made with besides Optuna and NumPy, by sampler."""


class TrialSampler:
    """Suggests params for trials in the order of their numbers.

    The study it samples from is rebuilt from the ledger, never read from a storage: what a
    storage rounds, delays or lets others write cannot reach a suggestion. The sampler is made anew
    for each trial, from the study's seed, what it was told before trial 0, and the trial's number.

    Args:
        space: what is searched.
        config: sampler and seed, and what the first trials start with.
        warm_start: what the sampler is told of before trial 0.
    """

    def __init__(
        self, space: SearchSpace, config: StudyConfig, warm_start: WarmStart | None = None
    ) -> None:
        self._space, self._config = space, config
        self._start_params = space.start_params(config.start_with)
        self._violations: dict[int, Sequence[float]] = {}
        # Of a study that was told of another one: the other's draws are not to come again.
        self._seed_keys = ("sampler",) if warm_start is None else ("sampler", warm_start.digest)
        self._study = optuna.create_study(
            sampler=self._optuna_sampler(0), direction="maximize", pruner=optuna.pruners.NopPruner()
        )
        told = warm_start.trials if warm_start is not None else ()
        for one in told:
            self._study.add_trial(
                optuna.create_trial(
                    params=dict(one["params"]),
                    distributions=space.distributions,
                    value=one["score"],
                    system_attrs={"constraints": one["excess"]} if config.constraints else {},
                )
            )
        self._num_prior_trials = len(told)  # the study's own trial 0, as Optuna numbers it here

    def ask(self, trial: int) -> dict[str, Any]:
        """A suggestion for every searched name, knowing what was told so far."""
        self._study.sampler = self._optuna_sampler(trial)
        if trial < len(self._start_params):
            self._study.enqueue_trial(self._start_params[trial])
        with _single_torch_thread() if self._config.sampler == "gp" else nullcontext():
            asked = self._space.ask(self._study)
        assert asked.number == self._num_prior_trials + trial, (asked.number, trial)
        return dict(asked.params)

    def restore(self, trial: int, params: Mapping[str, Any]) -> None:
        """Takes an earlier suggestion as asked; samplers that remember what they asked ask it anew.

        Raises:
            VersionError: such a sampler suggests something else by now.
        """
        if self._config.sampler not in _STATEFUL:
            self._study.add_trial(running_trial(params, self._space.distributions))
            assert len(self._study.get_trials(deepcopy=False)) == self._num_prior_trials + trial + 1
        elif self.ask(trial) != params:
            raise VersionError(
                f"`study.sampler: {self._config.sampler}` does not suggest again what trial "
                f"{trial} had, so the search cannot go on as it began: Optuna, cmaes or SciPy is "
                "another version. Install those that provenance.json names, or begin another study "
                "with --study-name. What is there can still be read."
            )

    def tell(self, trial: int, score: float | None, violations: Sequence[float] = ()) -> None:
        """What became of a trial.

        Args:
            trial: its number.
            score: also of a pruned one; None where it failed.
            excess: for each constraint the metric minus its limit: above 0 it is violated.
        """
        self._violations[trial] = violations
        if score is None:
            self._study.tell(self._num_prior_trials + trial, state=TrialState.FAIL)
        else:
            self._study.tell(self._num_prior_trials + trial, score)

    def _optuna_sampler(self, trial: int) -> BaseSampler:
        """The sampler of one trial: what of it Optuna takes as an argument is said here.

        So other defaults of Optuna's change nothing. What is said is what its defaults were when
        this was written, but for TPE's `group` and points of `qmc` that are scrambled (Owen 1998),
        without which all studies would have the same ones. What cannot be said follows Optuna's
        version: the kernel of `gp` and how its maximum is found, and that `cmaes` begins in the
        middle of the ranges (its `x0` would be rounded where a setting is a whole number).
        """

        def excess(told: FrozenTrial) -> Sequence[float]:
            return self._violations[told.number - self._num_prior_trials]

        config = self._config
        limits = excess if config.constraints else None
        seed = derive_seed(config.seed, *self._seed_keys, trial) % _SEEDS
        random = RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # `group` is marked experimental since 2021; 4.9 knows constraints by a function alone.
            # What is deprecated without a successor goes with Optuna 6.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.simplefilter("ignore", FutureWarning)
            if config.sampler == "tpe":
                return TPESampler(
                    seed=seed,
                    n_startup_trials=10,
                    n_ei_candidates=24,
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                    constraints_func=limits,
                    gamma=_tpe_gamma,
                    weights=_tpe_weights,
                    prior_weight=1.0,
                    consider_magic_clip=True,
                    consider_endpoints=False,
                    warn_independent_sampling=False,
                )
            if config.sampler == "gp":
                return GPSampler(
                    seed=seed,
                    independent_sampler=random,
                    n_startup_trials=10,
                    deterministic_objective=False,
                    constraints_func=limits,
                    warn_independent_sampling=False,
                )
            if config.sampler == "cmaes":
                return CmaEsSampler(
                    seed=seed,
                    independent_sampler=random,
                    n_startup_trials=1,
                    sigma0=1 / 6,
                    popsize=4 + math.floor(3 * math.log(_num_numeric_params(self._space))),
                    consider_pruned_trials=False,
                    use_separable_cma=False,
                    with_margin=False,
                    lr_adapt=False,
                    warn_independent_sampling=False,
                )
            if config.sampler == "qmc":
                return QMCSampler(
                    # One sequence for all trials.
                    seed=derive_seed(config.seed, *self._seed_keys) % _SEEDS,
                    independent_sampler=random,
                    qmc_type="sobol",
                    scramble=True,
                    warn_asynchronous_seeding=False,
                    warn_independent_sampling=False,
                )
        return random


def _tpe_gamma(trials: int) -> int:
    """How many of the finished trials TPE takes for good ones."""
    return min(math.ceil(0.1 * trials), 25)


def _tpe_weights(trials: int) -> NDArray[np.float64]:
    """TPE's weights of trials, oldest first: the last 25 count whole."""
    old = max(trials - 25, 0)
    return np.concatenate([np.linspace(1.0 / max(trials, 1), 1.0, old), np.ones(trials - old)])


def _single_torch_thread() -> AbstractContextManager[None]:
    """As torch's sums depend on the number of threads, and forked workers cannot use them."""
    from slipstream.rl.nets.torch_device import one_thread  # torch: only where it is needed

    return one_thread()


def check_sampler(config: StudyConfig, space: SearchSpace) -> None:
    """Refuses a sampler that cannot search this space, or not here.

    Raises:
        ConfigError: the space has nothing for it.
        ResourceError: what it is made with is not installed.
    """
    named = f"`study.sampler: {config.sampler}`"
    for key, asked in (("constraints", config.constraints), ("from_study", config.from_study)):
        if asked and config.sampler not in _MODEL_BASED:
            raise ConfigError(
                f"{named} cannot learn from `study.{key}`: take {' or '.join(_MODEL_BASED)}, or "
                f"leave `{key}` out."
            )
    if config.sampler == "cmaes" and _num_numeric_params(space) < 2:
        raise ConfigError(
            f"{named} searches numbers, at least 2 of them, and the space has "
            f"{_num_numeric_params(space)} (choices would be drawn at random): take tpe or gp, or "
            "give ranges from `low` to `high`."
        )
    for library in LIBRARIES[config.sampler]:
        import_optional(library, named, library)


def _num_numeric_params(space: SearchSpace) -> int:
    """Numbers among the settings that are searched; choices and single values are none."""
    found = space.distributions.values()
    return sum(not isinstance(one, CategoricalDistribution) and not one.single() for one in found)
