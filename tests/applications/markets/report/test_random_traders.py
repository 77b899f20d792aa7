"""Rank of a study's policy among matched random traders on the hold-out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import portfolio_world as pw
import pytest

from slipstream.core.errors import CheckpointError
from slipstream.markets.evaluation.market_backtest import (
    PortfolioSplitBacktest,
    SymbolSplitBacktest,
    percentile,
    random_returns,
)
from slipstream.report.study import study_view as study_view
from slipstream.report.study.study_view import daily_returns, rank_among_random_traders
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind

DRAWS = 6


def environment_of(kernel, loaded):
    """With the last window as its hold-out, as a study's environment has one."""
    (first, *_) = [name for name in loaded.params if name in ("window", "train_window")]
    loaded = replace(loaded, params={**loaded.params, "holdout": loaded.params[first]})
    spec = kernel.spec(loaded.params["holdout"][0], loaded.data)
    return KernelEnvironment(KernelKind(kernel.name), spec, kernel.specialize(loaded), loaded)


class Fixed:
    """A policy whose decisions do not depend on what it sees."""

    def __init__(self, action, width):
        self._action, self._width = action, width
        self._step = 0

    def act_rows(self, obs, keys=None, mask=None):
        self._step += 1
        return np.asarray(self._action(self._step))[None].repeat(len(obs), axis=0)


def decide(monkeypatch, action):
    """Whatever is loaded from the study's folder acts like this."""
    monkeypatch.setattr(study_view.checkpoint, "load", lambda folder: ({}, {"policy": {}}))
    made = lambda weights, manifest: Fixed(action, None)  # noqa: E731
    monkeypatch.setattr(study_view, "unpack", made)


@pytest.fixture(scope="module")
def portfolio():
    """Three coins; the first of them rises whenever the second falls."""
    panel = pw.random_panel(400, 3, 1)
    loaded = pw.build(
        panel, fee=0.001, rebalance_threshold=0.0, quantity_step=0.0, min_notional=0.0
    )
    return environment_of(pw.KERNEL, loaded)


def recorded(environment, action, kind=PortfolioSplitBacktest):
    """Days and daily returns as the study would have kept them, and the tracks."""
    evaluator = Evaluator(environment, "holdout", backend="serial")
    tracks = evaluator.run(Fixed(action, None), record=True)
    backtests = kind(environment.kernel, environment.loaded, "holdout", "serial")
    days, returns = daily_returns(backtests, tracks[0])
    return backtests, tracks[0], days, returns


def weights(step):
    """Moves between the assets now and then."""
    action = np.full(4, -1.0, np.float32)
    action[(step // 50) % 3] = 1.0
    return action


@pytest.mark.slow
def test_the_percentile_is_that_of_the_policys_own_decisions(portfolio, monkeypatch, tmp_path):
    backtests, tracks, days, returns = recorded(portfolio, weights)
    decide(monkeypatch, weights)
    told, why = rank_among_random_traders(
        StudyFolder(tmp_path), portfolio, days, returns, draws=DRAWS, backend="serial"
    )
    mine = float(backtests.replay_growth([track.actions for track in tracks])[0]) - 1.0
    assert mine == pytest.approx(np.prod(1 + returns) - 1)
    assert why == "" and told.draws == DRAWS
    assert told.percentile == percentile(mine, random_returns(backtests, tracks, DRAWS))


@pytest.mark.slow
def test_forex_is_compared_too(forex, monkeypatch, tmp_path):
    """Two symbols side by side with equal capital."""
    params = {**forex.loaded.params, "holdout": forex.loaded.params["test"]}
    environment = replace(forex, loaded=replace(forex.loaded, params=params))

    def positions(step):
        return np.array([(step // 30) % 3])

    backtests, tracks, days, returns = recorded(environment, positions, SymbolSplitBacktest)
    decide(monkeypatch, positions)
    told, why = rank_among_random_traders(
        StudyFolder(tmp_path), environment, days, returns, draws=3, backend="serial"
    )
    mine = float(backtests.replay_growth([track.actions for track in tracks])[0]) - 1.0
    assert why == "" and mine == pytest.approx(np.prod(1 + returns) - 1, rel=1e-6)
    assert told.percentile == percentile(mine, random_returns(backtests, tracks, 3))


def test_who_never_changes_is_as_good_as_itself_at_other_times(portfolio, monkeypatch, tmp_path):
    """Cash all the time: every draw is the same, and ties count half."""

    def cash(step):
        return np.array([-1.0, -1.0, -1.0, 1.0], np.float32)

    _, _, days, returns = recorded(portfolio, cash)
    decide(monkeypatch, cash)
    told, _ = rank_among_random_traders(
        StudyFolder(tmp_path), portfolio, days, returns, draws=DRAWS, backend="serial"
    )
    assert told.percentile == 50.0


def test_why_there_is_no_percentile(portfolio, monkeypatch, tmp_path):
    _, _, days, returns = recorded(portfolio, weights)
    folder = StudyFolder(tmp_path)
    decide(monkeypatch, weights)

    def told(days=days, returns=returns):
        return rank_among_random_traders(
            folder, portfolio, days, returns, draws=2, backend="serial"
        )

    assert "does not repeat" in told(returns=returns + 1e-3)[1]
    assert "does not repeat" in told(days=days + 1)[1]
    monkeypatch.undo()

    def missing(path):
        raise CheckpointError("gone")

    monkeypatch.setattr(study_view.checkpoint, "load", missing)
    assert told() == (None, "the deployed policy is no longer in the study's folder")
