"""The portfolio's defaults on planted-crypto: fees do not keep an agent from the edge."""

from __future__ import annotations

import numpy as np

from slipstream.envs import portfolio
from slipstream.features.sets import FEATURE_SETS
from slipstream.market.config import DataConfig
from slipstream.market.panel import load_panel
from slipstream.market.planted_crypto import hot_assets, optimum, score, write_planted_crypto
from slipstream.training.environment import resolve_environment
from slipstream.training.evaluation import Evaluator

# A planted bar opens at the last close: another column takes the place of the one that says so.
FEATURES = ["log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]]
ASSETS = 7


def _environment(folder, bars, seed, split):
    write_planted_crypto(folder, bars, seed)
    shares = dict(zip(("train", "validation", "test"), split, strict=True))
    settings = {"data": {"folder": str(folder)}, "features": FEATURES, "split": shares}
    return resolve_environment("portfolio", settings)


def test_three_of_four_seeds_find_nine_tenths_of_the_edge(train, tmp_path):
    """100,000 steps on one path; conditional drift after fees on fresh bars (trading-rules 14)."""
    seen = _environment(tmp_path / "seen", 80_000, 1, (0.9, 0.05, 0.05))
    fresh = _environment(tmp_path / "fresh", 18_000, 2, (0.1, 0.0, 0.9))
    agent = portfolio.SETTINGS["agent"]
    shard = train(seen, agent, seeds=[0, 1, 2, 3], num_envs=12, steps=100_000)
    hot = hot_assets(load_panel(DataConfig(folder=str(tmp_path / "fresh"))))
    prices = fresh.loaded.data.prices
    shares = []
    for (track,) in Evaluator(fresh, "test", members=4).run(shard.agent.policy, record=True):
        bars = len(track.trace["bar"]) - 1  # the last one sells everything
        bar = track.trace["bar"][:bars].astype(int)
        before = np.concatenate([[1e5], track.trace["equity"][: bars - 1]])[:, None]
        weights = track.trace["units"][:bars] * prices[bar, ASSETS : 2 * ASSETS] / before
        fees = np.diff(track.trace["cost_fee"][:bars], prepend=0.0)
        traded = fees / 0.001 / before[:, 0]
        shares.append(score(weights, hot[bar - 1], traded) / bars / optimum())
    assert np.sort(shares)[1] >= 0.9, shares
