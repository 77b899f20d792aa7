"""TrialSampler: suggestions from Optuna's samplers, reproducible from the ledger."""

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
_STATEFUL = ("cmaes", "qmc")  # their suggestions depend on internal state that no ledger has
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
    """Suggests params for trials, in the order of their numbers.

    The Optuna study that it samples from is held in memory and rebuilt from the ledger. It is never
    read from a storage: what a storage rounds, delays or lets others write cannot reach a
    suggestion. A new sampler is created for each trial. It is seeded by the study's seed, the warm
    start and the trial's number.

    Args:
        space: the search space.
        config: sampler, seed and settings of the first trials.
        warm_start: trials of another study, added before trial 0.
    """

    def __init__(
        self, space: SearchSpace, config: StudyConfig, warm_start: WarmStart | None = None
    ) -> None:
        self._space, self._config = space, config
        self._start_params = space.start_params(config.start_with)
        self._violations: dict[int, Sequence[float]] = {}
        # A warm-started study must not repeat the samples of the other study.
        self._seed_keys = ("sampler",) if warm_start is None else ("sampler", warm_start.digest)
        self._study = optuna.create_study(
            sampler=self._optuna_sampler(0), direction="maximize", pruner=optuna.pruners.NopPruner()
        )
        prior_trials = warm_start.trials if warm_start is not None else ()
        for prior in prior_trials:
            self._study.add_trial(
                optuna.create_trial(
                    params=dict(prior["params"]),
                    distributions=space.distributions,
                    value=prior["score"],
                    system_attrs={"constraints": prior["violations"]} if config.constraints else {},
                )
            )
        # Optuna's number of the study's trial 0.
        self._num_prior_trials = len(prior_trials)

    def ask(self, trial: int) -> dict[str, Any]:
        """Return a suggestion for every searched name, given the trials reported so far."""
        self._study.sampler = self._optuna_sampler(trial)
        if trial < len(self._start_params):
            self._study.enqueue_trial(self._start_params[trial])
        with _single_torch_thread() if self._config.sampler == "gp" else nullcontext():
            suggested = self._space.ask(self._study)
        assert suggested.number == self._num_prior_trials + trial, (suggested.number, trial)
        return dict(suggested.params)

    def restore(self, trial: int, params: Mapping[str, Any]) -> None:
        """Restore an earlier suggestion. Stateful samplers (CMA-ES, QMC) repeat the suggestion.

        Raises:
            VersionError: a stateful sampler suggests other values than before.
        """
        if self._config.sampler not in _STATEFUL:
            self._study.add_trial(running_trial(params, self._space.distributions))
            assert len(self._study.get_trials(deepcopy=False)) == self._num_prior_trials + trial + 1
        elif self.ask(trial) != params:
            raise VersionError(
                f"`study.sampler: {self._config.sampler}` does not suggest again what trial "
                f"{trial} had, so the search cannot resume: Optuna, cmaes or SciPy is "
                "another version. Install those that provenance.json names, or begin another study "
                "with --study-name. What is there can still be read."
            )

    def tell(self, trial: int, score: float | None, violations: Sequence[float] = ()) -> None:
        """Report the result of a trial.

        Args:
            trial: its number.
            score: the trial's score, also of a pruned trial; None if the trial failed.
            violations: for each constraint the metric minus its limit; positive if violated.
        """
        self._violations[trial] = violations
        if score is None:
            self._study.tell(self._num_prior_trials + trial, state=TrialState.FAIL)
        else:
            self._study.tell(self._num_prior_trials + trial, score)

    def _optuna_sampler(self, trial: int) -> BaseSampler:
        """Create the sampler of one trial with every Optuna argument set explicitly.

        Other defaults in a later Optuna version therefore change nothing. The values are the
        defaults at the time of writing, except TPE's `group` and scrambled points for `qmc` (Owen
        1998), without which all studies would share the same points. Some choices cannot be set:
        the kernel of `gp` and its optimizer, and the start of `cmaes` in the middle of the ranges
        (its `x0` would be rounded for integer settings).
        """

        def excess(told: FrozenTrial) -> Sequence[float]:
            return self._violations[told.number - self._num_prior_trials]

        config = self._config
        limits = excess if config.constraints else None
        seed = derive_seed(config.seed, *self._seed_keys, trial) % _SEEDS
        random = RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # `group` is experimental since 2021; Optuna 4.9 takes constraints only as a function.
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
    """Return the number of finished trials that TPE treats as good."""
    return min(math.ceil(0.1 * trials), 25)


def _tpe_weights(trials: int) -> NDArray[np.float64]:
    """Return TPE's weights of trials, oldest first; the last 25 have full weight."""
    old = max(trials - 25, 0)
    return np.concatenate([np.linspace(1.0 / max(trials, 1), 1.0, old), np.ones(trials - old)])


def _single_torch_thread() -> AbstractContextManager[None]:
    """Limit torch to one thread: its sums depend on the number of threads."""
    from slipstream.rl.nets.torch_device import single_thread  # torch: only where it is needed

    return single_thread()


def check_sampler(config: StudyConfig, space: SearchSpace) -> None:
    """Check that the configured sampler is available and can search this space.

    Raises:
        ConfigError: the sampler cannot search the space or learn from the configured trials.
        ResourceError: a library that the sampler requires is not installed.
    """
    named = f"`study.sampler: {config.sampler}`"
    for key, setting in (("constraints", config.constraints), ("from_study", config.from_study)):
        if setting and config.sampler not in _MODEL_BASED:
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
    """Count the searched numbers; choices and single values are not counted."""
    distributions = space.distributions.values()
    return sum(
        not isinstance(distribution, CategoricalDistribution) and not distribution.single()
        for distribution in distributions
    )
