"""Training ranges of features: stored with a deployment; values outside are reported."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from live_markets import Make, table, week, write

from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.drift import FeatureRanges
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.paper_account import JOURNAL
from slipstream.training.environments.evaluator import PolicyInput, episode_names, run_episodes
from slipstream.training.environments.factory import DataWindow, load_window


def jumping(jumps: dict[int, float]) -> pl.DataFrame:
    """A random walk of bars of M15 that jumps at some of them."""
    frame, factor = table(week(420), 1.1, 0, 1e-5), np.ones(420)
    for row, jump in jumps.items():
        factor[row:] *= jump
    prices = ("open", "high", "low", "close")
    moved = frame.with_columns(pl.col(prices) * pl.Series(factor))
    bounds = {"high": pl.max_horizontal(prices), "low": pl.min_horizontal(prices)}
    return moved.with_columns(**bounds)


def test_ranges_of_training_and_a_bar_outside(make: Make, tmp_path: Path) -> None:
    jumps = {330: 1.005, 360: 0.997}
    prices = write(tmp_path / "prices", {"EURUSD": jumping(jumps)}, slice(405))
    found = make("forex", prices, features=["log_return_1", "close_location"])
    ranges = FeatureRanges.from_metadata(found.policy().metadata)
    assert ranges is not None
    assert (ranges.low[0], ranges.high[0]) == pytest.approx(np.log([0.997, 1.005]), abs=5e-5)
    later = write(tmp_path / "later", {"EURUSD": jumping(jumps | {410: 1.009})})
    run_account("demo", f"replay:{later}", start=int(week(420)[405]))
    with closing(Journal(found.account(1) / JOURNAL)) as journal:
        (remark,) = journal.notices()
    share = 100 * (np.log(1.009) - np.log(1.005)) / (np.log(1.005) - np.log(0.997))
    assert "log_return_1 is outside its training range by " in remark[1]
    assert float(remark[1].split("by ")[1].split(" %")[0]) == pytest.approx(share, abs=2.0)


@pytest.mark.parametrize(
    ("name", "options", "before", "factor"),
    [("forex", {}, 0, 1.0), ("portfolio", {"orders": "units"}, 3, 2.0**-15)],
)
def test_ranges_are_those_of_what_is_observed(
    tmp_path: Path, name: str, options: dict[str, str], before: int, factor: float
) -> None:
    """Observation of two bars of two features a symbol, after cash and coins for coin orders."""
    pairs = ("EURUSD", "GBPUSD")
    prices = write(tmp_path, {one: table(week(420), 1.1, k) for k, one in enumerate(pairs)})
    section = {"data": {"folder": str(prices)}, "features": ["log_return_1", "rsi_14"]}
    section |= {"lookback": 2, **options}
    environment = load_window(name, section, DataWindow())
    passes, rows = len(episode_names(environment, "window") or [""]), list[np.ndarray]()

    def act(seen: PolicyInput) -> np.ndarray:
        rows.append(seen.obs.copy())
        return np.ones((passes, environment.spec.action_dim), environment.spec.action_dtype)

    with closing(environment.make_eval_envs("window", passes, backend="serial")) as env:
        run_episodes(env, act, passes, 0)
    ranges = FeatureRanges.from_environment(environment)
    width = len(ranges.low)
    shown = np.concatenate(rows)[:, before : before + 2 * width].reshape(-1, width)
    assert width == 2 * environment.training_context["symbols_at_once"]
    assert ranges.low * factor == pytest.approx(shown.min(axis=0), rel=1e-6)
    assert ranges.high * factor == pytest.approx(shown.max(axis=0), rel=1e-6)
    row = int(environment.loaded.data.segments[0].mean())
    assert ranges.drift(environment, row).share == 0.0
    seen = environment.loaded.data.features[row - 1 : row + 1, 0]
    ranges.low[0], ranges.high[0] = seen.min() + 1.0, seen.min() + 5.0
    told = ranges.drift(environment, row)
    assert told.share == pytest.approx(0.25) and told.feature.endswith("log_return_1")


def test_a_remark_is_kept_once_however_often_the_account_begins(make: Make, tmp_path: Path) -> None:
    prices = write(tmp_path / "prices", {"EURUSD": jumping({})}, slice(340))
    found = make("forex", prices, features=["log_return_1"])
    jumps = dict.fromkeys(range(340, 420, 4), 1.01)
    later = {"EURUSD": jumping(jumps)}
    remarks = []
    for steps in ([419], range(350, 420, 10)):  # the second account begins again every ten bars
        for rows in steps:
            folder = write(tmp_path / f"until-{len(steps)}", later, slice(rows + 1))
            run_account("demo", f"replay:{folder}", start=int(week(420)[335]))
        with closing(Journal(found.account(1) / JOURNAL)) as journal:
            remarks.append(journal.notices())
        shutil.rmtree(found.account(1))
    assert remarks[0] == remarks[1]
    assert len(remarks[0]) == len({text.split(" UTC ")[0][:24] for _, text in remarks[0]}) > 1
