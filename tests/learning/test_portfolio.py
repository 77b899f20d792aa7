"""The portfolio's defaults on planted-crypto: fees do not keep an agent from the edge."""

from __future__ import annotations

import numpy as np
from planted_world import environment_of, hot_of, share_of_optimum

from slipstream.envs.portfolio import kernel as portfolio
from slipstream.training.evaluation import Evaluator


def test_three_of_four_seeds_find_nine_tenths_of_the_edge(train, tmp_path):
    """100,000 steps on one path; conditional drift after fees on fresh bars.

    See docs/rules.md, section 14.
    """
    seen = environment_of(tmp_path / "seen", 80_000, 1, (0.9, 0.05, 0.05))
    fresh = environment_of(tmp_path / "fresh", 18_000, 2, (0.1, 0.0, 0.9))
    agent = portfolio.SETTINGS["ppo"]["agent"]
    shard = train(seen, agent, seeds=[0, 1, 2, 3], num_envs=12, steps=100_000)
    hot = hot_of(tmp_path / "fresh")
    shares = [
        share_of_optimum(track, fresh, hot)
        for (track,) in Evaluator(fresh, "test", members=4).run(shard.agent.policy, record=True)
    ]
    assert np.sort(shares)[1] >= 0.9, shares
