"""The hold-out's second line: the replay of a study's own prices, and when there is none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import portfolio_world as pw
import pytest

from slipstream.core.errors import DataError
from slipstream.markets.evaluation.market_backtest import PortfolioSplitBacktest
from slipstream.report.inputs import EQUAL_WEIGHT
from slipstream.report.study import study_view as study_view
from slipstream.report.study.study_view import daily_returns, rebalanced_returns
from slipstream.studies.config import StudyConfig
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind
from slipstream.training.settings.config import resolve

DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def market():
    """A kernel and its data, two stretches of which are held out."""
    panel = pw.random_panel(1_200, 3, 1, segments=[[0, 700], [720, 1_200]])
    loaded = pw.build(
        panel, fee=0.002, rebalance_threshold=0.0, quantity_step=0.0, min_notional=0.0
    )
    facts = {**loaded.provenance, "market_sha256": DIGEST}
    params = {**loaded.params, "holdout": loaded.params["window"]}
    loaded = replace(loaded, params=params, provenance=facts)
    return pw.KERNEL.specialize(loaded), loaded


def growth_of(tracks, backtests):
    start = backtests.params[0].initial_equity
    return np.prod([track.trace["equity"].ravel()[-1] / start for track in tracks])


def test_days_compound_to_what_the_kernel_replayed(market):
    kernel, loaded = market
    backtests = PortfolioSplitBacktest(kernel, loaded, "holdout", "serial")
    assert len(backtests.params) == 2
    days, returns = daily_returns(backtests, backtests.rebalanced_tracks())
    assert (np.diff(days) >= 0).all() and len(days) >= 4
    assert np.prod(1 + returns) == pytest.approx(
        growth_of(backtests.rebalanced_tracks(), backtests)
    )
    once = growth_of(backtests.rule_baselines().tracks[EQUAL_WEIGHT], backtests)
    assert np.prod(1 + returns) != pytest.approx(once, rel=1e-6)  # it is another line


def test_shares_are_restored_on_every_bar_whatever_the_agents_band(market):
    kernel, loaded = market
    params = {
        name: tuple(one._replace(rebalance_threshold=0.6) for one in records)
        for name, records in loaded.params.items()
    }
    wide = PortfolioSplitBacktest(kernel, replace(loaded, params=params), "holdout", "serial")
    narrow = PortfolioSplitBacktest(kernel, loaded, "holdout", "serial")
    for mine, theirs in zip(wide.rebalanced_tracks(), narrow.rebalanced_tracks(), strict=True):
        assert np.array_equal(mine.trace["equity"], theirs.trace["equity"])
    close = wide.specs[0].close
    for record, track in enumerate(wide.rebalanced_tracks()):
        rows = track.trace["bar"].astype(int).ravel()[:-1]  # the last one sells everything
        weights = track.trace["units"][:-1] * close[rows]
        weights /= track.trace["equity"].ravel()[:-1, None]
        held = wide.listed_assets(record)
        assert weights[:, held] == pytest.approx(1.0 / held.sum(), abs=0.02)


def folder_of(digest=DIGEST):
    return SimpleNamespace(
        study=StudyConfig(),
        base=resolve("cartpole", {}),
        provenance={"environment": {"market_sha256": digest}},
    )


@pytest.mark.slow
def test_why_there_is_no_second_line(market, monkeypatch):
    kernel, loaded = market
    here: list[Environment | Exception] = []

    class Source:
        def __init__(self, folds, seeds):
            pass

        def environment(self, config):
            if isinstance(here[0], Exception):
                raise here[0]
            return here[0]

    monkeypatch.setattr(study_view, "EnvironmentSource", Source)

    def told(days, digest=DIGEST):
        found, why = study_view.study_environment(folder_of(digest), {})
        return (None, why) if found is None else rebalanced_returns(found, days, "serial")

    here[:] = [KernelEnvironment.from_loaded(KernelKind("portfolio"), kernel, loaded)]
    backtests = PortfolioSplitBacktest(kernel, loaded, "holdout", "serial")
    days, returns = daily_returns(backtests, backtests.rebalanced_tracks())
    found, why = told(days)
    assert np.array_equal(found, returns) and why == ""
    assert "other days" in told(days + 1)[1]
    assert "have changed" in told(days, "cd" * 32)[1]
    here[:] = [resolve_environment("cartpole", {})]
    assert told(days, None) == (None, "")
    here[:] = [DataError("no folder")]
    assert "no longer where" in told(days)[1]
