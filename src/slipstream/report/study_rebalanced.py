"""The second line of the hold-out: equal weight, rebalanced (trading-rules 10 and 15).

A study follows equal weight that is bought once. The rebalanced one is not needed to choose
anything, so it is replayed when the page is written, from the prices that the study read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.core.errors import SlipstreamError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.report.portfolio_baselines import rebalanced
from slipstream.report.portfolio_passes import PortfolioPasses, is_portfolio
from slipstream.report.statistics import Floats, Ints
from slipstream.studies.accounts import account, join_accounts
from slipstream.studies.plan import HOLDOUT
from slipstream.studies.reader import StudyReader
from slipstream.studies.source import EnvironmentSource
from slipstream.training.config import resolve

BACKEND = "compiled"  # replaced in tests


def rebalanced_returns(
    reader: StudyReader, overrides: Mapping[str, Any], days: Ints
) -> tuple[Floats | None, str]:
    """Daily returns on the hold-out under the costs and the band of a trial.

    Args:
        reader: of the study.
        overrides: of the trial.
        days: int64 [n], the days to tell.

    Returns:
        [n], or None and why there are none; no reason where the environment has no such line.
    """
    study, facts = reader.study, reader.provenance.get("environment") or {}
    try:
        source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = source.environment(resolve(reader.config, overrides))
    except (SlipstreamError, OSError):
        return None, "the prices are no longer where the study read them"
    kernel, loaded = environment.kernel, environment.loaded
    if kernel is None or loaded is None or not is_portfolio(loaded):
        return None, ""
    if loaded.provenance.get("market_sha256") != facts.get("market_sha256"):
        return None, "the prices have changed since the study read them"
    found, returns = replayed(kernel, loaded, BACKEND)
    if not np.array_equal(found, days):
        return None, "the bars are cut into other days than the study's"
    return returns, ""


def replayed(kernel: Kernel, loaded: Loaded, backend: str) -> tuple[Ints, Floats]:
    """Days [n] of the hold-out and the rebalanced baseline's return on each [n]."""
    passes = PortfolioPasses(kernel, loaded, HOLDOUT, backend)
    accounts = []
    assert kernel.timeline is not None
    for params, track in zip(passes.params, rebalanced(passes), strict=True):
        market = kernel.spec(params, loaded.data).market
        assert market is not None
        values = {"equity": track.trace["equity"]}
        time = kernel.timeline(params, loaded.data)
        accounts.append(account(time, values, market, {}, track.length))
    joined = join_accounts(accounts, [0] * len(accounts), {})
    return joined.days, joined.returns
