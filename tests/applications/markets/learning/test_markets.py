"""Planted markets: the optimum is computable, so that "it learned" is a number."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.markets.forex import kernel as forex
from slipstream.markets.synthetic import (
    NOISE_COLUMNS,
    SyntheticForex,
)
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.factory import resolve_environment

AGENT = {
    "n_steps": 256,
    "batch_size": 256,
    "n_epochs": 4,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "learning_rate": 3e-4,
}
STANDARD, NO_EDGE = SyntheticForex(), SyntheticForex(beta=0.0)
FRESH_BARS, FRESH_SEED = 23_000, 2  # some 20,500 of them are the test split


def _environment(folder, bars, seed, market, split):
    folder.mkdir()
    market.write(folder, bars, seed)
    settings = {
        "data": {"folder": str(folder), "spread_pips": 0.0},
        "features": ["signal", *(f"noise_{i}" for i in range(NOISE_COLUMNS))],
        "commission_per_million": 200.0,  # 2 bp per unit of exposure change
        "split": dict(zip(("train", "validation", "test"), split, strict=True)),
    }
    return resolve_environment("forex", settings)


def _tracks(train, tmp_path, market, seeds, steps, agent=None, num_envs=12, learner="auto"):
    env = _environment(tmp_path / "seen", 60_000, 1, market, (0.98, 0.01, 0.01))
    fresh = _environment(tmp_path / "fresh", FRESH_BARS, FRESH_SEED, market, (0.05, 0.05, 0.9))
    agent = agent or PPOConfig(**AGENT)
    shard = train(env, agent, seeds=seeds, num_envs=num_envs, steps=steps, learner=learner)
    evaluator = Evaluator(fresh, "test", members=len(seeds))
    tracks = [episodes[0] for episodes in evaluator.run(shard.agent.policy, record=True)]
    assert all(track.length >= 20_000 for track in tracks)
    return tracks, fresh


def _shares_of_optimum(tracks, fresh):
    """Drift earned after costs, over that of the optimal policy on the same path."""
    signal = STANDARD.generate(FRESH_BARS, FRESH_SEED)[0].extra["signal"]
    skipped = len(signal) - len(fresh.loaded.data.bars)  # warm-up rows that loading dropped
    shares = []
    for track in tracks:
        seen = signal[skipped + track.trace["bar"].astype(int) - 1]
        positions = np.sign(np.round(track.trace["exposure"], 3))
        best = STANDARD.score(STANDARD.optimal_positions(seen), seen)
        shares.append(STANDARD.score(positions, seen) / best)
    return np.array(shares)


def test_a_planted_edge_is_found(train, tmp_path, learner):
    tracks = _tracks(train, tmp_path, STANDARD, [0], 300_000, learner=learner)
    shares = _shares_of_optimum(*tracks)
    assert shares.min() >= 0.80


@pytest.mark.slow
def test_a_planted_edge_is_found_by_eight_seeds(train, tmp_path):
    shares = _shares_of_optimum(*_tracks(train, tmp_path, STANDARD, list(range(8)), 300_000))
    assert np.median(shares) >= 0.90
    assert shares.min() >= 0.80


def _dqn(train, tmp_path, market, seeds, learner="auto"):
    """By forex's suggested settings, on one copy."""
    agent = DQNConfig(**forex.DEFAULT_HYPERPARAMS["dqn"]["agent"])
    return _tracks(train, tmp_path, market, seeds, 300_000, agent, 1, learner)


def _by_dqn(train, tmp_path, seeds, learner="auto"):
    return _shares_of_optimum(*_dqn(train, tmp_path, STANDARD, seeds, learner))


@pytest.mark.slow
def test_a_planted_edge_is_found_by_dqn(train, tmp_path, learner):
    assert _by_dqn(train, tmp_path, [0], learner).min() >= 0.80


@pytest.mark.slow
def test_a_planted_edge_is_found_by_dqn_with_eight_seeds(train, tmp_path):
    shares = _by_dqn(train, tmp_path, list(range(8)))
    assert np.median(shares) >= 0.90
    assert shares.min() >= 0.80


def _stopped_trading(track):
    """Return whether the pass lost at most one and a half round trips.

    What it lost is what it paid: a position that is held earns nothing on average and costs
    nothing, but in 20,000 bars it gains or loses some 7 % by chance.
    """
    turnover = track.metrics["turnover"]
    return turnover / track.length <= 0.01 and turnover * NO_EDGE.fee <= 1.5 * 2 * NO_EDGE.fee


@pytest.mark.slow
def test_without_an_edge_the_agent_stops_trading(train, tmp_path):
    tracks, _ = _tracks(train, tmp_path, NO_EDGE, [0], 300_000)
    assert all(_stopped_trading(track) for track in tracks)


@pytest.mark.slow
def test_without_an_edge_eight_seeds_stop_trading(train, tmp_path):
    tracks, _ = _tracks(train, tmp_path, NO_EDGE, list(range(8)), 300_000)
    assert sum(_stopped_trading(track) for track in tracks) >= 7


@pytest.mark.slow
def test_without_an_edge_eight_seeds_of_dqn_stop_trading(train, tmp_path):
    tracks, _ = _dqn(train, tmp_path, NO_EDGE, list(range(8)))
    assert sum(_stopped_trading(track) for track in tracks) >= 7
