"""How much of the difference between trials each searched setting explains (PED-ANOVA)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

optuna.logging.set_verbosity(optuna.logging.WARNING)

FEWEST = 20  # trials; below that importances are the sampler's own pattern


def importances(
    trials: Sequence[tuple[Mapping[str, Any], float]],
    distributions: Mapping[str, BaseDistribution],
) -> dict[str, float]:
    """Shares that add up to 1, the largest first; empty with too few or equal trials.

    Optuna's PED-ANOVA (Watanabe et al. 2023): how much the distribution of a setting among the
    better trials differs from that among all of them.

    Args:
        trials: params by searched name and score; a trial that was stopped early counts with its
            last score, or what made trials bad would be invisible.
        distributions: of the searched names.
    """
    fine = [(params, score) for params, score in trials if math.isfinite(score)]
    if len(fine) < FEWEST or len({score for _, score in fine}) < 2:
        return {}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=dict(params), distributions=dict(distributions), value=score
            )
            for params, score in fine
        ]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}
