"""A study of pairs of constant drift: there is a direction, and nothing to time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import slipstream
from slipstream.markets.synthetic import SyntheticForex

BARS, DEVIATION = 12_000, 5e-3  # hours, and of a day's return
SHARPE = 6.0  # annual, of the drift of each pair: enough that every candidate's own bound holds


def write_pairs(folder, seed):
    """Two pairs of hourly bars, open as currencies are, whose log price is a walk with drift."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    hours = np.datetime64("2022-01-02T22", "h") + np.arange(int(1.5 * BARS))
    weekday, hour = (hours.astype("datetime64[D]").astype(int) + 3) % 7, hours.astype(int) % 24
    closed = (weekday == 5) | ((weekday == 4) & (hour >= 21)) | ((weekday == 6) & (hour < 22))
    time = hours[~closed][:BARS].astype("datetime64[us]")
    noise = DEVIATION / np.sqrt(24.0)
    drift = SHARPE / np.sqrt(260.0) * DEVIATION / 24.0
    for name, price in (("EURUSD", 1.1), ("GBPUSD", 1.3)):
        close = price * np.exp(np.cumsum(drift + noise * random.standard_normal(BARS)))
        opened = np.concatenate([[price], close[:-1]])
        wick = 1.0 + 0.3 * noise * np.abs(random.standard_normal((2, BARS)))
        columns = {
            "timestamp": pl.Series(time).dt.replace_time_zone("UTC"),
            "open": opened,
            "high": np.maximum(opened, close) * wick[0],
            "low": np.minimum(opened, close) / wick[1],
            "close": close,
            "volume": np.full(BARS, 100.0),
        }
        pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_direction_is_neither_confirmed_nor_called_skill(tmp_path, monkeypatch):
    """Judged by its own returns alone, each of these studies has a winner."""
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        write_pairs(tmp_path / f"market{seed}", seed)
        data = {"folder": str(tmp_path / f"market{seed}"), "spread_pips": 0.5}
        target = {
            "env": {"name": "forex", "data": data, "slippage_pips": 0.1},
            "training": {"num_envs": 16, "total_timesteps": 12_000},
        }
        space = {"agent.learning_rate": {"low": 3e-4, "high": 3e-3, "log": True}}
        study = {"space": space, "n_trials": 8, "seed": seed, "pruning": {"enabled": False}}
        study |= {"confirmation": {"top": 3, "seeds": 3}, "final_seeds": 2}
        found = slipstream.tune(
            target, study_name=f"s{seed}", study=study, report=False, log=lambda _: None
        ).result
        assert found["winner"] is None and found["holdout"] is None
        assert found["evidence"]["deflated_sharpe"]["value"] < 0.95
        confirmation = found["confirmation"]
        assert max(one["lcb"] for one in confirmation["candidates"]) > 0.0
        assert "by its direction, not shown by its timing" in confirmation["reason"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_planted_edge_in_time_is_still_confirmed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SyntheticForex().write(tmp_path / "planted", 60_000, 0)
    data = {"folder": str(tmp_path / "planted")}
    target = {
        "env": {"name": "forex", "data": data, "features": ["signal"]},
        "agent": {"name": "ppo", "gamma": 0.8},
        "training": {"num_envs": 16, "total_timesteps": 60_000},
    }
    space = {"agent.learning_rate": {"low": 1e-3, "high": 4e-3, "log": True}}
    study = {"space": space, "n_trials": 4, "seed": 1, "pruning": {"enabled": False}}
    study |= {"confirmation": {"top": 2, "seeds": 2}, "final_seeds": 2}
    found = slipstream.tune(
        target, study_name="edge", study=study, report=False, log=lambda _: None
    ).result
    assert found["winner"] is not None and not found["winner"]["forced"]
    assert found["holdout"]["promoted"] and found["holdout"]["timing_lcb"] > 0.0
    assert found["confirmation"]["chance"]["timing"] <= 0.05
