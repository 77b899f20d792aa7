"""What a complete run says of itself: the content of `result.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.training.callbacks.events import Progress
from slipstream.training.environments.environment import Environment
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import EvaluationPlan
from slipstream.training.track import counted, standard_error

Scores: TypeAlias = NDArray[np.float64] | None
"""What a score is the mean of, [J]; None where nothing was measured."""


def result_of(
    config: RunConfig,
    environment: Environment,
    plan: EvaluationPlan,
    chosen_on: str,
    members: Sequence[Mapping[str, Any]],
    progress: Progress,
) -> dict[str, Any]:
    """The whole file.

    Args:
        config, environment: of the run; plan: of its evaluations.
        chosen_on: the split by which each member's best policy was chosen.
        members: a mapping for each.
        progress: at the end.
    """
    market = environment.spec.market is not None
    return {
        "score_is": "mean log return" if market else "mean episode return",
        "chosen_on": chosen_on,
        "test_is": "the test split" if market else "fresh episodes",
        "test_episodes": None if market else plan.final,
        "evaluation": {**plan.as_mapping(), "actions": config.evaluation.actions},
        "members": list(members),
        "progress": progress.as_dict(),
        "updates_per_step": progress.updates / max(progress.steps, 1),
        "update_rows": config.agent.rows(int(config.training.num_envs)),
        "steps_per_second": progress.steps * len(members) / max(progress.wall, 1e-9),
    }


def scores_of(measured: Scores, last: Scores, market: bool) -> dict[str, float | None]:
    """A member's test score by its best policy and its last one, with standard errors.

    A market's passes are no sample of anything: their score has none.
    """
    score, error = _mean(measured)
    newest, newest_error = _mean(last)
    return {
        "test_score": score,
        "test_error": None if market else error,
        "last_score": newest,
        "last_error": newest_error,
    }


def finite(value: float) -> float | None:
    """A number that JSON has, or None."""
    return float(value) if np.isfinite(value) else None


def _mean(values: Scores) -> tuple[float | None, float | None]:
    if values is None:
        return None, None
    values = counted(values)
    return float(values.mean()), standard_error(values)
