"""The second line of the hold-out: equal weight, rebalanced (docs/rules.md, sections 10 and 15).

A study follows equal weight that is bought once. The rebalanced one is not needed to choose
anything, so it is replayed when the page is written, from the prices that the study read.
"""

from __future__ import annotations

import numpy as np

from slipstream.report.portfolio.baselines import rebalanced
from slipstream.report.portfolio.passes import PortfolioPasses, passes_of
from slipstream.report.statistics import Floats, Ints
from slipstream.report.study.environment import daily_returns
from slipstream.studies.search.plan import HOLDOUT
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment


def rebalanced_returns(
    environment: Environment, days: Ints, backend: str = "compiled"
) -> tuple[Floats | None, str]:
    """Daily returns on the hold-out under the costs and the band of a trial.

    Args:
        environment: of the trial, with the study's own prices.
        days: int64 [n], the days to tell.
        backend: how the copies are stepped.

    Returns:
        [n], or None and why there are none; no reason where the environment has no such line.
    """
    if not isinstance(environment, KernelEnvironment) or environment.kernel.market_pass is None:
        return None, ""
    passes = passes_of(environment.kernel, environment.loaded, HOLDOUT, backend)
    if not isinstance(passes, PortfolioPasses):
        return None, ""
    found, returns = replayed(passes)
    if not np.array_equal(found, days):
        return None, "the bars are cut into other days than the study's"
    return returns, ""


def replayed(passes: PortfolioPasses) -> tuple[Ints, Floats]:
    """Days [n] of the hold-out and the rebalanced baseline's return on each [n]."""
    return daily_returns(passes.kernel, passes.loaded, passes.params, rebalanced(passes))
