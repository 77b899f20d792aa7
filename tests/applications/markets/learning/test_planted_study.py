"""Studies on markets whose truth is known (docs/explanation/statistics.md, section 14)."""

from __future__ import annotations

import numpy as np
import pytest
from planted_world import environment_of, settings_of, share_of_optimum

import slipstream
from slipstream.markets.synthetic import SyntheticCrypto
from slipstream.training.environments.evaluator import Evaluator

SPACE = {
    "agent.learning_rate": {"low": 1e-4, "high": 1e-3, "log": True},
    "agent.gamma": {"low": 0.8, "high": 0.95},
    "env.rebalance_threshold": {"low": 0.02, "high": 0.2},
}


def study_of(settings, steps, name, **study):
    target = {
        "env": {"name": "portfolio", **settings},
        "training": {"num_envs": 12, "total_timesteps": steps},
    }
    return slipstream.tune(
        target, study_name=name, study={"space": SPACE, **study}, report=False, log=lambda _: None
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_winner_of_a_planted_study_finds_the_edge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = study_of(
        settings_of(tmp_path / "seen", 100_000, 1),
        100_000,
        "planted",
        n_trials=8,
        confirmation={"top": 2, "seeds": 2},
        final_seeds=2,
    )
    holdout = study.result["holdout"]
    assert holdout["promoted"] and holdout["opening"] == 1
    assert holdout["fresh_days"] >= 60 and min(holdout["lcb"], holdout["sharpe_lcb"]) > 0.0
    assert max(study.result["confirmation"]["chance"][name] for name in ("excess", "own")) <= 0.05
    fresh = environment_of(tmp_path / "fresh", 18_000, 2, (0.1, 0.0, 0.9))
    policy = slipstream.load_policy(study.path)
    ((track,),) = Evaluator(fresh, "test").run(policy, record=True)
    assert share_of_optimum(track, fresh, tmp_path / "fresh") >= 0.8


def study_without_edge(folder, seed, **env):
    """24 trials of 10,000 steps on a market in which nothing can be known."""
    market = SyntheticCrypto(strength=0.0, signal=0.0)
    return study_of(
        {**settings_of(folder, 100_000, seed, market), **env},
        10_000,
        f"none{seed}",
        seed=seed,
        n_trials=24,
        pruning={"enabled": False},
        confirmation={"top": 3, "seeds": 3, "bootstrap": 500},
        final_seeds=2,
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_studies_without_an_edge_recommend_nothing(tmp_path, monkeypatch):
    """20 markets without an edge: chance alone neither wins nor looks as if it had skill.

    Trading is free there: what a trial pays would tell it from the others, and that is no luck.
    """
    monkeypatch.chdir(tmp_path)
    pbo, flattered = [], []
    for seed in range(20):
        study = study_without_edge(tmp_path / f"market{seed}", seed, fee=0.0)
        result = study.result
        pbo.append(result["evidence"]["pbo"]["value"])
        deflated = result["evidence"]["deflated_sharpe"].get("value", 0.0)
        if deflated >= 0.95 or result["winner"] is not None:
            flattered.append(seed)
        if result["winner"] is None:
            assert result["sentences"][0].startswith(
                "No configuration beat equal weight and cash; nothing is recommended"
            )
            assert result["deployed"] is None and not study.policy.exists()
    assert 0.4 <= np.mean(pbo) <= 0.6, pbo
    assert len(flattered) <= 1, flattered  # called skilled, confirmed or even promoted


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fees_alone_rank_trials_and_recommend_none(tmp_path, monkeypatch):
    """Fewer trades lose less on all days: the order is stable, and every result is a loss."""
    monkeypatch.chdir(tmp_path)
    result = study_without_edge(tmp_path / "market", 0).result
    pbo = result["evidence"]["pbo"]
    assert pbo["value"] < 0.1 and pbo["probability_of_loss"] > 0.9
    assert result["winner"] is None and result["deployed"] is None
