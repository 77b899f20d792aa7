"""The target-weight rules stated twice: as a kernel, and in NumPy for the benchmarks' peers."""

from __future__ import annotations

import numpy as np
import pytest
from portfolio_peer import PeerPrices, PortfolioEnv
from portfolio_world import World, random_panel


@pytest.mark.parametrize("seed", range(4))
def test_the_peers_environment_is_the_kernels(seed: int) -> None:
    rows, assets = 500, 7
    panel = random_panel(rows, assets, seed)
    world = World(panel)  # a window: started at its first row, liquidated at its last
    whole = np.array([[0, rows]])
    none = np.zeros((rows, 2 * assets), np.float32)
    env = PortfolioEnv(PeerPrices(panel.open, panel.close, none, whole, whole), part=0)
    env.reset()
    draw = np.random.default_rng(seed)
    for k in range(rows - 1):
        # Small actions leave most holdings alone, large ones turn the portfolio over.
        action = np.clip(draw.normal(0.0, 0.2 if k % 3 else 1.0, assets + 1), -1, 1)
        reward, terminated, truncated = world.step(action)
        seen, theirs, *ended, _ = env.step(action.astype(np.float32))
        assert [terminated, truncated] == ended and reward == pytest.approx(theirs, abs=1e-9)
        assert world.s.equity == pytest.approx(env.equity, rel=1e-10)
        assert world.s.benchmark == pytest.approx(env.benchmark, rel=1e-12)
        assert world.observe()[-assets - 1 :] == pytest.approx(seen[-assets - 1 :], abs=1e-6)
    assert truncated and world.s.fills > rows


def test_the_peers_episodes_stay_in_training_segments() -> None:
    rows = 6_000
    draw = np.random.default_rng(0)
    close = np.exp(0.001 * draw.standard_normal((rows, 2)).cumsum(axis=0))
    train = np.array([[100, 900], [2_000, 2_150], [3_000, 5_900]])
    env = PortfolioEnv(PeerPrices(close, close, np.zeros((rows, 2), np.float32), train, train))
    begun = []
    for seed in range(300):
        env.reset(seed=seed)
        begun.append(env.bar)
        (segment,) = np.flatnonzero((train[:, 0] <= env.bar) & (env.bar < train[:, 1]))
        assert env.bar + 200 <= train[segment, 1] and env.last < train[segment, 1]
        assert env.last - env.bar <= 2_016
    assert min(begun) < 200 and max(begun) > 5_500
    assert not any(2_000 <= bar < 3_000 for bar in begun)  # too short for an episode
