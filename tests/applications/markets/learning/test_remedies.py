"""The portfolio's defaults on both kinds of planted markets: regimes, and edges of one bar."""

from __future__ import annotations

import numpy as np
import pytest
from planted_world import MARKETS, environment_of, share_of_optimum

from slipstream.markets.portfolio import kernel as portfolio
from slipstream.training.environments.evaluator import Evaluator

SETTINGS = portfolio.DEFAULT_HYPERPARAMS["ppo"]


def shares(train, folder, name, steps, seeds):
    """Return the share of the optimum that each seed's last policy reaches on an unseen path."""
    market = MARKETS[name]
    seen = environment_of(folder / "seen", 80_000, 1, (0.9, 0.05, 0.05), market)
    fresh = environment_of(folder / "fresh", 18_000, 2, (0.1, 0.0, 0.9), market)
    shard = train(
        seen,
        SETTINGS["agent"],
        seeds=list(range(seeds)),
        num_envs=SETTINGS["training"]["num_envs"],
        steps=steps,
    )
    passes = Evaluator(fresh, "test", members=seeds).run(shard.agent.policy, record=True)
    return [share_of_optimum(one, fresh, folder / "fresh", market) for (one,) in passes]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MARKETS)
def test_the_defaults_reach_four_fifths_of_the_optimum(train, tmp_path, name):
    """400,000 steps; the median of 8 seeds."""
    found = shares(train, tmp_path, name, 400_000, 8)
    assert np.median(found) >= 0.8, found


@pytest.mark.slow
def test_half_of_a_one_bar_edge_is_found_in_50_000_steps(train, tmp_path):
    """At a fee of 1 basis point, 3 seeds; with the map `change` and a discount of 0.9 a tenth."""
    found = shares(train, tmp_path, "reversion, fee 1 bp", 50_000, 3)
    assert np.median(found) >= 0.5, found
